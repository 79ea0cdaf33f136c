"""The recoveries of one run that injects one fault several times, each as the interval that holds it.

They resemble each other, so comparisons use one value of a run: the median of its recoveries, lower and upper ends
apart. `metrics.recovery` of such a record holds it: `macro_s` is the median of the upper ends, `resolution_s` how far
the median of the lower ends lies below it, and where the median of the upper ends is infinite, `recovered` is false and
`censored_at_s` the median of the lower ends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.records.record import Record, RecoveryPart
from faultline.system.window import NS


@dataclass(frozen=True)
class Bounds:
    """A recovery known to lie in [low, high] seconds; `high` is None where it was not seen to end. `number`: of its
    injection, from 1."""

    number: int
    low: float
    high: float | None

    @property
    def middle(self) -> float:
        """The middle, or where it was not seen to end the last instant at which it was known not to be over."""
        return self.low if self.high is None else (self.low + self.high) / 2


def is_repeated(config: Mapping[str, Any]) -> bool:
    """Whether runs of this configuration inject one fault several times; other plans have several faults."""
    injections = config.get("injections")
    return isinstance(injections, int) and injections > 1


def bounds_of_part(part: RecoveryPart) -> tuple[float, float | None] | None:
    """Lower and upper end of one recovery, in seconds; None where nothing is known of it."""
    if part.macro_s is not None:
        return max(0.0, part.macro_s - (part.resolution_s or 0.0)), part.macro_s
    if part.recovered is False and part.censored_at_s is not None:
        return part.censored_at_s, None
    return None


def recoveries_of(record: Record) -> tuple[Bounds, ...]:
    """The recoveries of a run with several injections, in their order; none for any other record."""
    if not record.sound or not is_repeated(record.config):
        return ()
    found = []
    for number, part in enumerate(record.metrics.recoveries, start=1):
        if (ends := bounds_of_part(part)) is not None:
            found.append(Bounds(number, *ends))
    return tuple(found)


def value_of_run(ends: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """The value of a run, as the ends between which it lies: medians of the lower and of the upper ends.

    `ends`: of its recoveries, one at least, in any order.
    """
    low = statistics.median(one for one, _ in ends)
    high = statistics.median(math.inf if one is None else one for _, one in ends)
    return low, None if math.isinf(high) else high


def window_of(record: Record) -> tuple[float, float] | None:
    """T0 (seconds since the epoch) and the length of the measured window (seconds); None for an attempt that was not
    measured."""
    at = {one.name: one.wall_ns for one in record.timeline}
    if not {"gate", "measured_from", "measured_until"} <= at.keys():
        return None
    return at["gate"] / NS, (at["measured_until"] - at["measured_from"]) / NS


def spacing_of(record: Record) -> float | None:
    """Mean time from one injection of a run to the next, in seconds; None for a run with less than two."""
    struck = sorted(one.wall_ns for one in record.timeline if one.name.partition("#")[0] == "t0")
    if not is_repeated(record.config) or len(struck) < 2:
        return None
    return (struck[-1] - struck[0]) / NS / (len(struck) - 1)
