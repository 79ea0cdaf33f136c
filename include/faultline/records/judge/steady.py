"""When an engine is steady, when it keeps up, where its latency changes level, and what counts as recovered.

The conductor applies the same rules while a run lasts, so nothing heavier than numpy is imported with this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# A drift up to here, of what it is a share of, leaves a baseline steady.
STEADY_SHARE = 0.25
# Least number of values for a drift.
FEWEST = 4
# How alike successive commits may be: their correlation. In 85 runs it was about 0 (median -0.07 of the latency, -0.15
# of the lag), and this is on the safe side of it.
NEIGHBOURS = 0.2
# Half width of the central 90 % of a normal distribution, in standard deviations.
NINETY = 1.6449
# An engine keeps up when its lag is shown to grow by no more than this share of the rate.
SUSTAINED_SHARE = 0.01
# Price of a change, in variances of a value times the logarithm of their number.
PRICE = 4.0
# Values that a level must last.
LEAST = 3
SHORTEST_HOLD_S = 10.0
HOLD_INTERVALS = 3
HOLD_RESULTS = 3
# Least margin of a threshold above the baseline, as a share of an interval: a batch may start that much later.
SLACK_INTERVALS = 0.1
# The share of H, of its tuples or of its time, that must be within the bound.
HELD_SHARE = 0.95


@dataclass(frozen=True)
class Drift:
    """A move over the time that was looked at, as a share, between the ends of its 90 % interval."""

    share: float
    low: float
    high: float

    @property
    def steady(self) -> bool:
        """True if the whole interval of the drift is small."""
        return -STEADY_SHARE <= self.low and self.high <= STEADY_SHARE


def drift_interval(times_s: Floats, values: Floats, level: float) -> Drift | None:
    """Return the change of the values from first to last time, as a share of `level`, with its 90 % interval.

    The slope is the median of the slopes between all pairs of points (H. Theil 1950). Its interval is that of P. K. Sen
    (1968): the slopes at the ranks that Kendall's S allows, widened for autocorrelation by NEIGHBOURS. (The 90 %
    interval of a block bootstrap covers the truth in only 62 to 76 % of cases with ten values; this one in 88 to 97 %.)
    NaN are omitted. None for fewer than FEWEST values, and for a level that is not above 0.
    """
    known = ~np.isnan(values)
    times, y = times_s[known], values[known]
    n = len(y)
    if n < FEWEST or level <= 0 or float(np.ptp(times)) == 0:
        return None
    first, second = np.triu_indices(n, 1)
    apart = times[second] - times[first]
    slopes = np.sort((y[second] - y[first])[apart > 0] / apart[apart > 0])
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * (1 + NEIGHBOURS) / (1 - NEIGHBOURS))
    half_width = min(NINETY * deviation, len(slopes)) / 2
    low, high = math.floor(len(slopes) / 2 - half_width), math.ceil(len(slopes) / 2 + half_width)
    moved = np.array([np.median(slopes), slopes[max(low, 0)], slopes[min(high, len(slopes) - 1)]])
    return Drift(*(moved * float(np.ptp(times)) / level).tolist())


def drifts_of(
    times_s: Floats, latency_ms: Floats, lag: Floats, *, checkpoint_interval_s: float, offered_rps: float
) -> dict[str, Drift | None]:
    """Return the drift of `latency` and `lag` over a baseline of commits at `times_s`; empty without commits.

    Each is a share of its own level or of an interval's worth, whichever is larger: right after a commit lag is small,
    so a batch that takes 0.1 s longer would double it, without effect on a recovery. `latency_ms`: NaN without
    identified tuples. `checkpoint_interval_s`: nominal time between commits. `offered_rps`: scheduled rate in
    records/s.
    """
    if not len(lag):
        return {}
    known = latency_ms[~np.isnan(latency_ms)]
    levels = (
        max(float(np.median(known)) if len(known) else 0.0, 1000 * checkpoint_interval_s),
        max(float(np.median(lag)), offered_rps * checkpoint_interval_s),
    )
    return {
        name: drift_interval(times_s, values, level)
        for name, values, level in zip(("latency", "lag"), (latency_ms, lag), levels, strict=True)
    }


def is_steady(
    times_s: Floats, latency_ms: Floats, lag: Floats, *, checkpoint_interval_s: float, offered_rps: float
) -> tuple[bool, dict[str, Drift | None]]:
    """Return whether latency and lag are both shown to stay where they are, and their drifts; as `drifts_of`.

    A signal without any value is ignored: outputs of some workloads do not identify their input. Too few
    values show nothing, so they are not steady.
    """
    drifts = drifts_of(times_s, latency_ms, lag, checkpoint_interval_s=checkpoint_interval_s, offered_rps=offered_rps)
    seen = {"latency": not np.isnan(latency_ms).all(), "lag": True}
    return bool(drifts) and all(
        drift is not None and drift.steady for name, drift in drifts.items() if seen[name]
    ), drifts


def unsteady(drifts: Mapping[str, Drift | None]) -> str | None:
    """Return the signals that may have moved in the baseline window, with their drift, or None."""
    moved = [
        f"{name} moved by {drift.share:+.0%} ({drift.low:+.0%} to {drift.high:+.0%})"
        for name, drift in drifts.items()
        if drift is not None and not drift.steady
    ]
    return f"{', '.join(moved)} before the fault, and not surely within {STEADY_SHARE:.0%}" if moved else None


def trailing_lengths(fewest: int, commits: int) -> list[int]:
    """Return the numbers of trailing commits to examine: `fewest`, then half as many again for each further try.

    The ratio is the root of two, so that few are tried. Empty if there are fewer than `fewest`.
    """
    lengths: list[int] = []
    while (length := round(fewest * 2 ** (len(lengths) / 2))) <= commits and fewest > 0:
        lengths.append(length)
    return lengths


def steady_stretch(
    times_s: Floats, latency_ms: Floats, lag: Floats, *, fewest: int, checkpoint_interval_s: float, offered_rps: float
) -> tuple[int, dict[str, Drift | None]]:
    """Return the shortest stretch of last commits, of `fewest` or more, over which the rule of `is_steady` holds.

    Gives its commits and its drifts; 0 and the drifts of the last `fewest` where it holds over none. Six commits that
    scatter by a twentieth cannot show that they are steady; more can, and a drift over a longer stretch is only larger.
    """
    found: dict[str, Drift | None] = {}
    for length in trailing_lengths(fewest, len(lag)):
        steady, drifts = is_steady(
            times_s[-length:],
            latency_ms[-length:],
            lag[-length:],
            checkpoint_interval_s=checkpoint_interval_s,
            offered_rps=offered_rps,
        )
        if steady:
            return length, drifts
        found = found or drifts
    return 0, found


def slope_interval(times_s: Floats, values: Floats) -> tuple[float, float] | None:
    """Return 95 % interval of the least-squares slope of `values` over time; None for fewer than 3 points."""
    n = len(times_s)
    if n < 3 or float(np.ptp(times_s)) == 0:
        return None
    from scipy.special import stdtrit  # Student's quantiles: half a second that the conductor does not need

    x, y = times_s - times_s.mean(), values - values.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    rest = y - slope * x
    half = float(stdtrit(n - 2, 0.975)) * math.sqrt(float(rest @ rest) / (n - 2) / spread)
    return slope - half, slope + half


def sustained(growth: tuple[float, float] | None, rate: float) -> bool | None:
    """Return whether the engine is shown to keep up with `rate` (records/s): lag that grows by no more than 1 % of it.

    `growth`: the 95 % interval of the lag's slope in records/s. False: it is shown not to. None: inconclusive.
    """
    if growth is None or rate <= 0:
        return None
    low, high = growth
    return True if high <= SUSTAINED_SHARE * rate else False if low > SUSTAINED_SHARE * rate else None


def level_begins(values: npt.NDArray[np.float64], least: int = LEAST) -> list[int]:
    """Return indices of the values with which a new level begins, ascending; none in a series without a change.

    Segments by least squares with a price for each (PELT, Killick and others 2012). The variance is that of a value
    against the one before it, so that a change of level does not count as noise. None for values that are not finite,
    and for fewer than twice `least`.
    """
    if len(values) < 2 * least or not np.isfinite(values).all():
        return []
    import ruptures  # half a second that only few need

    steps = np.diff(values)
    deviation = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    price = PRICE * math.log(len(values)) * max(deviation, 1e-9 * float(np.abs(values).max())) ** 2
    ends: list[int] = ruptures.Pelt(model="l2", min_size=least, jump=1).fit(values).predict(pen=price)
    return ends[:-1]


@dataclass(frozen=True)
class Limits:
    """Recovery thresholds.

    `latency_ms` is L*, `lag` is lag* in records, `hold_s` is H. `baseline_p99_ms`: of the tuples before the fault. Both
    latencies are None if outputs do not identify their input; lag alone then decides.
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
    """Return l*, lag* and H. `rate`: records due in a second. `spacing_s`: between two results that are due."""
    slack_s = SLACK_INTERVALS * checkpoint_interval_s
    longest = HOLD_RESULTS * spacing_s if math.isfinite(spacing_s) else 0.0
    return Limits(
        latency_ms=None if highest_ms is None else max((1 + within) * highest_ms, highest_ms + 1000 * slack_s),
        lag=max((1 + within) * largest_lag, largest_lag + slack_s * rate),
        hold_s=max(SHORTEST_HOLD_S, HOLD_INTERVALS * checkpoint_interval_s, longest),
        baseline_p99_ms=highest_ms,
    )
