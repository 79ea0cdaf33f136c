"""Simulated clock and simulated host: experiments without real time."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest

from fault.identity import EXECUTOR, Delivery, Presence, ProcessIdentity, to_line


class FakeClock:
    """Replacement for the clocks and sleep of `time`, for one thread.

    Each read advances the clock by a microsecond, so that busy loops end. An action that `at` schedules runs when
    `sleep` reaches its time.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.mono_ns, self.ahead_ns = 10**12, 1_770_000_000 * 10**9
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._count = itertools.count()
        patch.setattr(time, "monotonic_ns", self._look)
        patch.setattr(time, "time_ns", lambda: self._look() + self.ahead_ns)
        patch.setattr(time, "monotonic", lambda: self._look() / 1e9)
        patch.setattr(time, "time", lambda: (self._look() + self.ahead_ns) / 1e9)
        patch.setattr(time, "sleep", self.sleep)

    def _look(self) -> int:
        self.mono_ns += 1000
        return self.mono_ns

    def at(self, mono_ns: int, act: Callable[[], object]) -> None:
        """Schedule `act` for a time of the monotonic clock."""
        self._due.append((mono_ns, next(self._count), act))

    def sleep(self, seconds: float) -> None:
        until = self.mono_ns + round(seconds * 1e9)
        while self._due and min(self._due)[0] <= until:
            self._due.remove(first := min(self._due))
            self.mono_ns = max(self.mono_ns, first[0])
            first[2]()
        self.mono_ns = max(self.mono_ns, until)


def executor_of(run: str, number: int) -> ProcessIdentity:
    """Return an executor with a pid above the maximum of any machine."""
    command = (f"-Dfaultline.run={run}", EXECUTOR.main, "--executor-id", str(number))
    return ProcessIdentity(4_194_400 + number, 1.0, EXECUTOR, run, command, number)


@dataclass(frozen=True)
class Moment:
    """An instant, as passed to injections."""

    wall_ns: int = 7
    mono_ns: int = 5_000


@dataclass
class SimulatedHost:
    """Channel to a simulated host, whose processes obey signals.

    `before`: called with each request; a result other than None replaces the answer. `asked`: all requests, those for
    host faults under the name of their step. `effective`: whether host faults take effect.
    """

    states: dict[ProcessIdentity, Presence] = field(default_factory=dict)
    before: Callable[[str, dict[str, Any]], object] = lambda do, fields: None
    effective: bool = True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    watched: dict[int, float] = field(default_factory=dict)
    acts: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, *victims: ProcessIdentity) -> Self:
        made = cls()
        made.start(*victims)
        return made

    def start(self, *victims: ProcessIdentity) -> None:
        self.states |= dict.fromkeys(victims, Presence.ALIVE)

    def end(self, *victims: ProcessIdentity) -> None:
        self.states |= dict.fromkeys(victims, Presence.GONE)

    def times(self, do: str) -> int:
        return sum(one == do for one, _ in self.asked)

    def ask(self, do: str, **fields: Any) -> Any:
        do = fields.pop("step", do)
        to_line(fields)  # raises if it cannot be sent
        self.asked.append((do, fields))
        if (answer := self.before(do, fields)) is not None:
            return answer
        victim = fields.get("victim")
        match do:
            case "find":
                living = [one for one, state in self.states.items() if state is not Presence.GONE]
                return [one for one in living if victim in (one.role.name, "any")]
            case "probe":
                return self._state(victim)
            case "watch" if victim is not None:
                self.watched.setdefault(victim.pid, fields["seconds"])
            case "release":
                self.watched.pop(victim.pid, None)
            case "signal" if self._state(victim) is Presence.GONE:
                return Delivery.GONE
            case "signal":
                signum = fields["signum"]
                assert signum != signal.SIGSTOP or victim.pid in self.watched, "no watchdog would continue it"
                self.sent.append((victim.pid, signum))
                change = {signal.SIGSTOP: Presence.STOPPED, signal.SIGCONT: Presence.ALIVE}
                self.states[replace(victim, host="")] = change.get(signum, Presence.GONE)
                return Delivery.SENT
            case _:
                return self._act(do, fields.get("name", ""))
        return None

    def _act(self, step: str, name: str) -> bool | None:
        if step == "do" and self.effective:
            self.acts.add(name)
        if step == "undo":
            self.acts.discard(name)
        return name in self.acts if step == "is_active" else None

    def _state(self, victim: ProcessIdentity) -> Presence:
        return self.states[replace(victim, host="")]

    def close(self) -> None:
        """Do nothing: there is no connection."""
