"""A test that may be looked at after each pair: intervals of a mean difference that hold at all looks together.

Pairs of equal index belong together; a value is the logarithm of a ratio, of which perhaps only an interval is known.
Group-sequential bounds with a spending function (Lan and DeMets 1983): the chance of a wrong crossing is spent in equal
parts over the looks that were planned, and a part of it kept for looks beyond. The intervals are those repeated at each
look (Jennison and Turnbull 1989): all of them hold together, so their intersection does.

Two statistics: Student's t of the differences, and Wilcoxon's signed ranks, which need no finite values and no normal
ones, but symmetric differences, which those of equal cells are. The bounds of both come from the same simulation of
paths in which nothing differs: of t for normal differences, of ranks for any.
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

# Share of the error that is kept for a budget that is raised later.
RESERVED = 0.2
# Fewer pairs are never looked at; nor is an interval that reaches further than so many deviations of a difference,
# which only a freak of few pairs would leave.
MIN_PAIRS = 5
WIDEST = 3.0
PATHS = 200_000
# Of one comparison: what smaller errors allow is less than one path in a hundred of those that are simulated.
MIN_ERROR = 100 / PATHS
# Values that are held at a time, so that many looks take fewer paths instead of more memory.
_MAX_VALUES = 20_000_000
SEED = 1989
# Pairs beyond which no budget goes.
MAX_PAIRS = 512

Bounds = tuple[float | None, ...]
# Lowest and highest value that a difference may have; equal where it is known.
Pair = tuple[float, float]


class Method(StrEnum):
    """The statistic that is bounded."""

    T = "t"
    RANKS = "signed ranks"


class SequentialDecision(StrEnum):
    """What became of a comparison."""

    DIFFERS = "differs by at least"
    WITHIN = "differs by less than"
    SPENT = "budget spent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class SequentialResult:
    """All looks together. `low`, `high`: every value of the difference that none of them excludes. `value`: the
    difference itself, NaN of no pairs. `looked`: pairs at the look that decided it, or None. `half`: half the width of
    the last look's own interval."""

    outcome: SequentialDecision
    value: float
    low: float
    high: float
    decided_at: int | None
    half: float


def spent_error(pairs: int, horizon: int, alpha: float) -> float:
    """The part of `alpha` that may be spent up to so many pairs, when `horizon` of them were planned at first."""
    within = (1 - RESERVED) * min(pairs, horizon) / horizon
    return alpha * (within + RESERVED * max(0.0, 1 - horizon / pairs))


def min_decidable_pairs(method: Method, alpha: float) -> int:
    """The smallest number of planned pairs with which anything can be decided at this error of one comparison."""
    return next((pairs for pairs in range(MIN_PAIRS, MAX_PAIRS) if any(bounds(method, pairs, pairs, alpha))), MAX_PAIRS)


@lru_cache(maxsize=32)
def bounds(method: Method, pairs: int, horizon: int, alpha: float) -> Bounds:
    """For 1 to `pairs` pairs the value that the statistic must reach, or None where there is no look.

    Of t: its absolute value. Of ranks: by how much the number of positive Walsh averages is off a half of all. Known
    to the error of a simulation: with 20 comparisons the chance that is spent is known to 5 % of itself.
    """
    paths = max(10_000, min(PATHS, _MAX_VALUES // pairs))
    rng, walked = np.random.default_rng(SEED), _Walk(method, paths, pairs)
    alive, crossed, found = np.ones(paths, dtype=np.bool_), 0, []
    for number in range(1, pairs + 1):
        reached = walked.step(rng.standard_normal(paths).astype(np.float32))
        may = int(spent_error(number, horizon, alpha) * paths) - crossed
        bound = _bound(reached[alive], may) if number >= MIN_PAIRS else None
        if bound is not None and method is Method.T and bound / math.sqrt(number) > WIDEST:
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
        """One more pair of each path: the statistic then."""
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
        off: Floats = np.abs(self._sum - n * (n + 1) / 4)
        return off


def _bound(reached: Floats, may: int) -> float | None:
    """The smallest value that at most `may` of the paths reach; None when even the largest is reached by more."""
    if may < 1 or len(reached) <= may:
        return None
    excluded = np.partition(reached, len(reached) - may - 1)[len(reached) - may - 1]
    above = reached[reached > excluded]
    return float(above.min()) if len(above) else None


def judge(pairs: Sequence[Pair], limits: Bounds, method: Method, margin: Pair) -> SequentialResult:
    """What the pairs say, in the order in which they were completed.

    `limits`: from `bounds`. `margin`: from where to where a difference is none that matters. Where a pair is an
    interval, what is said holds for each value in it: low bounds come from low ends, high ones from high ends.
    """
    low, high, half = -math.inf, math.inf, math.inf
    outcome, looked = SequentialDecision.INCONCLUSIVE, None
    for number in range(1, min(len(pairs), len(limits)) + 1):
        limit = limits[number - 1]
        if limit is None:
            continue
        lowest, highest = look_interval(pairs[:number], limit, method)
        half = (highest - lowest) / 2
        if max(low, lowest) <= min(high, highest):  # else one look contradicts another: what was known stays
            low, high = max(low, lowest), min(high, highest)
        if looked is None and (low > 0 or high < 0 or (margin[0] < low and high < margin[1])):
            outcome = SequentialDecision.WITHIN if margin[0] < low and high < margin[1] else SequentialDecision.DIFFERS
            looked = number
    return SequentialResult(outcome, point_estimate(pairs, method), low, high, looked, half)


def look_interval(pairs: Sequence[Pair], limit: float, method: Method) -> Pair:
    """The values of the difference that one look does not exclude; an end may be infinite."""
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
    """The difference itself: the mean, or the median of the Walsh averages (Hodges and Lehmann 1963). Of a pair the
    middle counts, or the end that is known."""
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
    """The mean and so many of its deviations; infinite where a value is."""
    if not np.isfinite(values).all():
        return math.copysign(math.inf, limit)
    return float(values.mean() + limit * values.std(ddof=1) / math.sqrt(len(values)))
