"""Rank tests for values of which some are infinite: signed ranks (Wilcoxon) and rank sums (Mann and Whitney).

Both count votes for a shift: averages of two differences, or differences of two values, that lie above it. The
difference of two infinite values is NaN; at any shift it casts the share `unknown` of a vote (0.5: like a tie).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
# Values before and after of one configuration.
Sides = tuple[Floats, Floats]
# Five pairs cannot reach p below 0.06.
MIN_PAIRS = 6


def walsh_averages(values: Floats, unknown: float = 0.0) -> Floats:
    """Return the averages of each two values, and of each with itself, ascending; `unknown`: average of −∞ and ∞."""
    averages = _averages(values)
    averages[np.isnan(averages)] = unknown
    return np.sort(averages)


def signed_tail(pairs: Floats, unknown: float = 0.5) -> float:
    """Return the one-sided p of differences of at most 0; zeros count half.

    `unknown`: share of a vote that NaN casts; 0: NaN ranks below all other differences.
    """
    averages = _averages(pairs if unknown else np.where(np.isnan(pairs), -math.inf, pairs))
    votes = (averages > 0).sum() + (averages == 0).sum() / 2 + unknown * np.isnan(averages).sum()
    return float(_chances(len(pairs))[math.floor(votes) :].sum())


def signed_interval(pairs: Floats, confidence: float) -> tuple[float, float]:
    """Return the range of shifts that signed ranks do not reject."""
    averages = _averages(pairs)
    known = np.sort(averages[~np.isnan(averages)])
    # The interval starts at the k-th smallest average: rank sums below k have at most the probability of one tail.
    k = int((np.cumsum(_chances(len(pairs))) <= (1 - confidence) / 2 + 1e-12).sum())
    k = math.floor(k - (len(averages) - len(known)) / 2)
    return (float(known[k - 1]), float(known[-k])) if k > 0 else (-math.inf, math.inf)


def sums_tail(rows: Sequence[Sides], unknown: float) -> float:
    """Return the one-sided p of no increase, by the normal distribution; ties count half."""
    votes, variance = 0.0, 0.0
    for before, after in rows:
        shifts, n = differences([(before, after)]), len(before) + len(after)
        votes += (shifts > 0).sum() + (shifts == 0).sum() / 2 + unknown * np.isnan(shifts).sum() - shifts.size / 2
        ties = np.unique(np.concatenate((before, after)), return_counts=True)[1].astype(np.float64)
        variance += shifts.size / 12 * (n + 1 - (ties**3 - ties).sum() / (n * (n - 1)))
    return float(stats.norm.sf((votes - 0.5) / math.sqrt(variance))) if variance > 0 else 1.0


def sums_interval(rows: Sequence[Sides], confidence: float) -> tuple[float, float]:
    """Return the range of common shifts that rank sums do not reject."""
    found = differences(rows)
    variance = sum(len(a) * len(b) * (len(a) + len(b) + 1) / 12 for a, b in rows)
    unknown = np.isnan(found)
    reach = float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(variance) + 0.5
    k = math.ceil(len(found) / 2 - reach - unknown.sum() / 2)
    if k < 1:
        return -math.inf, math.inf
    # Unknown differences count half on each side (in `k`), so they are sorted last.
    low, high = (float(np.sort(np.where(unknown, math.inf, one))[k - 1]) for one in (found, -found))
    return low, -high


def differences(rows: Sequence[Sides]) -> Floats:
    """Return the differences of each two values of a row; NaN for two infinite values."""
    with np.errstate(invalid="ignore"):
        return np.concatenate([(after[:, None] - before).ravel() for before, after in rows])


def _averages(values: Floats) -> Floats:
    """Return the averages of each two values and of each with itself; for a value and NaN, the value."""
    first, second = (values[chosen] for chosen in np.triu_indices(len(values)))
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2))


@cache
def _chances(n: int) -> Floats:
    """Return the probability of each sum of positive ranks among n differences with random signs."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return chances
