"""Bands: what is normal before a fault, whether it was steady, and when it is normal again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # Student's quantiles; scipy.stats would take a second to import

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Makes the median absolute deviation of a normal distribution equal to its standard deviation.
MAD_SCALE = 1.482602218505602
WIDTH_IN_MADS = 3.0
NARROWEST_SHARE = 0.05
HELD_S = 10.0
HELD_BINS = 3
STEADY_P = 0.05
# Of the bootstrap of a drift: values in a block, and how often it is drawn.
BLOCK, DRAWS, FEWEST_FOR_DRIFT = 3, 400, 4
# Up to here the distribution of Kendall's S is counted out; beyond, the normal approximation is
# closer to it than any decision at 5 % could notice.
EXACT_UP_TO = 60


@dataclass(frozen=True)
class Band:
    """median ± width, width = max(3 scaled MAD, 5 % of the median)."""

    median: float
    width: float

    @property
    def lower(self) -> float:
        """Lower bound."""
        return self.median - self.width

    @property
    def upper(self) -> float:
        """Upper bound."""
        return self.median + self.width


def band(values: Sequence[float] | Floats) -> Band | None:
    """The band of the pre-fault values; NaN values are left out; None without any value."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return None
    median = float(np.median(known))
    deviation = MAD_SCALE * float(np.median(np.abs(known - median)))
    return Band(median, max(WIDTH_IN_MADS * deviation, NARROWEST_SHARE * abs(median)))


def first_held(spans_s: Floats, inside: Bools) -> int | None:
    """Index of the first bin that begins a held run: ≥ 3 bins in band that span ≥ 10 s together.

    The event is the end of that bin. None when no run is long enough.
    """
    begin = 0
    length = 0.0
    for index, (span, good) in enumerate(zip(spans_s.tolist(), inside.tolist(), strict=True)):
        if not good:
            begin, length = index + 1, 0.0
            continue
        length += span
        if length >= HELD_S and index - begin + 1 >= HELD_BINS:
            return begin
    return None


def mann_kendall(values: Sequence[float] | Floats) -> float:
    """Two-sided p-value of the Mann-Kendall test for a monotonic trend.

    S = Σ_{i<j} sign(x_j − x_i). Without ties and up to 60 values the null distribution of S is exact
    (it counts the inversions of a random permutation); otherwise normal, with the variance corrected
    for ties and a continuity correction. Fewer than 3 values, or all equal: 1 (no evidence of a trend).
    """
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n < 3:
        return 1.0
    score = int(np.sign(x[None, :] - x[:, None])[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(x, return_counts=True)
    if len(ties) == n and n <= EXACT_UP_TO:
        return _exact_p(n, abs(score))
    variance = (n * (n - 1) * (2 * n + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance == 0 or score == 0:
        return 1.0
    return math.erfc((abs(score) - 1) / math.sqrt(2 * variance))


def theil_sen(times_s: Floats, values: Floats) -> float:
    """Median of the slopes between all pairs of points, of at least two different times."""
    first, second = np.triu_indices(len(values), 1)
    apart = times_s[second] - times_s[first]
    return float(np.median(((values[second] - values[first])[apart > 0]) / apart[apart > 0]))


def drift_interval(times_s: Floats, values: Floats) -> tuple[float, float] | None:
    """90 % interval of how far the values drift from the first time to the last, as a share of their median.

    Theil-Sen's slope; its scatter by a moving-block bootstrap of the residuals, since neighbours are alike (H. R.
    Künsch, 1989). The draws are the same at each call. None for fewer than `FEWEST_FOR_DRIFT` values or a median of 0.
    """
    known = ~np.isnan(values)
    times, y = times_s[known], values[known]
    median = float(np.median(y)) if len(y) else 0.0
    if len(y) < FEWEST_FOR_DRIFT or median == 0 or float(np.ptp(times)) == 0:
        return None
    slope = theil_sen(times, y)
    trend = slope * (times - times[0])
    residuals = y - trend - np.median(y - trend)
    random = np.random.default_rng(0)
    blocks = -(-len(y) // BLOCK)
    begins = random.integers(0, len(y) - BLOCK + 1, (DRAWS, blocks))
    chosen = (begins[:, :, None] + np.arange(BLOCK)).reshape(DRAWS, -1)[:, : len(y)]
    first, second = np.triu_indices(len(y), 1)
    apart = times[second] - times[first]
    drawn = trend + residuals[chosen]
    slopes = np.median((drawn[:, second] - drawn[:, first])[:, apart > 0] / apart[apart > 0], axis=1)
    low, high = np.quantile(slopes * float(np.ptp(times)) / median, [0.05, 0.95])
    return float(low), float(high)


def slope_interval(times_s: Floats, values: Floats) -> tuple[float, float] | None:
    """95 % interval of the least-squares slope of `values` over time; None for fewer than 3 points."""
    n = len(times_s)
    if n < 3 or float(np.ptp(times_s)) == 0:
        return None
    x, y = times_s - times_s.mean(), values - values.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    rest = y - slope * x
    half = float(stdtrit(n - 2, 0.975)) * math.sqrt(float(rest @ rest) / (n - 2) / spread)
    return slope - half, slope + half


def sustained(times_s: Floats, lag: Floats) -> bool | None:
    """False when lag grows for sure: the whole 95 % interval of its slope is positive. None: too few bins."""
    interval = slope_interval(times_s, lag)
    return None if interval is None else interval[0] <= 0


def _exact_p(n: int, score: int) -> float:
    """P(|S| ≥ score) over all orders of n distinct values; S = pairs − 2 · inversions."""
    counts = _inversions(n)
    pairs = n * (n - 1) // 2
    extreme = sum(count for inversions, count in enumerate(counts) if abs(pairs - 2 * inversions) >= score)
    return extreme / math.factorial(n)


@lru_cache(maxsize=EXACT_UP_TO)
def _inversions(n: int) -> tuple[int, ...]:
    """How many permutations of n values have 0, 1, 2, … inversions."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for inversions, count in enumerate(counts):
            for shift in range(size):
                longer[inversions + shift] += count
        counts = longer
    return tuple(counts)
