"""Detached processes and their ledger: who was started, and how to end exactly those.

A process is known by pid **and** creation time, so that a number which the system handed out
again is never taken for the process that had it before. The creation time is told in ticks since the machine's start
where that is known: the wall clock's own moves with every step that the clock makes.

Only this user's processes are ever ended, and of these only those that bear the attempt's mark: what stands in a file
or in a command line may have been written by anybody.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from fault.procfs import process_handle, send_signal, start_ticks
from faultline.system.background import leave_idle_class
from faultline.system.child_environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.files import sync_folder
from faultline.system.journal import line_bytes, parse_line
from faultline.system.process_tags import BACKGROUND_MARK, RUN_MARK, load_option, load_token, run_option, run_token

# Creation times are read from the same clock ticks by whoever asks; equal up to rounding.
CREATION_TOLERANCE_S = 0.02
# Keeps a schedule on a machine whose cores the engine has filled; needs the right to raise priorities.
HIGH_PRIORITY_NICENESS = -10
# While a program takes a process's place, the kernel shows no command line of it.
EXEC_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a ledger. `create_time` is seconds since the epoch, as psutil gives it; `start_ticks` and `boot` are
    those of `start_identity`.
    """

    pid: int
    create_time: float
    role: str
    command: list[str]
    attempt: str
    token: str
    wall_ns: int = 0
    mono_ns: int = 0
    start_ticks: int | None = None
    boot: str = ""


def process_of(entry: LedgerEntry) -> psutil.Process | None:
    """The live process of a ledger line, or None when it ended; to look at, since the line alone says whose it is."""
    return live_process(entry.pid, entry.create_time, entry.start_ticks, entry.boot)


def victim_of(entry: LedgerEntry) -> psutil.Process | None:
    """The same for whoever signals it: None also when it is another user's, or does not bear the attempt's mark."""
    process = process_of(entry)
    return process if process is not None and has_attempt_mark(process, entry.attempt) else None


def is_own(process: psutil.Process) -> bool:
    """Whether it is this user's; root owns his own only. Raises psutil.NoSuchProcess."""
    return bool(process.uids().real == os.getuid())


def has_attempt_mark(process: psutil.Process, attempt: str) -> bool:
    """Whether it is this user's, with a token of the attempt as one whole argument, or RUN_MARK in its environment."""
    tokens = {mark(attempt) for mark in (run_token, load_token, run_option, load_option)}
    with contextlib.suppress(psutil.Error, OSError):
        if not is_own(process):
            return False
        deadline = time.monotonic() + EXEC_TIMEOUT_S
        while not (command := process.cmdline()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(tokens & set(command)) or process.environ().get(RUN_MARK) == attempt
    return False


def processes_with_mark(mark: str, value: str) -> list[psutil.Process]:
    """This user's live processes that inherited RUN_MARK or INSTANCE_MARK with this value; not this very one."""
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if is_marked(process, mark, value)]


def is_marked(process: psutil.Process, mark: str, value: str) -> bool:
    """Whether a process is this user's, lives, and has the mark with this value in its environment."""
    with contextlib.suppress(psutil.Error, OSError):
        return is_own(process) and process.environ().get(mark) == value
    return False


def option_of(command: str | Sequence[str], name: str) -> str | None:
    """What a command line gives to an option, such as `--app-id`; None without it."""
    text = command if isinstance(command, str) else " ".join(map(str, command))
    match = re.search(rf"{re.escape(name)}[ =](\S+)", text)
    return match.group(1) if match else None


def live_process(pid: int, create_time: float, start_ticks: int | None = None, boot: str = "") -> psutil.Process | None:
    """The process with this pid that was created then, or None when it ended (a zombie has ended).

    With `start_ticks` and `boot` of `start_identity` these decide, and the clock may have been set meanwhile.
    """
    try:
        process = psutil.Process(pid)
        if start_ticks is not None and boot:
            same = start_identity(pid) == (start_ticks, boot)
        else:
            same = abs(process.create_time() - create_time) <= CREATION_TOLERANCE_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, OSError):
        return None


def start_identity(pid: int) -> tuple[int, str]:
    """When a process began: clock ticks since the machine's start, and which start. Raises OSError for no process."""
    return start_ticks(pid), boot_id()


def this_process() -> dict[str, Any]:
    """This very process, as a file keeps it for `live_process`."""
    own = psutil.Process()
    ticks, boot = start_identity(own.pid)
    return {"pid": own.pid, "create_time": own.create_time(), "start_ticks": ticks, "boot": boot}


def boot_id() -> str:
    """Which start of the machine this is: another name after each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class _Spec:
    """What the second fork is told."""

    command: list[str]
    role: str
    attempt: str
    ledger: str
    stdout: str
    stderr: str
    cwd: str
    env: dict[str, str]
    high_priority: bool
    reply: str


# Seconds that a detached process has to take over from its starter.
_START_S = 20.0
_LAUNCHER = """\
import json, os, sys
spec = json.loads(sys.stdin.read())
os.setsid()
if os.fork():
    os._exit(0)
import faultline.system.process_ledger as processes
processes.exec_command(spec)
"""


def spawn_detached(
    command: Sequence[str],
    *,
    role: str,
    attempt: str,
    ledger: Path,
    stdout: Path,
    stderr: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    high_priority: bool = False,
    token: str | None = None,
    for_workload: bool = False,
) -> LedgerEntry:
    """Starts `command` so that it outlives, and holds nothing of, its starter.

    Double fork, new session, no inherited descriptors, standard streams to files, of the environment only what children
    get (`for_workload`: with what the user passes on to workloads). The ledger line is synced to disk before the
    program itself starts: a process that runs is always in the ledger. The attempt's token is appended to the command,
    or `token`, and RUN_MARK stands in its environment.
    A `high_priority` process is scheduled before others, where the system lets this user ask for that.

    Returns the ledger entry. Raises InfrastructureError when the process could not be started.
    """
    spec = _Spec(
        command=[*command, token or run_token(attempt)],
        role=role,
        attempt=attempt,
        ledger=str(ledger),
        stdout=str(stdout),
        stderr=str(stderr),
        cwd=str(cwd),
        env=clean_environment(env, for_workload=for_workload),
        high_priority=high_priority,
        reply=str(ledger.parent / f".spawn-{role}-{time.monotonic_ns()}"),
    )
    for stream in (stdout, stderr):
        stream.parent.mkdir(parents=True, exist_ok=True)
    return _launch(spec)


def _launch(spec: _Spec) -> LedgerEntry:
    """Has a fresh interpreter leave this process behind and become the command; the entry that it wrote."""
    # A fresh interpreter rather than os.fork(): the caller may hold threads and large libraries.
    starter = subprocess.Popen(
        # With the token: it is of the attempt from its first instant on, before the program shows it.
        [sys.executable, "-c", _LAUNCHER, spec.command[-1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        close_fds=True,
        text=True,
        # What is measured never gives way, whoever starts it.
        env={name: value for name, value in os.environ.items() if name != BACKGROUND_MARK},
    )
    try:
        _, problem = starter.communicate(json.dumps(asdict(spec)), timeout=_START_S)
    except subprocess.TimeoutExpired:
        starter.kill()
        starter.communicate()
        raise InfrastructureError(
            f"{spec.role}: not started within {_START_S:g} s; the machine is overloaded"
        ) from None
    reply = Path(spec.reply)
    if starter.returncode or not reply.exists():
        last_output = problem.strip().splitlines()[-1:] or "no reply"
        raise InfrastructureError(f"{spec.role}: could not be started: {last_output}")
    entry = LedgerEntry(**json.loads(reply.read_text()))
    reply.unlink()
    return entry


def exec_command(values: dict[str, Any]) -> None:
    """Runs in the second fork: writes the ledger line, redirects the streams, and execs the command."""
    spec = _Spec(**values)
    entry = LedgerEntry(
        **this_process(), role=spec.role, command=spec.command, attempt=spec.attempt, token=run_token(spec.attempt),
        wall_ns=time.time_ns(), mono_ns=time.monotonic_ns(),
    )  # fmt: skip
    append_entry(Path(spec.ledger), entry)
    reply = Path(spec.reply)
    temporary = reply.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(entry)))
    temporary.rename(reply)
    leave_idle_class()
    if spec.high_priority:
        raise_priority()
    os.chdir(spec.cwd)
    _redirect(spec.stdout, spec.stderr)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(spec.command[0], spec.command, {**spec.env, RUN_MARK: spec.attempt})


def _redirect(stdout: str, stderr: str) -> None:
    """Standard streams from nothing and to files; no other descriptor stays open."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in ((1, stdout), (2, stderr)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, number)
        os.close(target)
    os.closerange(3, 256)


def raise_priority() -> None:
    """Asks for a place before other processes, where the system lets this user have it.

    Linux groups processes by session (autogroups) and weighs whole groups against each other; a session of its
    own has a group of its own, in which a niceness alone would mean nothing.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, HIGH_PRIORITY_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(HIGH_PRIORITY_NICENESS))


def append_entry(ledger: Path, entry: LedgerEntry) -> None:
    """Appends one ledger line and syncs it to disk. A half line that a full disk left before it does not touch it.

    Raises OSError for a ledger that is a link to another file.
    """
    with open(ledger, "a+b", opener=_refuse_link) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        whole = end == 0 or file.read(1) == b"\n"
        file.write((b"" if whole else b"\n") + line_bytes(asdict(entry)))
        file.flush()
        os.fsync(file.fileno())
    if end == 0:
        sync_folder(ledger.parent)


def read_ledger(ledger: Path) -> list[LedgerEntry]:
    """The entries of a ledger; a half-written last line is passed over.

    A link, and a file of another user's, names nobody.
    """
    entries = []
    for line in map(parse_line, _read_own_file(ledger).splitlines()):
        with contextlib.suppress(TypeError):  # of another form
            entries.append(LedgerEntry(**(line or {})))
    return entries


def _read_own_file(file: Path) -> bytes:
    try:
        opened = open(file, "rb", opener=_refuse_link)  # closed below
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return b""
        raise
    with opened:
        found = os.fstat(opened.fileno())
        return opened.read() if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() else b""


def _refuse_link(path: str, flags: int) -> int:
    # A pipe that somebody laid in the file's place would hold up whoever opens it.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def end_processes(processes: Iterable[psutil.Process], *, grace_s: float = 5.0) -> list[int]:
    """SIGTERM, then SIGKILL after `grace_s` seconds. Returns the pids that had to be ended."""
    # A stopped process cannot act on SIGTERM before it is continued.
    alive = [process for process in processes if send_signals(process, signal.SIGCONT, signal.SIGTERM)]
    stubborn = _await_end(alive, grace_s)
    for process in stubborn:
        send_signals(process, signal.SIGKILL)
    if immortal := _await_end(stubborn, grace_s):
        names = ", ".join(str(process.pid) for process in immortal)
        raise InfrastructureError(f"processes {names}: still there after SIGKILL; look at them with ps")
    return [process.pid for process in alive]


def send_signals(process: psutil.Process, *signals: signal.Signals) -> bool:
    """Sends signals to exactly this process; False when it has ended, or is not this user's.

    The handle is taken before the look at who it is, so that a pid which is handed out in between is never hit.
    """
    with contextlib.suppress(psutil.Error, OSError), process_handle(process.pid) as handle:
        if process.is_running() and is_own(process):
            for number in signals:
                send_signal(process.pid, handle, number)
            return True
    return False


def _await_end(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after so many seconds. One that nobody has buried yet (a zombie) has ended."""
    left, deadline = list(processes), time.monotonic() + seconds
    while left := [process for process in left if live_process(process.pid, process.create_time()) is not None]:
        if time.monotonic() >= deadline:
            break
        psutil.wait_procs(left, timeout=0.05)
    return left


def end_ledger(ledger: Path) -> list[int]:
    """Ends what a ledger names, with the descendants of each; nothing else. Returns their pids.

    The lines count for the attempt in whose folder the ledger lies; others have no business there.
    """
    found: dict[int, psutil.Process] = {}
    for entry in reversed(read_ledger(ledger)):
        process = victim_of(entry) if entry.attempt == ledger.parent.name else None
        if process is None:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [process, *process.children(recursive=True)]:
                found.setdefault(one.pid, one)
    return end_processes(found.values())
