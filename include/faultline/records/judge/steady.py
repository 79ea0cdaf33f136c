"""Rules for steady signals, for a sustained rate, for change points of the latency, and for recovery thresholds.

The fault scheduler applies the same rules during a run, so this module imports nothing heavier than numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Largest drift of a steady baseline, as a share of the signal's level.
STEADY_SHARE = 0.25
# Smallest number of values for a drift.
MIN_DRIFT_VALUES = 4
# Assumed correlation of successive commits; conservative, since in 85 runs its median was -0.07 for latency and -0.15
# for lag.
AUTOCORRELATION = 0.2
# Half width of the central 90 % of a normal distribution, in standard deviations.
Z_90 = 1.6449
# A rate is sustained if lag is shown to grow by at most this share of it.
SUSTAINED_SHARE = 0.01
# Penalty of a change point, in units of the variance of a value times the logarithm of the number of values.
CHANGE_PENALTY = 4.0
# Smallest number of values of a level between two change points.
MIN_LEVEL_VALUES = 3
MIN_HOLD_S = 10.0
# Shortest H in checkpoint intervals, and in mean gaps between results.
HOLD_INTERVALS = 3
HOLD_RESULTS = 3
# Smallest margin of a threshold above the baseline, in checkpoint intervals, because batches may start late.
MIN_MARGIN_INTERVALS = 0.1
# Share of the stability window H, in tuples or time, that must be within the threshold.
MIN_HELD_SHARE = 0.95


@dataclass(frozen=True)
class Drift:
    """Change of a signal over the examined time, as a share of its level, with its 90 % interval [low, high]."""

    share: float
    low: float
    high: float

    @property
    def steady(self) -> bool:
        """True if the whole interval lies within ± STEADY_SHARE."""
        return -STEADY_SHARE <= self.low and self.high <= STEADY_SHARE


def drift_interval(times_s: Floats, values: Floats, level: float) -> Drift | None:
    """Return the change of `values` from the first to the last time, as a share of `level`, with its 90 % interval.

    The slope is the median of the slopes between all pairs of points (H. Theil 1950). Its interval is that of P. K. Sen
    (1968): the slopes at the ranks that Kendall's S allows, widened for AUTOCORRELATION. (With ten values, the 90 %
    interval of a block bootstrap covers the true slope in only 62 to 76 % of cases; this one in 88 to 97 %.)
    NaN are omitted. None for fewer than MIN_DRIFT_VALUES values, and for a level of 0 or less.
    """
    is_known = ~np.isnan(values)
    times, y = times_s[is_known], values[is_known]
    n = len(y)
    if n < MIN_DRIFT_VALUES or level <= 0 or float(np.ptp(times)) == 0:
        return None
    first, second = np.triu_indices(n, 1)
    gaps = times[second] - times[first]
    slopes = np.sort((y[second] - y[first])[gaps > 0] / gaps[gaps > 0])
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * (1 + AUTOCORRELATION) / (1 - AUTOCORRELATION))
    half_width = min(Z_90 * deviation, len(slopes)) / 2
    low, high = math.floor(len(slopes) / 2 - half_width), math.ceil(len(slopes) / 2 + half_width)
    slope_and_bounds = np.array([np.median(slopes), slopes[max(low, 0)], slopes[min(high, len(slopes) - 1)]])
    return Drift(*(slope_and_bounds * float(np.ptp(times)) / level).tolist())


def drifts_of(
    times_s: Floats, latency_ms: Floats, lag: Floats, *, checkpoint_interval_s: float, offered_rps: float
) -> dict[str, Drift | None]:
    """Return the drift of `latency` and `lag` over a baseline of commits at `times_s`; empty without commits.

    Each drift is a share of the median signal or of one checkpoint interval (for lag: the records due in it), whichever
    is larger. Otherwise a batch that takes 0.1 s longer could double the small lag after a commit, without effect on a
    recovery. `latency_ms`: NaN without identified tuples. `checkpoint_interval_s`: nominal time between commits.
    `offered_rps`: scheduled rate in records/s.
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
    """Return whether latency and lag are both shown to be steady, and their drifts. Arguments are those of `drifts_of`.

    Latency without any value is ignored, because outputs of some workloads do not identify their input. A signal with
    too few values is not steady.
    """
    drifts = drifts_of(times_s, latency_ms, lag, checkpoint_interval_s=checkpoint_interval_s, offered_rps=offered_rps)
    has_values = {"latency": not np.isnan(latency_ms).all(), "lag": True}
    return bool(drifts) and all(
        drift is not None and drift.steady for name, drift in drifts.items() if has_values[name]
    ), drifts


def unsteady(drifts: Mapping[str, Drift | None]) -> str | None:
    """Describe the signals that are not shown to be steady in the baseline window; None if all are."""
    moved = [
        f"{name} moved by {drift.share:+.0%} ({drift.low:+.0%} to {drift.high:+.0%})"
        for name, drift in drifts.items()
        if drift is not None and not drift.steady
    ]
    return f"{', '.join(moved)} before the fault, and not surely within {STEADY_SHARE:.0%}" if moved else None


def trailing_lengths(min_commits: int, commits: int) -> list[int]:
    """Return the numbers of last commits to examine: from `min_commits` to `commits`, each √2 times the previous one.

    The ratio keeps the number of tests small. Empty if `commits` is below `min_commits`.
    """
    lengths: list[int] = []
    while (length := round(min_commits * 2 ** (len(lengths) / 2))) <= commits and min_commits > 0:
        lengths.append(length)
    return lengths


def steady_stretch(
    times_s: Floats,
    latency_ms: Floats,
    lag: Floats,
    *,
    min_commits: int,
    checkpoint_interval_s: float,
    offered_rps: float,
) -> tuple[int, dict[str, Drift | None]]:
    """Return the length of the shortest steady stretch of last commits, at least `min_commits`, and its drifts.

    Without a steady stretch, returns 0 and the drifts of the last `min_commits`. Six commits that vary by 5 % cannot be
    shown to be steady, but more can; a real drift only grows with the stretch.
    """
    first_drifts: dict[str, Drift | None] = {}
    for length in trailing_lengths(min_commits, len(lag)):
        steady, drifts = is_steady(
            times_s[-length:],
            latency_ms[-length:],
            lag[-length:],
            checkpoint_interval_s=checkpoint_interval_s,
            offered_rps=offered_rps,
        )
        if steady:
            return length, drifts
        first_drifts = first_drifts or drifts
    return 0, first_drifts


def slope_interval(times_s: Floats, values: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of the least-squares slope of `values` over time; None for fewer than 3 points."""
    n = len(times_s)
    if n < 3 or float(np.ptp(times_s)) == 0:
        return None
    from scipy.special import stdtrit  # Importing takes 0.5 s, and the fault scheduler does not need it.

    x, y = times_s - times_s.mean(), values - values.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residuals = y - slope * x
    half_width = float(stdtrit(n - 2, 0.975)) * math.sqrt(float(residuals @ residuals) / (n - 2) / spread)
    return slope - half_width, slope + half_width


def sustained(growth: tuple[float, float] | None, rate: float) -> bool | None:
    """Return whether the engine sustains `rate` (records/s), i.e. lag grows by at most 1 % of it; None if inconclusive.

    `growth`: 95 % interval of the lag slope in records/s; None if unknown.
    """
    if growth is None or rate <= 0:
        return None
    low, high = growth
    return True if high <= SUSTAINED_SHARE * rate else False if low > SUSTAINED_SHARE * rate else None


def level_starts(values: npt.NDArray[np.float64], least: int = MIN_LEVEL_VALUES) -> list[int]:
    """Return the change points of a series: the indices at which a new level starts, ascending.

    Least-squares segmentation with a penalty per change point (PELT, Killick and others 2012). The variance is
    estimated from successive differences, so a change point does not count as noise. Returns no change points for
    values that are not finite, and for fewer than `2 * least` values.
    """
    if len(values) < 2 * least or not np.isfinite(values).all():
        return []
    import ruptures  # Importing takes 0.5 s, and few callers need it.

    steps = np.diff(values)
    deviation = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    penalty = CHANGE_PENALTY * math.log(len(values)) * max(deviation, 1e-9 * float(np.abs(values).max())) ** 2
    ends: list[int] = ruptures.Pelt(model="l2", min_size=least, jump=1).fit(values).predict(pen=penalty)
    return ends[:-1]


@dataclass(frozen=True)
class Limits:
    """Recovery thresholds.

    `latency_ms` is L*, `lag` is lag* in records, `hold_s` is the stability window H. `baseline_p99_ms`: latency of the
    tuples before the fault. Both latencies are None if outputs do not identify their input; lag alone then decides.
    """

    latency_ms: float | None
    lag: float
    hold_s: float
    baseline_p99_ms: float | None


def limits_from(
    baseline_p99_ms: float | None,
    largest_lag: float,
    *,
    checkpoint_interval_s: float,
    rate: float,
    spacing_s: float,
    within: float,
) -> Limits:
    """Return the thresholds L* and lag* and the stability window H.

    `largest_lag`: in the baseline. `rate`: in records/s. `spacing_s`: mean gap between results due; may be infinite.
    `within`: margin as a share of the baseline.
    """
    min_margin_s = MIN_MARGIN_INTERVALS * checkpoint_interval_s
    results_hold_s = HOLD_RESULTS * spacing_s if math.isfinite(spacing_s) else 0.0
    return Limits(
        latency_ms=None
        if baseline_p99_ms is None
        else max((1 + within) * baseline_p99_ms, baseline_p99_ms + 1000 * min_margin_s),
        lag=max((1 + within) * largest_lag, largest_lag + min_margin_s * rate),
        hold_s=max(MIN_HOLD_S, HOLD_INTERVALS * checkpoint_interval_s, results_hold_s),
        baseline_p99_ms=baseline_p99_ms,
    )
