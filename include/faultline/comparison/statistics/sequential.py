"""Sequential test with an interim analysis after each pair: intervals that hold over all analyses together.

The value of a pair is the logarithm of a ratio, possibly known as a range only. The bounds are group-sequential with a
spending function (Lan and DeMets 1983): the permitted error is spent in equal parts over the planned analyses, and a
share is reserved for additional ones. Intervals are computed at each analysis (Jennison and Turnbull 1989); all of them
hold together, and so does their intersection.

There are two statistics: Student's t of the differences, and Wilcoxon's signed ranks, which need neither finite nor
normal values, but symmetric differences, such as those of equal cells. The bounds of both come from a simulation of
sequences of pairs (paths) without difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from faultline.comparison.statistics.estimate import Bools, Floats
from faultline.comparison.statistics.ranks import walsh_averages

# Share of the error that is reserved for a raised budget.
RESERVED = 0.2
# No analysis takes place with fewer pairs, or if its interval would extend more than WIDEST standard deviations.
MIN_PAIRS = 5
WIDEST = 3.0
PATHS = 200_000
# Smallest error per comparison, so that at least a hundred simulated paths may cross.
MIN_ERROR = 100 / PATHS
# Simulated values in memory: more analyses take fewer paths.
_MAX_VALUES = 20_000_000
SEED = 1989
# Upper bound on pairs.
MAX_PAIRS = 512

Bounds = tuple[float | None, ...]
# Range of a difference; equal ends if it is exact.
Pair = tuple[float, float]


class Method(StrEnum):
    """Test statistic."""

    T = "t"
    RANKS = "signed ranks"


class SequentialDecision(StrEnum):
    """Decision on a comparison."""

    DIFFERS = "differs by at least"
    WITHIN = "differs by less than"
    SPENT = "budget spent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class SequentialResult:
    """Result over all interim analyses.

    `low`, `high`: range of the difference that no analysis excludes. `value`: the estimate, NaN without pairs.
    `decided_at`: pairs at the deciding analysis, or None. `half`: half the width of the last analysis' own interval.
    """

    outcome: SequentialDecision
    value: float
    low: float
    high: float
    decided_at: int | None
    half: float


def spent_error(pairs: int, horizon: int, alpha: float) -> float:
    """Return the part of `alpha` that may be spent after this number of pairs.

    `horizon`: number of pairs that was planned first; the reserved share pays for further ones.
    """
    within = (1 - RESERVED) * min(pairs, horizon) / horizon
    return alpha * (within + RESERVED * max(0.0, 1 - horizon / pairs))


def min_decidable_pairs(method: Method, alpha: float) -> int:
    """Return the smallest planned number of pairs with which one comparison can be decided at the error `alpha`."""
    return next((pairs for pairs in range(MIN_PAIRS, MAX_PAIRS) if any(bounds(method, pairs, pairs, alpha))), MAX_PAIRS)


@lru_cache(maxsize=32)
def bounds(method: Method, pairs: int, horizon: int, alpha: float) -> Bounds:
    """Return the bound of the statistic for 1 to `pairs` pairs; None where no interim analysis takes place.

    For t, it bounds the absolute value; for ranks, the distance of the number of positive Walsh averages from half of
    all. Bounds have the error of a simulation: with 20 comparisons, 5 % of the spent error.
    """
    paths = max(10_000, min(PATHS, _MAX_VALUES // pairs))
    rng, walk = np.random.default_rng(SEED), _Walk(method, paths, pairs)
    alive, crossed, found = np.ones(paths, dtype=np.bool_), 0, []
    for n in range(1, pairs + 1):
        reached = walk.step(rng.standard_normal(paths).astype(np.float32))
        permitted = int(spent_error(n, horizon, alpha) * paths) - crossed
        bound = _bound(reached[alive], permitted) if n >= MIN_PAIRS else None
        if bound is not None and method is Method.T and bound / math.sqrt(n) > WIDEST:
            bound = None
        if bound is not None:
            beyond: Bools = alive & (reached >= bound)
            crossed += int(beyond.sum())
            alive &= ~beyond
        found.append(bound)
    return tuple(found)


class _Walk:
    """Paths of the statistic, pair by pair."""

    def __init__(self, method: Method, paths: int, pairs: int) -> None:
        self._method, self._seen = method, 0
        self._values = np.empty((pairs, paths), dtype=np.float32) if method is Method.RANKS else None
        self._sum, self._squares = np.zeros(paths), np.zeros(paths)

    def step(self, drawn: np.ndarray) -> Floats:
        """Add one pair to each path; return the statistic."""
        self._seen += 1
        n = self._seen
        if self._values is None:
            self._sum += drawn
            self._squares += drawn.astype(np.float64) ** 2
            variance = np.maximum(self._squares - self._sum**2 / n, 1e-12) / max(n - 1, 1)
            reached: Floats = np.abs(self._sum) / np.sqrt(n * variance)
            return reached
        self._values[n - 1] = drawn
        for earlier in self._values[:n]:
            self._sum += earlier + drawn > 0
        distance: Floats = np.abs(self._sum - n * (n + 1) / 4)
        return distance


def _bound(reached: Floats, permitted: int) -> float | None:
    """Return the smallest value that at most `permitted` paths reach; None if more paths reach even the largest."""
    if permitted < 1 or len(reached) <= permitted:
        return None
    excluded = np.partition(reached, len(reached) - permitted - 1)[len(reached) - permitted - 1]
    above = reached[reached > excluded]
    return float(above.min()) if len(above) else None


def judge(pairs: Sequence[Pair], limits: Bounds, method: Method, margin: Pair) -> SequentialResult:
    """Return the result of the pairs, in the order of their completion.

    `limits`: from `bounds`. `margin`: equivalence margin. If a pair is a range, the result holds for every value in it:
    its low end follows from the low ends of the pairs, its high end from their high ends.
    """
    low, high, half = -math.inf, math.inf, math.inf
    outcome, decided_at = SequentialDecision.INCONCLUSIVE, None
    for n in range(1, min(len(pairs), len(limits)) + 1):
        limit = limits[n - 1]
        if limit is None:
            continue
        lowest, highest = look_interval(pairs[:n], limit, method)
        half = (highest - lowest) / 2
        if max(low, lowest) <= min(high, highest):  # if analyses contradict each other, keep the earlier range
            low, high = max(low, lowest), min(high, highest)
        if decided_at is None and (low > 0 or high < 0 or (margin[0] < low and high < margin[1])):
            outcome = SequentialDecision.WITHIN if margin[0] < low and high < margin[1] else SequentialDecision.DIFFERS
            decided_at = n
    return SequentialResult(outcome, point_estimate(pairs, method), low, high, decided_at, half)


def look_interval(pairs: Sequence[Pair], limit: float, method: Method) -> Pair:
    """Return the range of differences that one analysis does not exclude; an end may be infinite."""
    lows, highs = np.array([one[0] for one in pairs]), np.array([one[1] for one in pairs])
    if method is Method.T:
        return _t_bound(lows, -limit), _t_bound(highs, limit)
    averages = len(pairs) * (len(pairs) + 1) // 2
    counted = math.ceil(averages / 2 + limit - 1e-9)
    if counted > averages:
        return -math.inf, math.inf
    return float(walsh_averages(lows, -math.inf)[averages - counted]), float(
        walsh_averages(highs, math.inf)[counted - 1]
    )


def point_estimate(pairs: Sequence[Pair], method: Method) -> float:
    """Return the mean difference, or the median of the Walsh averages (Hodges and Lehmann 1963).

    A pair counts with the middle of its range, or with the finite end if the other is infinite.
    """
    if not pairs:
        return math.nan
    known = [_middle(pair) for pair in pairs]
    if method is Method.T:
        return float(np.mean(known))
    return float(np.median(walsh_averages(np.array(known))))


def _middle(pair: Pair) -> float:
    low, high = pair
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2
    return next((end for end in pair if math.isfinite(end)), 0.0)


def _t_bound(values: Floats, limit: float) -> float:
    """Return the mean plus `limit` standard errors; infinite if a value is."""
    if not np.isfinite(values).all():
        return math.copysign(math.inf, limit)
    return float(values.mean() + limit * values.std(ddof=1) / math.sqrt(len(values)))
