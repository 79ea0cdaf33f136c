"""How far somebody else's clock is off, by the times that it gave to what was made while this machine looked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Against this machine's, in ms: it is so far ahead, give or take."""

    ahead_ms: float
    uncertain_ms: float

    def __str__(self) -> str:
        return f"its clock is {self.ahead_ms:+.1f} ms off this one's, give or take {self.uncertain_ms:.1f} ms"

    def is_off(self, by_ms: float) -> bool:
        """Whether it is off by more, for certain."""
        return abs(self.ahead_ms) - self.uncertain_ms > by_ms


def clock_of(looks: Iterable[tuple[float, float, float]], coarse_ms: float) -> Clock:
    """From the look that took the shortest time. `looks`: this machine's time before and after, and the time that was
    given meanwhile, in ms; `coarse_ms`: how coarse that one is, being the last tick before."""
    before, after, given = min(looks, key=lambda one: one[1] - one[0])
    return Clock(given + coarse_ms / 2 - (before + after) / 2, (after - before) / 2 + coarse_ms / 2)


def clock_of_all(clocks: Iterable[Clock]) -> Clock:
    """Of servers each of which gives the time for a part: whatever any of their clocks may be is within it."""
    known = list(clocks)
    least = min(one.ahead_ms - one.uncertain_ms for one in known)
    most = max(one.ahead_ms + one.uncertain_ms for one in known)
    return Clock((least + most) / 2, (most - least) / 2)
