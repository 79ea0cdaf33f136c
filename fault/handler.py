"""Handler of one host: it finds, checks and signals processes there. Standard library only.

On a remote host the agent (`serve`) receives requests on standard input, one JSON line each. Its code arrives over the
connection (`fault.remote_bootstrap`); it opens no port and ends with the connection, but watchdogs and recordings
remain. A request is {"n", "do", ...}; the reply is {"n", "value"}, or {"n", "error": {"kind", ...}}.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from fault import host_faults, host_recorder, watchdog
from fault.cpu_busy import BUSY_NS, read_local_cpu
from fault.errors import IdentityMismatch, SignalRefused, error_as_json
from fault.identity import (
    ROLES,
    Delivery,
    LiveProcess,
    Presence,
    ProcessIdentity,
    Tokens,
    from_line,
    require_match,
    require_same,
    to_line,
)
from fault.procfs import open_handle, process_handle, read_process, send_signal
from fault.victims import find_victims, own_ancestry, read_ancestors

# Two ticks of the kernel's CPU accounting, which are up to 10 ms apart.
BUSY_INTERVAL_S = 0.02


class Handler:
    """Handler of this host; it reads the identity of a victim again before each signal.

    If the kernel has pidfds, the handle is opened before the check. The signal then reaches the checked process or
    none, even if the pid is reused. An armed victim is checked ahead of time: reading the command line of a busy JVM
    can take tens of milliseconds, because it waits for a memory lock.
    """

    def __init__(self, start_watchdog: watchdog.StartWatchdog = watchdog.start_watchdog) -> None:
        self._start_watchdog = start_watchdog
        self._armed: dict[Any, int] = {}
        self._watchdogs: dict[Any, watchdog.Watchdog] = {}
        self._requests: Mapping[str, Callable[..., Any]] = {
            "hello": lambda: {"pid": os.getpid(), "python": list(sys.version_info[:3]), "user": os.getuid()},
            "clock": time.time_ns,
            "find": _find,
            "busy": _busy,
            "probe": _probe,
            "arm": self._arm,
            "signal": self._signal,
            "act": host_faults.run_step,
            "watch": self._watch,
            "release": self._release,
            "record": host_recorder.run_step,
        }

    def ask(self, do: str, **fields: Any) -> Any:
        """Run one request and return its value. Raises KeyError for an unknown request, else FaultError.

        - `find` victim, run, services: live candidates (`fault.victims.select_victims`), sorted
        - `busy` candidates: those that used CPU time during the last 20 ms
        - `probe` victim: state of its pid, a `Presence`
        - `arm` victim: open its pidfd and check its identity; the next signal uses this handle
        - `signal` victim, signum: check the identity again, then send the signal once; a `Delivery`
        - `act` step, kind, name, asked (parameters): `fault.host_faults.run_step`
        - `watch` seconds, plus either victim or kind, name and asked: start a watchdog, unless the victim has one
        - `release` victim: end its watchdog; the victim was resumed
        - `record` step: `fault.host_recorder.run_step`
        """
        return self._requests[do](**fields)

    def close(self) -> None:
        """Do nothing: a local handler has no connection."""

    def _arm(self, victim: ProcessIdentity) -> None:
        """Open the victim's pidfd and check its identity; do nothing without pidfds or if the victim is gone."""
        self._disarm(victim)
        try:
            handle = open_handle(victim.pid)
        except ProcessLookupError:
            return
        if handle is None:
            return
        try:
            live = read_process(victim.pid)
            if live is not None:
                _check(victim, live, signal.SIGKILL)
        except BaseException:
            os.close(handle)
            raise
        self._armed[_key(victim)] = handle
        if live is None:
            self._disarm(victim)

    def _disarm(self, victim: ProcessIdentity) -> None:
        handle = self._armed.pop(_key(victim), None)
        if handle is not None:
            os.close(handle)

    def _signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Send the signal. Raises IdentityMismatch or SignalRefused; then nothing was sent."""
        try:
            if (armed := self._armed.get(_key(victim))) is not None:
                try:
                    # A readable pidfd means that the process ended. A signal to a zombie succeeds without effect.
                    if select.select([armed], [], [], 0)[0]:
                        return Delivery.GONE
                    send_signal(victim.pid, armed, signum)
                finally:
                    self._disarm(victim)
                return Delivery.SENT
            with process_handle(victim.pid) as handle:
                live = read_process(victim.pid)
                if live is None:
                    return Delivery.GONE
                _check(victim, live, signum)
                send_signal(victim.pid, handle, signum)
        except ProcessLookupError:
            return Delivery.GONE
        except PermissionError as error:
            name = signal.Signals(signum).name
            raise SignalRefused(f"pid: {name} to {victim} failed: {error.strerror}; fix: run as its owner") from None
        return Delivery.SENT

    def _watch(self, seconds: float, victim: ProcessIdentity | None = None, **host_fault: Any) -> None:
        if victim is None:
            self._start_watchdog({"seconds": seconds, **host_fault})
            return
        existing = self._watchdogs.pop(_key(victim), None)
        if existing is None or not existing.is_running():
            existing = self._start_watchdog({"seconds": seconds, "victim": victim})
        if existing is not None:
            self._watchdogs[_key(victim)] = existing

    def _release(self, victim: ProcessIdentity) -> None:
        if (existing := self._watchdogs.pop(_key(victim), None)) is not None:
            existing.release()


def _find(victim: str, run: str, services: str | None) -> Sequence[ProcessIdentity]:
    return find_victims(victim, Tokens(run, services))


def _busy(candidates: Sequence[ProcessIdentity]) -> Sequence[ProcessIdentity]:
    before = read_local_cpu(candidates)
    time.sleep(BUSY_INTERVAL_S)
    after = read_local_cpu(candidates)
    grown = {one for one in before.keys() & after.keys() if after[one].run_ns - before[one].run_ns >= BUSY_NS}
    return [candidate for candidate in candidates if candidate in grown]


def _probe(victim: ProcessIdentity) -> Presence:
    live = read_process(victim.pid)
    if live is None:
        return Presence.GONE
    try:
        require_same(victim, live, by_ticks=True)
    except IdentityMismatch as mismatch:
        # A process whose memory is being released has no command line, but it is still the victim.
        if mismatch.part in ("token", "role") and not live.command:
            return Presence.ALIVE
        return Presence.OTHER
    return Presence.STOPPED if live.is_stopped else Presence.ALIVE


def _key(victim: ProcessIdentity) -> tuple[int, int | None, float]:
    return victim.pid, victim.start_ticks, victim.create_time


def _check(victim: ProcessIdentity, live: LiveProcess, signum: int) -> None:
    """Raise IdentityMismatch unless `live` is the victim; a Python worker is traced to its executor again."""
    # The victim guard may run on another host, where it cannot know the pids of this one.
    if victim.pid in own_ancestry():
        raise IdentityMismatch(victim.pid, "pid", "it is this process or one of its ancestors")
    if victim.role.parent_role is None or signum == signal.SIGCONT:
        # SIGCONT undoes a pause of a process that was checked before; its ancestors may have died since.
        require_same(victim, live, by_ticks=signum == signal.SIGCONT)
    else:
        require_match(victim, live, tuple(read_ancestors(live, until=ROLES[victim.role.parent_role])))


def reply_to(handler: Handler, request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a request: its value, or its error as JSON values."""
    number = request.pop("n", None)
    try:
        return {"n": number, "value": handler.ask(**request)}
    except Exception as error:
        return {"n": number, "error": error_as_json(error)}


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until the input ends."""
    handler = Handler(watchdog.fork_watchdog)
    for line in iter(requests.readline, b""):
        if not line.endswith(b"\n"):
            break  # incomplete request
        replies.write(to_line(reply_to(handler, from_line(line))))
        replies.flush()
