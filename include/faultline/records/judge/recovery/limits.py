"""Recovery limits: the largest latency and lag that count as recovered, and for how long they must hold.

Standard library only: the conductor applies the same limits while a run lasts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_HOLD_S = 10.0
HOLD_INTERVALS = 3
HOLD_RESULTS = 3
# A bound lies at least so much of an interval above what was seen: a batch may begin that much later.
SLACK_INTERVALS = 0.1
# The share of H, of its tuples or of its time, that must be within the bound.
HELD_SHARE = 0.95


@dataclass(frozen=True)
class Limits:
    """Up to where an engine counts as recovered.

    `latency_ms` is L*, `lag` is lag* in records, `hold_s` is H. `baseline_p99_ms`: of the tuples before the fault. Both
    latencies are None where no output tells what it is of: then lag alone decides.
    """

    latency_ms: float | None
    lag: float
    hold_s: float
    baseline_p99_ms: float | None


def limits_from(
    highest_ms: float | None,
    largest_lag: float,
    *,
    checkpoint_interval_s: float,
    rate: float,
    spacing_s: float,
    within: float,
) -> Limits:
    """L*, lag* and H. `rate`: records due in a second. `spacing_s`: between two results that are due."""
    slack_s = SLACK_INTERVALS * checkpoint_interval_s
    longest = HOLD_RESULTS * spacing_s if math.isfinite(spacing_s) else 0.0
    return Limits(
        latency_ms=None if highest_ms is None else max((1 + within) * highest_ms, highest_ms + 1000 * slack_s),
        lag=max((1 + within) * largest_lag, largest_lag + slack_s * rate),
        hold_s=max(SHORTEST_HOLD_S, HOLD_INTERVALS * checkpoint_interval_s, longest),
        baseline_p99_ms=highest_ms,
    )
