"""Detached watchdog process: it undoes a fault if its owner does not.

Its owner is the process that started it and injects the fault. The watchdog resumes a paused victim or undoes a host
fault. It is reparented to init and does not carry the tag that clean-up uses to find a run's processes, so it outlives
its owner, an SSH connection and the run. It verifies the identity of the victim once, at the start, and keeps its
pidfd. Then it waits for a release by the owner, the victim's end or its deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault.errors import FaultError, WatchdogUnavailable, error_as_json, error_from_json
from fault.identity import ProcessIdentity, from_line, require_same, to_line
from fault.procfs import open_handle, read_process, send_signal, stat_of

if TYPE_CHECKING:
    from fault.host_faults import HostFault

# Once the owner is gone: how many times (every CHECK_S seconds) to check whether the victim is stopped before giving
# up.
MAX_STOP_CHECKS, CHECK_S = 15, 1.0
# Undo attempts while the fault is still active, and seconds between them.
MAX_UNDO_TRIES, RETRY_S = 30, 2.0
# A start normally takes 0.1 s.
START_TIMEOUT_S = 30.0
# Longer timeouts overflow in some kernels.
_MAX_WAIT_S = 600.0
_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from fault.watchdog import main; main()"


class Watchdog:
    """The owner's handle to a running watchdog.

    If the object is destroyed or the owner dies without `release`, the watchdog stays until its deadline, as long as
    the victim is stopped.
    """

    def __init__(self, release_fd: int) -> None:
        """Take over `release_fd`, the write end of the watchdog's standard input."""
        self._release_fd = release_fd
        self._close = weakref.finalize(self, os.close, release_fd)

    def is_running(self) -> bool:
        """Return whether the watchdog process is alive."""
        watch = select.poll()
        watch.register(self._release_fd, select.POLLERR)
        return not watch.poll(0)

    def release(self) -> None:
        """End the watchdog without an undo."""
        with contextlib.suppress(OSError):
            os.write(self._release_fd, b"release\n")
        self._close()


# Starts a watchdog and returns it once it runs; returns None if the victim is gone. Raises IdentityMismatch,
# ActionRefused or WatchdogUnavailable. The argument holds `seconds` until the undo, plus either `victim` or a host
# fault's `kind`, `name` and `asked` (its parameters).
StartWatchdog = Callable[[Mapping[str, Any]], Watchdog | None]


def start_watchdog(request: Mapping[str, Any]) -> Watchdog | None:
    """Start a watchdog in a fresh interpreter, which shares no state with its owner."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise WatchdogUnavailable(f"watchdog: start failed: {error}") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    release_fd = os.dup(process.stdin.fileno())
    with process.stdout, process.stderr:
        with contextlib.suppress(OSError), process.stdin:
            process.stdin.write(to_line(request))
        reply = _read_line(process.stdout.fileno())
        if not reply:
            process.kill()
        errors = b"" if reply else process.stderr.read()
        process.wait()
    return _watchdog_of(release_fd, reply, errors.decode(errors="replace").strip().rpartition("\n")[2])


def fork_watchdog(request: Mapping[str, Any]) -> Watchdog | None:
    """Start a watchdog by forking.

    Used on SSH hosts by the agent, the program that Faultline copies there: its code is deleted when it exits.
    """
    release_fd, reply_fd = run_detached(lambda: run_watchdog(request))
    try:
        reply = _read_line(reply_fd)
    finally:
        os.close(reply_fd)
    return _watchdog_of(release_fd, reply, "")


def run_detached(work: Callable[[], None]) -> tuple[int, int]:
    """Run `work` in a detached process whose only open files are its input and output.

    Returns the write end of its input and the read end of its output. Raises WatchdogUnavailable if no process can be
    started.
    """
    stdin_pipe, stdout_pipe = os.pipe(), os.pipe()
    if child := os.fork():
        os.close(stdin_pipe[0])
        os.close(stdout_pipe[1])
        if os.waitpid(child, 0)[1]:
            os.close(stdin_pipe[1])
            os.close(stdout_pipe[0])
            raise WatchdogUnavailable("watchdog: start failed: cannot fork; fix: raise the process limit (ulimit -u)")
        return stdin_pipe[1], stdout_pipe[0]
    code = 1
    try:
        os.setsid()
        if not os.fork():
            null = os.open(os.devnull, os.O_RDWR)
            for fd, source in enumerate((stdin_pipe[0], stdout_pipe[1], null)):
                os.dup2(source, fd)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            work()
        code = 0
    finally:
        os._exit(code)


def send_final_reply(reply: bytes) -> None:
    """Send the last reply to the owner, and close the output."""
    with contextlib.suppress(OSError):
        os.write(1, reply)
    os.dup2(2, 1)


def _read_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and select.select([fd], [], [], START_TIMEOUT_S)[0]:
        if not (part := os.read(fd, 1 << 16)):
            break
        line += part
    return line


def _watchdog_of(release_fd: int, line: bytes, error_output: str) -> Watchdog | None:
    watchdog = Watchdog(release_fd)
    if not line.endswith(b"\n"):
        raise WatchdogUnavailable(f"watchdog: start failed: no reply{f' ({error_output})' if error_output else ''}")
    reply = from_line(line)
    if "error" in reply:
        raise error_from_json(reply["error"]) or WatchdogUnavailable(f"watchdog: {reply['error']['message']}")
    return watchdog if reply["started"] else None


def main() -> None:
    """Run the watchdog program: read one request from standard input; an incomplete line is ignored."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(0, 1 << 16)):
            return
        line += part
    if not os.fork():
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        try:
            run_watchdog(from_line(line))
        finally:
            os._exit(0)


def run_watchdog(request: Mapping[str, Any]) -> None:
    """Run a watchdog: report the start on its output, wait for the deadline and undo the fault."""
    deadline = time.monotonic() + float(request["seconds"])
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    try:
        paused = None
        if "victim" in request:
            paused = _PausedProcess.find(request["victim"])
        else:
            # A local import, since it takes a third of the start time and a pause does not need it. On an SSH host the
            # agent has loaded the module already, so the import works after its file was deleted.
            from fault.host_faults import find_host_fault

            host_fault = find_host_fault(request["kind"], request["name"])
    except Exception as error:
        send_final_reply(to_line({"error": error_as_json(error)}))
        return
    send_final_reply(to_line({"started": paused is not None or "victim" not in request}))
    if "victim" not in request:
        _sleep_until(deadline)
        _undo(host_fault, request["name"], request["asked"])
    elif paused is not None and _await_deadline(paused, deadline):
        paused.resume()


class _PausedProcess:
    """A victim, identified by its pidfd or, without pidfds, by its start tick."""

    def __init__(self, pid: int, handle: int | None, ticks: int | None) -> None:
        self.handle, self._pid, self._ticks = handle, pid, ticks

    @classmethod
    def find(cls, victim: ProcessIdentity) -> _PausedProcess | None:
        """Return the victim, or None if it ended. Raises IdentityMismatch."""
        try:
            handle = open_handle(victim.pid)
        except ProcessLookupError:
            return None
        live = read_process(victim.pid)
        if live is None:
            return None
        require_same(victim, live, by_ticks=True)
        return cls(victim.pid, handle, live.start_ticks)

    def state(self) -> str:
        """Return the kernel's state letter, or "" if the process ended."""
        try:
            fields = stat_of(self._pid)
        except OSError:
            return ""
        return "" if fields[0] in "ZXx" or int(fields[19]) != self._ticks else fields[0]

    def is_stopped(self) -> bool:
        return self.state() in ("T", "t")

    def resume(self) -> None:
        """Send SIGCONT if the process is stopped."""
        if self.is_stopped():
            with contextlib.suppress(OSError):
                send_signal(self._pid, self.handle, signal.SIGCONT)


def _await_deadline(paused: _PausedProcess, deadline: float) -> bool:
    """Return True at the deadline, or False if the watchdog was released or is no longer needed.

    Once its owner is gone, the watchdog exits as soon as the victim runs again. It also exits if the victim is not
    stopped within MAX_STOP_CHECKS checks: by then no process is left that would stop the victim, so any later stop
    has another cause.
    """
    watch = select.poll()
    watch.register(0, select.POLLIN)
    if paused.handle is not None:
        watch.register(paused.handle, select.POLLIN)
    was_stopped, checks_left, is_owner_gone = False, MAX_STOP_CHECKS, False
    while (rest := deadline - time.monotonic()) > 0:
        wait_s = CHECK_S if is_owner_gone or paused.handle is None else _MAX_WAIT_S
        for fd, _ in watch.poll(1000 * min(rest, wait_s)):
            if fd == paused.handle or os.read(0, 64):
                return False
            watch.unregister(0)
            is_owner_gone = True
        if not (state := paused.state()):
            return False
        if is_owner_gone:
            is_stopped = state in ("T", "t")
            if not is_stopped and (was_stopped or checks_left <= 0):
                return False
            was_stopped, checks_left = was_stopped or is_stopped, checks_left - 1
    return True


def _undo(host_fault: HostFault, name: str, parameters: Mapping[str, Any]) -> None:
    """Undo the host fault, and retry while it is still active."""
    for _ in range(MAX_UNDO_TRIES):
        with contextlib.suppress(FaultError, OSError):
            host_fault.undo(name, parameters)
            if not host_fault.is_active(name, parameters):
                return
        _sleep_until(time.monotonic() + RETRY_S)


def _sleep_until(deadline: float) -> None:
    while (rest := deadline - time.monotonic()) > 0:
        time.sleep(min(_MAX_WAIT_S, rest))
