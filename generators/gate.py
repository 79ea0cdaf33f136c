"""The gate: a file whose appearance starts the schedule, and what may end a generator before its time."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from generators.errors import GeneratorError

POLL_S = 0.005


class Stopped(GeneratorError):
    """The generator was asked to end, or lost its parent."""


class StopSwitch:
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

    def watch_present_parent(self) -> None:
        """The same of the present parent, unless one is watched already."""
        if not self._parent:
            self.watch_parent()

    def pull(self, reason: str) -> None:
        """Asks to stop."""
        self._reason = self._reason or reason

    def _on_signal(self, number: int, _frame: object) -> None:
        self.pull(f"stopped by {signal.Signals(number).name}")

    def pulled(self) -> bool:
        """Whether to stop."""
        if self._parent and os.getppid() != self._parent:
            self.pull(f"the parent process {self._parent} died")
        return bool(self._reason)

    def check(self) -> None:
        """Raises Stopped with the reason when it is time to stop."""
        if self.pulled():
            raise Stopped(self._reason)


@dataclass(frozen=True)
class Start:
    """T0 on both clocks, in nanoseconds."""

    wall_ns: int
    mono_ns: int


def await_gate(path: Path, stop: StopSwitch) -> Start:
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
            return Start(int(instants["t0_wall_ns"]), int(instants["t0_mono_ns"]))
        except (ValueError, TypeError, KeyError) as error:
            raise GeneratorError(f"gate {path}: needs t0_wall_ns and t0_mono_ns ({error!r})") from None
