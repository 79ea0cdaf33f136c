"""Whether two samples come from one distribution: a permutation test of ranks that knows of censored values.

Each value's score is how many values of both samples are surely smaller, less how many are surely larger (Gehan 1965).
A censored value is surely larger than what ended before its watch did, and of two censored ones nobody knows. Without
censoring this is the test of Mann, Whitney and Wilcoxon, ties included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
from scipy import stats

from faultline.comparison.statistics.sample import Bools, Floats, Sample

# All orders are looked at when there are no more, else so many at random: p is then known to some 0.002.
RESAMPLES = 9_999
SIMULATED = 4_000
POWER = 0.8
SEED = 1
# Of more pairs of values, what is simulated is known well enough.
MOST_PAIRS = 1_000
# Of this test against that of Student, for normal values (Hodges and Lehmann 1956).
EFFICIENCY = 3 / math.pi

Key = TypeVar("Key")


def scores(values: Floats, censored: Bools) -> Floats:
    """Gehan's score of each value among all."""
    later, ended = values[:, None], ~censored
    # Row i, column j: j ended, and i did after it (or was watched at least as long).
    larger = ended[None, :] & ((later > values[None, :]) | (censored[:, None] & (later >= values[None, :])))
    score: Floats = larger.sum(axis=1, dtype=np.float64) - larger.sum(axis=0, dtype=np.float64)
    return score


def p_value(a: Sample, b: Sample) -> float:
    """Two-sided: how likely a difference of ranks as large as this is, when nothing differs.

    1 for fewer than two values a side.
    """
    if len(a) < 2 or len(b) < 2:
        return 1.0
    ours, theirs = _scored(a, b)
    if not ours.any() and not theirs.any():
        return 1.0
    found = stats.permutation_test(
        (ours, theirs),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        n_resamples=RESAMPLES,
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    return float(found.pvalue)


def shift(a: Sample, b: Sample) -> float:
    """By how much larger the ranks of `b` are on average; what `p_value` judges."""
    ours, theirs = _scored(a, b)
    return float(theirs.mean() - ours.mean())


def _scored(a: Sample, b: Sample) -> tuple[Floats, Floats]:
    pooled = scores(np.array(a.values + b.values), np.array(a.censored + b.censored, dtype=np.bool_))
    return pooled[: len(a)], pooled[len(a) :]


def orders(sizes: Sequence[int]) -> Floats:
    """Chance of 0, 1, 2, … rising votes among groups of these sizes, when all orders are equally likely.

    Each pair of values of different groups votes: the one of the later group is the larger, or is not.
    """
    chances, before = np.ones(1), 0
    for size in sizes:
        chances = np.convolve(chances, _of_two(before, size))
        before += size
    return chances


@cache
def _of_two(first: int, second: int) -> Floats:
    """Chances of rising votes among two groups, by the greatest of all values.

    It is one of the second group, and then exceeds all of the first, or one of the first, and then exceeds nothing that
    counts.
    """
    rows = [np.ones(1)] * (second + 1)  # of an empty first group
    for n in range(1, first + 1):
        grown = [np.ones(1)]
        for m in range(1, second + 1):
            chances = np.zeros(n * m + 1)
            chances[n:] += grown[m - 1] * m / (n + m)
            chances[: (n - 1) * m + 1] += rows[m] * n / (n + m)
            grown.append(chances)
        rows = grown
    return rows[second]


@cache
def needed_shift(a: int, b: int, alpha: float) -> float | None:
    """By how many standard deviations normal samples of these sizes must be apart for the test to say so with a power
    of POWER, two-sided at `alpha`: simulated, or for large samples by the test's efficiency. None when no samples of
    these sizes ever give such a p."""
    if a * b > MOST_PAIRS:
        normal = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(POWER)
        return float(normal * math.sqrt((1 / a + 1 / b) / EFFICIENCY))
    beyond = np.cumsum(orders((a, b))[::-1])[::-1]
    votes = int(np.argmax(beyond <= alpha / 2 + 1e-12))
    if not votes:
        return None
    drawn = np.random.default_rng(SEED).standard_normal((SIMULATED, a + b))
    # So many pairs must vote for a rise: it is seen from that shift on which turns the last of them.
    apart = np.sort((drawn[:, :a, None] - drawn[:, None, a:]).reshape(SIMULATED, -1), axis=1)[:, votes - 1]
    return float(np.quantile(apart, POWER))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """The p-values, corrected for there being several of them (Holm 1979): all that stay below 0.05 are believed
    together with a chance of one in twenty that any is wrong."""
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}
