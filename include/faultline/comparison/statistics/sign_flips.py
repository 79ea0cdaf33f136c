"""Permutation over pairs: what is left of a difference when which of the two was which is left to chance.

Where both sides of a pair were measured one directly after the other, in an order drawn by lot, a difference that is
none changes its sign as often as not (Fisher 1935). So the mean difference is held against those of all ways to flip
the signs: no distribution is assumed, and the pairs may scatter as unequally as they like. Of n pairs there are 2^n
ways, hence p is 2^-n at least, and fewer than so many pairs can say nothing, however large the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from faultline.comparison.statistics.intervals import CONFIDENCE, Interval
from faultline.comparison.statistics.sample import Floats

# Up to here all sums are listed, in two halves; of more pairs they are counted on a lattice, for which values are
# rounded to such a part of the largest.
MOST_LISTED = 24
STEPS = 1_000
# Sums that differ by less than rounding are the same.
_CLOSE = 1e-9
_HALVINGS = 40


def p_above(differences: Sequence[float]) -> float:
    """One-sided: how often a mean as large as this one comes by chance alone. 1 of no pairs."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        return 1.0
    total = float(values.sum())
    limit = total - _CLOSE * (float(np.abs(values).sum()) + 1e-300)
    if len(values) <= MOST_LISTED:
        half = len(values) // 2
        first, second = np.sort(_sums(values[:half])), _sums(values[half:])
        reached = len(first) - np.searchsorted(first, limit - second, side="left")
        return float(reached.sum() / 2.0 ** len(values))
    steps = np.rint(values / (float(np.abs(values).max()) or 1.0) * STEPS).astype(np.int64)
    return _on_lattice(np.abs(steps), int(steps.sum()))


def least_p(pairs: int) -> float:
    """The smallest p that so many pairs can give."""
    return float(2.0**-pairs)


def mean_interval(low: Sequence[float], high: Sequence[float]) -> Interval:
    """The mean difference with its 95 % interval: the shifts that the test does not refuse.

    `low`, `high`: the ends between which each difference is known to lie, finite, the same where it is known exactly.
    The interval covers those of both ends; its ends are infinite for fewer pairs than can tell.
    """
    below, above = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    middle = float((below + above).mean() / 2)
    return Interval(middle, min(middle, _bound(below)), max(middle, -_bound(-above)))


def spread(differences: Sequence[float]) -> float | None:
    """Standard deviation of one difference; None for fewer than two."""
    return float(np.std(differences, ddof=1)) if len(differences) > 1 else None


def visible(deviation: float, pairs: int, alpha: float, power: float) -> float:
    """The difference that so many pairs of this `deviation` see at level `alpha`, one-sided, with this `power`.

    By Student's t, which the permutation comes close to; infinite for fewer pairs than can tell.
    """
    if pairs < 2 or least_p(pairs) > alpha:
        return math.inf
    reach = stats.t.ppf(1 - alpha, pairs - 1) + stats.t.ppf(power, pairs - 1)
    return float(reach * deviation / math.sqrt(pairs))


def _sums(values: Floats) -> Floats:
    """Of all ways to give the values signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def _on_lattice(sizes: npt.NDArray[np.int64], total: int) -> float:
    """How likely a sum of whole numbers of these sizes, each with a sign by chance, is `total` or more."""
    chances = np.ones(1)
    for size in sizes.tolist():
        grown = np.zeros(len(chances) + 2 * size)
        grown[: len(chances)] += chances / 2
        grown[2 * size :] += chances / 2
        chances = grown
    # The first stands for all signs being minus, each next one for one more.
    return float(min(1.0, chances[max(0, total + int(sizes.sum())) :].sum()))


def _bound(values: Floats) -> float:
    """The lower end: the largest shift that the mean is significantly above of, by halving."""
    tail = (1 - CONFIDENCE) / 2
    if least_p(len(values)) > tail:
        return -math.inf
    mean = float(values.mean())
    reach = float(np.abs(values - mean).max()) + abs(mean) * _CLOSE
    refused, kept = mean - 2 * reach - _CLOSE, mean
    for _ in range(_HALVINGS):
        shift = (refused + kept) / 2
        if p_above((values - shift).tolist()) <= tail:
            refused = shift
        else:
            kept = shift
    return refused
