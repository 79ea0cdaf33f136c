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
from faultline.system.measured_window import NS


@dataclass(frozen=True)
class Bounds:
    """A recovery known to lie in [low, high] seconds; `high` is None if censored.

    `number`: of its injection, from 1.
    """

    number: int
    low: float
    high: float | None

    @property
    def middle(self) -> float:
        """The middle, or where it was not seen to end the last instant at which it was known not to be over."""
        return self.low if self.high is None else (self.low + self.high) / 2


def is_repeated(config: Mapping[str, Any]) -> bool:
    """Return whether runs of this configuration inject one fault several times; other plans have several faults."""
    injections = config.get("injections")
    return isinstance(injections, int) and injections > 1


def bounds_of_part(part: RecoveryPart) -> tuple[float, float | None] | None:
    """Return lower and upper end of one recovery, in seconds; None where nothing is known of it."""
    if part.macro_s is not None:
        return max(0.0, part.macro_s - (part.resolution_s or 0.0)), part.macro_s
    if part.recovered is False and part.censored_at_s is not None:
        return part.censored_at_s, None
    return None


def recoveries_of(record: Record) -> tuple[Bounds, ...]:
    """Return the recoveries of a run with several injections, in their order; none for any other record."""
    if not record.is_usable or not is_repeated(record.config):
        return ()
    found = []
    for number, part in enumerate(record.metrics.recoveries, start=1):
        if (ends := bounds_of_part(part)) is not None:
            found.append(Bounds(number, *ends))
    return tuple(found)


def value_of_run(ends: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """Return the value of a run, as the ends between which it lies: medians of the lower and of the upper ends.

    `ends`: of its recoveries, one at least, in any order.
    """
    low = statistics.median(one for one, _ in ends)
    high = statistics.median(math.inf if one is None else one for _, one in ends)
    return low, None if math.isinf(high) else high


def window_of(record: Record) -> tuple[float, float] | None:
    """Return t0 (seconds since the epoch) and length of the measured window (seconds); None if not measured."""
    at = {one.name: one.wall_ns for one in record.timeline}
    if not {"gate", "measured_from", "measured_until"} <= at.keys():
        return None
    return at["gate"] / NS, (at["measured_until"] - at["measured_from"]) / NS


def spacing_of(record: Record) -> float | None:
    """Return mean time from one injection of a run to the next, in seconds; None for a run with less than two."""
    struck = sorted(one.wall_ns for one in record.timeline if one.name.partition("#")[0] == "t0")
    if not is_repeated(record.config) or len(struck) < 2:
        return None
    return (struck[-1] - struck[0]) / NS / (len(struck) - 1)


# What one run says of a recovery: the median of its injections, which are not independent of each other.


# Which of them it was, and what belongs to that one alone: a run has none of it.
OF_ONE = ("injection", "at_s", "trigger", "note")
# Parts that end with an instant that a watch may be too short for: of a recovery that was not seen to end, one that is
# missing is longer than any.
_OPEN = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s", "catchup_s")
_BOUNDED = ("recovered", "macro_s", "censored_at_s", "resolution_s")


def run_value(recoveries: Sequence[RecoveryPart]) -> RecoveryPart:
    """Return the value of a run: each figure the median over its recoveries, of those that have one.

    A recovery is known to lie in an interval, and one that was not seen to end is open above, so the lower ends and the
    upper ends have a median each: recovered is a run of which the median is. A single recovery is its own value.
    """
    counted = [one for one in recoveries if one.recovered is not None]
    if len(counted) < 2:
        return (counted or [*recoveries, RecoveryPart.empty()])[0].model_copy(update=dict.fromkeys(OF_ONE))
    low, high = (statistics.median(ends) for ends in zip(*map(_ends, counted), strict=True))
    seen = math.isfinite(high)
    figures = {name: _median(name, counted) for name in RecoveryPart.model_fields if name not in (*OF_ONE, *_BOUNDED)}
    ends = (seen, *((high, None, high - low) if seen else (None, low, None)))
    return RecoveryPart.model_validate(figures | dict(zip(_BOUNDED, ends, strict=True)))


def _ends(one: RecoveryPart) -> tuple[float, float]:
    """Return the least and the largest that a recovery may have taken."""
    if one.macro_s is None:
        return one.censored_at_s or 0.0, math.inf
    return max(0.0, one.macro_s - (one.resolution_s or 0.0)), one.macro_s


def _median(name: str, counted: Sequence[RecoveryPart]) -> float | None:
    values = [getattr(one, name) for one in counted]
    missing = [math.inf for one in counted if name in _OPEN and one.recovered is False and getattr(one, name) is None]
    known = [value for value in values if value is not None] + missing
    found = statistics.median(known) if known else math.inf
    return found if math.isfinite(found) else None
