"""Recoveries of a run that injects one fault several times, each as an interval in seconds.

They depend on each other, so comparisons use one value per run: the median of the lower bounds and the median of the
upper bounds, where the upper bound of a censored recovery is infinite. `metrics.recovery` of the record holds it. If
the median upper bound is finite, it is `macro_s`, and `resolution_s` its distance from the median lower bound.
Otherwise `recovered` is false, and `censored_at_s` is the median lower bound.
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
    """Recovery of the `number`-th injection, from 1: between `low` and `high` seconds; `high` is None if censored."""

    number: int
    low: float
    high: float | None

    @property
    def middle(self) -> float:
        """Mean of both bounds, or the lower bound if censored."""
        return self.low if self.high is None else (self.low + self.high) / 2


def is_repeated(config: Mapping[str, Any]) -> bool:
    """Return whether runs of this configuration inject one fault several times, unlike a plan of several faults."""
    injections = config.get("injections")
    return isinstance(injections, int) and injections > 1


def bounds_of_part(part: RecoveryPart) -> tuple[float, float | None] | None:
    """Return lower and upper bound of a recovery in s (upper: None if censored), or None if both are unknown."""
    if part.macro_s is not None:
        return max(0.0, part.macro_s - (part.resolution_s or 0.0)), part.macro_s
    if part.recovered is False and part.censored_at_s is not None:
        return part.censored_at_s, None
    return None


def recoveries_of(record: Record) -> tuple[Bounds, ...]:
    """Return the recoveries of a run with several injections of one fault, in order; empty for any other record."""
    if not record.is_usable or not is_repeated(record.config):
        return ()
    found = []
    for number, part in enumerate(record.metrics.recoveries, start=1):
        if (bounds := bounds_of_part(part)) is not None:
            found.append(Bounds(number, *bounds))
    return tuple(found)


def value_of_run(bounds: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """Return the median lower bound and the median upper bound of a run's recoveries, which must not be empty."""
    low = statistics.median(lower for lower, _ in bounds)
    high = statistics.median(math.inf if upper is None else upper for _, upper in bounds)
    return low, None if math.isinf(high) else high


def window_of(record: Record) -> tuple[float, float] | None:
    """Return T0 (s since the epoch) and the length of the measured window (s), or None if not measured."""
    at = {event.name: event.wall_ns for event in record.timeline}
    if not {"gate", "measured_from", "measured_until"} <= at.keys():
        return None
    return at["gate"] / NS, (at["measured_until"] - at["measured_from"]) / NS


def spacing_of(record: Record) -> float | None:
    """Return the mean time between two injections of a run, in s; None for a run with fewer than two."""
    injected_ns = sorted(event.wall_ns for event in record.timeline if event.name.partition("#")[0] == "t0")
    if not is_repeated(record.config) or len(injected_ns) < 2:
        return None
    return (injected_ns[-1] - injected_ns[0]) / NS / (len(injected_ns) - 1)


# Keys of a single injection, null in the value of a run.
OF_ONE = ("injection", "at_s", "trigger", "note")
# Parts whose last instant may lie after the end of the run: a missing one of a censored recovery counts as infinite.
_OPEN = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s", "catchup_s")
_BOUNDED = ("recovered", "macro_s", "censored_at_s", "resolution_s")


def run_value(recoveries: Sequence[RecoveryPart]) -> RecoveryPart:
    """Return the value of a run: each figure is the median over the recoveries that have it.

    Lower and upper bounds have separate medians, and a censored recovery has an infinite upper bound; the run counts as
    recovered if the median upper bound is finite. A single recovery is its own value.
    """
    counted = [one for one in recoveries if one.recovered is not None]
    if len(counted) < 2:
        return (counted or [*recoveries, RecoveryPart.empty()])[0].model_copy(update=dict.fromkeys(OF_ONE))
    low, high = (statistics.median(values) for values in zip(*map(_bounds_or_inf, counted), strict=True))
    recovered = math.isfinite(high)
    figures = {name: _median(name, counted) for name in RecoveryPart.model_fields if name not in (*OF_ONE, *_BOUNDED)}
    bounds = (recovered, *((high, None, high - low) if recovered else (None, low, None)))
    return RecoveryPart.model_validate(figures | dict(zip(_BOUNDED, bounds, strict=True)))


def _bounds_or_inf(part: RecoveryPart) -> tuple[float, float]:
    """Return the lower and upper bound of a recovery; the upper bound of a censored one is infinite."""
    if part.macro_s is None:
        return part.censored_at_s or 0.0, math.inf
    return max(0.0, part.macro_s - (part.resolution_s or 0.0)), part.macro_s


def _median(name: str, counted: Sequence[RecoveryPart]) -> float | None:
    values = [getattr(one, name) for one in counted]
    missing = [math.inf for one in counted if name in _OPEN and one.recovered is False and getattr(one, name) is None]
    known = [value for value in values if value is not None] + missing
    median = statistics.median(known) if known else math.inf
    return median if math.isfinite(median) else None
