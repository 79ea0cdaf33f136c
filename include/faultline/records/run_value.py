"""What one run says of a recovery: the median of its injections, which are not independent of each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from faultline.records.record import RecoveryPart

# Which of them it was, and what belongs to that one alone: a run has none of it.
OF_ONE = ("injection", "at_s", "trigger", "note")
# Parts that end with an instant that a watch may be too short for: of a recovery that was not seen to end, one that is
# missing is longer than any.
_OPEN = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s", "catchup_s")
_BOUNDED = ("recovered", "macro_s", "censored_at_s", "resolution_s")


def run_value(recoveries: Sequence[RecoveryPart]) -> RecoveryPart:
    """The value of a run: each figure the median over its recoveries, of those that have one.

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
    """The least and the largest that a recovery may have taken."""
    if one.macro_s is None:
        return one.censored_at_s or 0.0, math.inf
    return max(0.0, one.macro_s - (one.resolution_s or 0.0)), one.macro_s


def _median(name: str, counted: Sequence[RecoveryPart]) -> float | None:
    values = [getattr(one, name) for one in counted]
    missing = [math.inf for one in counted if name in _OPEN and one.recovered is False and getattr(one, name) is None]
    known = [value for value in values if value is not None] + missing
    found = statistics.median(known) if known else math.inf
    return found if math.isfinite(found) else None
