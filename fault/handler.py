"""What finds, checks and hits on the host that it runs on, for whoever asks. Standard library only.

Elsewhere it is asked over standard input, one JSON line each (`serve`): it came over the connection
(`fault.remote_bootstrap`), listens nowhere, and ends with the connection; watchdogs and recordings stay. A request is
{"n", "do", ...}; the answer is {"n", "value"}, or {"n", "error": {"kind", ...}}.
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

# How long the use of CPU time is looked at: the ticks at which it is counted are up to 10 ms apart.
BUSY_INTERVAL_S = 0.02


class Handler:
    """Acts on this host; the identity of a victim is read again before each signal.

    Where the kernel has pidfds, the handle is taken before the check, so the signal goes to the
    process that was checked or to none, even if its pid is handed out again in between. That also
    lets an armed victim be checked ahead of time: reading the command line of a busy JVM can take tens of
    milliseconds, since it waits for the lock of its memory.
    """

    def __init__(self, start_watchdog: watchdog.StartWatchdog = watchdog.start_watchdog) -> None:
        self._start_watchdog = start_watchdog
        self._armed: dict[Any, int] = {}
        self._watchdogs: dict[Any, watchdog.Watchdog] = {}
        self._can: Mapping[str, Callable[..., Any]] = {
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
        """Does what is asked, and answers. Raises KeyError for what it cannot, else FaultError.

        - `find` victim word, run, services: the live candidates (`fault.victims.select_victims`), sorted
        - `busy` candidates: those that worked during some 20 ms just now
        - `probe` victim: what is under its pid now, a `Presence`
        - `arm` victim: has its pidfd opened and its identity checked; the next signal goes through this handle
        - `signal` victim, signum: checks the identity once more, then sends it once; a `Delivery`
        - `act` step, kind, name, asked: `fault.host_faults.run_step`
        - `watch` seconds and victim, or kind, name, asked: starts a watchdog, if none stands for the victim already
        - `release` victim: ends its watchdog; the victim was continued
        - `record` step: `fault.host_recorder.run_step`
        """
        return self._can[do](**fields)

    def close(self) -> None:
        """Nothing: it has no connection."""

    def _arm(self, victim: ProcessIdentity) -> None:
        """Without pidfds, or when the victim is gone, nothing is armed."""
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
        """Raises IdentityMismatch or SignalRefused; then nothing was sent."""
        try:
            if (armed := self._armed.get(_key(victim))) is not None:
                try:
                    # Readable means ended. A zombie would take the signal, too, and nothing would have been hit.
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
            raise SignalRefused(f"pid: {name} to {victim} is refused: {error.strerror}; run as its owner") from None
        return Delivery.SENT

    def _watch(self, seconds: float, victim: ProcessIdentity | None = None, **act: Any) -> None:
        if victim is None:
            self._start_watchdog({"seconds": seconds, **act})
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
    both = before.keys() & after.keys()
    return [one for one in candidates if one in both and after[one].run_ns - before[one].run_ns >= BUSY_NS]


def _probe(victim: ProcessIdentity) -> Presence:
    live = read_process(victim.pid)
    if live is None:
        return Presence.GONE
    try:
        require_same(victim, live, by_ticks=True)
    except IdentityMismatch as mismatch:
        # A process whose memory is being torn down has no command line left, but is no stranger.
        if mismatch.part in ("token", "role") and not live.command:
            return Presence.ALIVE
        return Presence.OTHER
    return Presence.STOPPED if live.is_stopped else Presence.ALIVE


def _key(victim: ProcessIdentity) -> tuple[int, int | None, float]:
    return victim.pid, victim.start_ticks, victim.create_time


def _check(victim: ProcessIdentity, live: LiveProcess, signum: int) -> None:
    """Raises IdentityMismatch. A role that is marked through another process is traced back to it again."""
    # The guard over existing cannot know the pids of this host.
    if victim.pid in own_ancestry():
        raise IdentityMismatch(victim.pid, "pid", "it is the agent that was to signal it, or an ancestor of it")
    if victim.role.parent_role is None or signum == signal.SIGCONT:
        # SIGCONT heals what was proven to be the run's when it was stopped; its ancestors may have died since.
        require_same(victim, live, by_ticks=signum == signal.SIGCONT)
    else:
        require_match(victim, live, tuple(read_ancestors(live, until=ROLES[victim.role.parent_role])))


def reply_to(handler: Handler, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; an error is one, too."""
    number = asked.pop("n", None)
    try:
        return {"n": number, "value": handler.ask(**asked)}
    except Exception as error:
        return {"n": number, "error": error_as_json(error)}


def serve(asks: BinaryIO, answers: BinaryIO) -> None:
    """Answers until nobody asks any more."""
    handler = Handler(watchdog.fork_watchdog)
    for line in iter(asks.readline, b""):
        if not line.endswith(b"\n"):
            break  # cut off on its way: it was not all said
        answers.write(to_line(reply_to(handler, from_line(line))))
        answers.flush()
