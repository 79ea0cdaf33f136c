"""Whether what came before a fault was steady, and whether the engine kept up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # Student's quantiles; scipy.stats would take a second to import

Floats = npt.NDArray[np.float64]

STEADY_P = 0.05
# Up to here the distribution of Kendall's S is counted out; beyond, the normal approximation is
# closer to it than any decision at 5 % could notice.
EXACT_UP_TO = 60


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
