"""Detached processes and their ledger: which were started, and how to end exactly those.

A process is identified by pid **and** creation time, so a reused pid never matches. If possible, the creation time is
counted in clock ticks since boot, because steps of the wall clock change a time of day.

Only processes of this user with the attempt's mark are ended, because a ledger or a command line alone could come from
any user. The mark is a variable in the environment, or a token in the command line.
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

# Creation times of one process come from the same clock ticks, so they are equal up to rounding.
CREATION_TOLERANCE_S = 0.02
# Niceness with which the load generator keeps its schedule while the engine uses all cores; it needs a privilege.
HIGH_PRIORITY_NICENESS = -10
# Time to wait for a command line, which the kernel does not show during exec.
EXEC_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a ledger.

    `create_time`: seconds since the epoch, as psutil returns it; `start_ticks` and `boot`: from `start_identity`.
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
    """Return the live process of a ledger line, or None. For inspection only: the line is not verified."""
    return live_process(entry.pid, entry.create_time, entry.start_ticks, entry.boot)


def victim_of(entry: LedgerEntry) -> psutil.Process | None:
    """Return the process as `process_of` does, but None if it is another user's or lacks the attempt's mark."""
    process = process_of(entry)
    return process if process is not None and has_attempt_mark(process, entry.attempt) else None


def is_own(process: psutil.Process) -> bool:
    """Return whether the process belongs to this user, even if this user is root. Raises psutil.NoSuchProcess."""
    return bool(process.uids().real == os.getuid())


def has_attempt_mark(process: psutil.Process, attempt: str) -> bool:
    """Return whether the process belongs to this user and to the attempt.

    It must have a token of the attempt as a separate argument, or RUN_MARK in its environment.
    """
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
    """Return this user's live processes with RUN_MARK or INSTANCE_MARK of this value, except this one."""
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if is_marked(process, mark, value)]


def is_marked(process: psutil.Process, mark: str, value: str) -> bool:
    """Return whether a live process of this user has the mark with this value in its environment."""
    with contextlib.suppress(psutil.Error, OSError):
        return is_own(process) and process.environ().get(mark) == value
    return False


def option_of(command: str | Sequence[str], name: str) -> str | None:
    """Return the value of a command-line option such as `--app-id`; None if absent."""
    text = command if isinstance(command, str) else " ".join(map(str, command))
    match = re.search(rf"{re.escape(name)}[ =](\S+)", text)
    return match.group(1) if match else None


def live_process(pid: int, create_time: float, start_ticks: int | None = None, boot: str = "") -> psutil.Process | None:
    """Return the process with this pid and creation time, or None if it has ended or is a zombie.

    If given, `start_ticks` and `boot` (see `start_identity`) decide, because they do not depend on the wall clock.
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
    """Return a process's start: clock ticks since boot, and the boot id. Raises OSError for no process."""
    return start_ticks(pid), boot_id()


def this_process() -> dict[str, Any]:
    """Return this process in the form that `live_process` accepts."""
    own = psutil.Process()
    ticks, boot = start_identity(own.pid)
    return {"pid": own.pid, "create_time": own.create_time(), "start_ticks": ticks, "boot": boot}


def boot_id() -> str:
    """Return the id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class _Spec:
    """Input of the second fork."""

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


# Limit for the start of a detached process, in seconds.
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
    """Start `command` as a detached process that inherits nothing from its starter.

    It is started by a double fork in a new session, with standard streams in files, no other descriptors, and the
    environment of `clean_environment` (`for_workload`: with the user's variables for workloads). The ledger line is
    synced before the program starts, so a running process is always in the ledger. The attempt's token, or `token`, is
    appended to the command, and RUN_MARK is in its environment. `high_priority` raises its priority if allowed.

    Returns the ledger entry. Raises InfrastructureError if the process could not be started.
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
    """Start a fresh interpreter that detaches and becomes the command; return the entry it wrote."""
    # A fresh interpreter rather than os.fork(): the caller may hold threads and large libraries.
    starter = subprocess.Popen(
        # The token identifies the process before its program runs.
        [sys.executable, "-c", _LAUNCHER, spec.command[-1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        close_fds=True,
        text=True,
        # A measured process is never a background process.
        env={name: value for name, value in os.environ.items() if name != BACKGROUND_MARK},
    )
    try:
        _, problem = starter.communicate(json.dumps(asdict(spec)), timeout=_START_S)
    except subprocess.TimeoutExpired:
        starter.kill()
        starter.communicate()
        raise InfrastructureError(
            f"{spec.role}: start failed: timeout after {_START_S:g} s; fix: reduce the load of this machine"
        ) from None
    reply = Path(spec.reply)
    if starter.returncode or not reply.exists():
        last_output = problem.strip().splitlines()[-1:] or "no reply"
        raise InfrastructureError(f"{spec.role}: start failed: {last_output}")
    entry = LedgerEntry(**json.loads(reply.read_text()))
    reply.unlink()
    return entry


def exec_command(values: dict[str, Any]) -> None:
    """Write the ledger line, redirect the streams and exec the command, in the second fork."""
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
    """Redirect the standard streams to files, and close all other descriptors."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in ((1, stdout), (2, stderr)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, number)
        os.close(target)
    os.closerange(3, 256)


def raise_priority() -> None:
    """Raise this process's priority where the system allows it.

    With autogroups, Linux weighs whole sessions against each other, so the niceness of the session is set as well.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, HIGH_PRIORITY_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(HIGH_PRIORITY_NICENESS))


def append_entry(ledger: Path, entry: LedgerEntry) -> None:
    """Append one ledger line and sync it; an earlier partial line does not affect it.

    Raises OSError for a ledger that is a symbolic link.
    """
    with open(ledger, "a+b", opener=_refuse_link) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        is_complete = end == 0 or file.read(1) == b"\n"
        file.write((b"" if is_complete else b"\n") + line_bytes(asdict(entry)))
        file.flush()
        os.fsync(file.fileno())
    if end == 0:
        sync_folder(ledger.parent)


def read_ledger(ledger: Path) -> list[LedgerEntry]:
    """Return the entries of a ledger; skip a partial last line.

    A link or a file of another user has no entries.
    """
    entries = []
    for line in map(parse_line, _read_own_file(ledger).splitlines()):
        with contextlib.suppress(TypeError):  # skip a line of another form
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
    # O_NONBLOCK: a pipe in the file's place would block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def end_processes(processes: Iterable[psutil.Process], *, grace_s: float = 5.0) -> list[int]:
    """Send SIGTERM, then SIGKILL after `grace_s` seconds. Returns the pids that were still alive."""
    # A stopped process cannot act on SIGTERM before it is resumed.
    alive = [process for process in processes if send_signals(process, signal.SIGCONT, signal.SIGTERM)]
    stubborn = _await_end(alive, grace_s)
    for process in stubborn:
        send_signals(process, signal.SIGKILL)
    if immortal := _await_end(stubborn, grace_s):
        names = ", ".join(str(process.pid) for process in immortal)
        raise InfrastructureError(f"processes {names}: alive after SIGKILL; fix: inspect them with ps")
    return [process.pid for process in alive]


def send_signals(process: psutil.Process, *signals: signal.Signals) -> bool:
    """Send signals to exactly this process; return False if it ended or belongs to another user.

    The handle is opened before the ownership check, so that a reused pid is never hit.
    """
    with contextlib.suppress(psutil.Error, OSError), process_handle(process.pid) as handle:
        if process.is_running() and is_own(process):
            for number in signals:
                send_signal(process.pid, handle, number)
            return True
    return False


def _await_end(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes that are alive after `seconds`. A zombie has ended."""
    left, deadline = list(processes), time.monotonic() + seconds
    while left := [process for process in left if live_process(process.pid, process.create_time()) is not None]:
        if time.monotonic() >= deadline:
            break
        psutil.wait_procs(left, timeout=0.05)
    return left


def end_ledger(ledger: Path) -> list[int]:
    """End the processes of a ledger and their descendants, and return their pids.

    Only lines of the attempt whose folder contains the ledger count.
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
