"""The gate: a file whose appearance starts the schedule, and what may end a generator before its time."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from generators.send_progress import GeneratorError

POLL_S = 0.005
# The file beside the gate that ends the load before its schedule does, and how often it is looked for.
LOAD_END = "load_end.json"
LOAD_END_POLL_NS = 100_000_000


class Stopped(GeneratorError):
    """The generator was asked to end, or lost its parent."""


class StopRequest:
    """Remembers a request to stop, and notices the death of the parent process."""

    def __init__(self) -> None:
        self._reason = ""
        self._parent = 0

    def install(self) -> None:
        """From now on SIGTERM and SIGINT ask to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def watch_parent(self, pid: int | None = None) -> None:
        """From now on another parent than `pid` (default: the present one) is a reason to stop.

        The present parent is taken late, at the gate: a detached process loses its first parent early, on purpose.
        """
        self._parent = os.getppid() if pid is None else pid

    def watch_current_parent(self) -> None:
        """The same of the present parent, unless one is watched already."""
        if not self._parent:
            self.watch_parent()

    def set(self, reason: str) -> None:
        """Asks to stop."""
        self._reason = self._reason or reason

    def _on_signal(self, number: int, _frame: object) -> None:
        self.set(f"stopped by {signal.Signals(number).name}")

    def is_set(self) -> bool:
        """Whether to stop."""
        if self._parent and os.getppid() != self._parent:
            self.set(f"the parent process {self._parent} died")
        return bool(self._reason)

    def check(self) -> None:
        """Raises Stopped with the reason when it is time to stop."""
        if self.is_set():
            raise Stopped(self._reason)


@dataclass(frozen=True)
class StartInstant:
    """T0 on both clocks, in nanoseconds."""

    wall_ns: int
    mono_ns: int


class LoadEnd:
    """The end of the load, as a file beside the gate gives it: `{"end_mono_ns"}`, put there by a rename."""

    def __init__(self, barrier: Path | None) -> None:
        """`gate`: its path; None for a process that cannot see it, whose load ends with the schedule."""
        self._path = None if barrier is None else barrier.with_name(LOAD_END)
        self._end_ns: int | None = None
        self._next_ns = 0

    def at_ns(self, now_ns: int) -> int | None:
        """The monotonic instant after which no record is due any more; None while there is none."""
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
    """Waits until the gate file appears (it is put there by a rename, so it is complete).

    Raises Stopped when asked to, and GeneratorError when the file is not a gate.
    """
    while True:
        stop.check()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            time.sleep(POLL_S)
            continue
        except OSError as error:
            raise GeneratorError(f"gate {path}: cannot be read: {error.strerror}") from None
        try:
            instants = json.loads(text)
            return StartInstant(int(instants["t0_wall_ns"]), int(instants["t0_mono_ns"]))
        except (ValueError, TypeError, KeyError) as error:
            raise GeneratorError(f"gate {path}: needs t0_wall_ns and t0_mono_ns ({error!r})") from None
