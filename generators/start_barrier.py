"""Start barrier: a file whose appearance starts the schedule; and early ends of a generator."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from generators.send_progress import GeneratorError

POLL_S = 0.005
# File that ends the load before its schedule, and the interval of its checks.
LOAD_END = "load_end.json"
LOAD_END_POLL_NS = 100_000_000


class Stopped(GeneratorError):
    """Stop request, or loss of the parent process."""


class StopRequest:
    """A request to stop, from a signal or the death of the parent process."""

    def __init__(self) -> None:
        self._reason = ""
        self._parent = 0

    def install(self) -> None:
        """Handle SIGTERM and SIGINT as stop requests."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def watch_parent(self, pid: int | None = None) -> None:
        """Stop once the parent process is no longer `pid` (default: the current parent).

        The current parent is read late, at the start barrier: a detached process intentionally loses its first parent
        early.
        """
        self._parent = os.getppid() if pid is None else pid

    def watch_current_parent(self) -> None:
        """Watch the current parent, unless one is watched already."""
        if not self._parent:
            self.watch_parent()

    def set(self, reason: str) -> None:
        """Request a stop."""
        self._reason = self._reason or reason

    def _on_signal(self, number: int, _frame: object) -> None:
        self.set(f"stopped by {signal.Signals(number).name}")

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        if self._parent and os.getppid() != self._parent:
            self.set(f"the parent process {self._parent} died")
        return bool(self._reason)

    def check(self) -> None:
        """Raise Stopped with the reason if a stop was requested."""
        if self.is_set():
            raise Stopped(self._reason)


@dataclass(frozen=True)
class StartInstant:
    """T0 on both clocks, in nanoseconds."""

    wall_ns: int
    mono_ns: int


class LoadEnd:
    """Early end of the load, from a file next to the barrier: `{"end_mono_ns"}`, written by a rename."""

    def __init__(self, barrier: Path | None) -> None:
        """Set the barrier's path, or None for a process that cannot see it and ends with the schedule."""
        self._path = None if barrier is None else barrier.with_name(LOAD_END)
        self._end_ns: int | None = None
        self._next_ns = 0

    def at_ns(self, now_ns: int) -> int | None:
        """Return the monotonic instant after which no record is due, or None."""
        if self._end_ns is None and self._path is not None and now_ns >= self._next_ns:
            self._next_ns = now_ns + LOAD_END_POLL_NS
            try:
                self._end_ns = int(json.loads(self._path.read_text(encoding="utf-8"))["end_mono_ns"])
            except FileNotFoundError:
                return None
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise GeneratorError(f"{self._path}: got {error!r}; expected end_mono_ns") from None
        return self._end_ns


def await_barrier(path: Path, stop: StopRequest) -> StartInstant:
    """Wait until the barrier file appears (written by a rename, so it is complete).

    Raises Stopped on a stop request, and GeneratorError for an invalid file.
    """
    while True:
        stop.check()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            time.sleep(POLL_S)
            continue
        except OSError as error:
            raise GeneratorError(f"gate {path}: read failed: {error.strerror}") from None
        try:
            instants = json.loads(text)
            return StartInstant(int(instants["t0_wall_ns"]), int(instants["t0_mono_ns"]))
        except (ValueError, TypeError, KeyError) as error:
            raise GeneratorError(f"gate {path}: got {error!r}; expected t0_wall_ns and t0_mono_ns") from None
