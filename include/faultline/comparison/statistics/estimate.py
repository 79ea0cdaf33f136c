"""Fixed samples: by how much one side exceeds another, how sure that is, and what more runs would tell.

The unit is the run; its value may be known as an interval only (a recovery: between the last late tuple and the first
on time), perhaps without an upper end. A *row* is one configuration with both sides of it: the same in everything but
what is asked about. Within a row the repetitions of both sides are paired by number where they have the same ones,
since a repetition is measured as a block and what disturbs the machine for an hour disturbs both. Rows differ in their
level and in their effect, so each keeps its own mean, and the scatter about it is pooled: the interval is about these
rows, not about others. Two sides of unequal number, and the values of an axis, keep each its own scatter (Welch 1947).

Where in its interval a value lies nobody knows, and the share of the way is taken to be the same on both sides, as when
faults come at all phases of a cycle. So everything is computed with all values at their lower ends and with all at
their upper ends, and the answer is what holds at both: its interval covers both intervals, its p is the larger one.

Where all ends are finite this is Student's t. Where some are not, as of a recovery that was not seen to end, it is
Wilcoxon's signed ranks of six pairs or more, else Mann and Whitney's rank sums within rows, for which an infinite value
is just the largest. How often these err and what they see: `./faultline bench calibration`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from faultline.comparison.statistics import ranks
from faultline.comparison.statistics.ranks import Sides

ALPHA, CONFIDENCE, POWER = 0.05, 0.95, 0.8
# A difference smaller than this share of a figure is none that anybody minds.
NEGLIGIBLE = 0.05
# Fewer repetitions a side than this give no verdict beside another side, nor a choice that is told.
MIN_REPETITIONS = 5
# Degrees of freedom of a claim: as many as three runs of one configuration have. With two runs an interval is thirteen
# standard errors wide.
MIN_FREEDOM = 2
# Smaller ones rest on the tails of a distribution that nobody has seen.
MIN_P = 0.0001
# More repetitions than this nobody measures.
MAX_PAIRS = 1_000

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; an end that nobody knows is infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ValueRange:
    """A value that lies in [low, high]; `high` is infinite where it was not seen."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and self.high >= self.low):
            raise ValueError(f"no interval: {self.low} to {self.high}")

    @property
    def middle(self) -> float:
        """The middle; where there is no upper end, infinite."""
        return (self.low + self.high) / 2


Values = Sequence[ValueRange]


def exact_values(values: Sequence[float]) -> tuple[ValueRange, ...]:
    """Values that are known."""
    return tuple(ValueRange(float(value), float(value)) for value in values)


def median_of(values: Values) -> float:
    """Of the upper ends: infinite where half were not seen to end. NaN of no values."""
    return float(np.median([value.high for value in values])) if values else math.nan


def spread_of(values: Values) -> float | None:
    """Coefficient of variation of the values that have an end; None for fewer than two, or a mean of 0."""
    known = [value.high for value in values if math.isfinite(value.high)]
    if len(known) < 2 or not (mean := statistics.fmean(known)):
        return None
    return statistics.stdev(known) / abs(mean)


def median_interval(values: Values) -> Interval | None:
    """The median of one side with a 95 % interval: Student's t, on a log scale where all values are above 0; order
    statistics where one has no end. None for fewer than two values."""
    if len(values) < 2:
        return None
    median, n = median_of(values), len(values)
    low, high = (np.sort([pick(value) for value in values]) for pick in (_low, _high))
    if not np.isfinite(high).all():
        k = int(stats.binom.ppf((1 - CONFIDENCE) / 2, n, 0.5))
        return Interval(median, min(median, low[k - 1]) if k else -math.inf, high[n - k] if k else math.inf)
    if low[0] > 0:
        low, high = np.log(low), np.log(high)
    ends = [_t_interval(one.mean(), one.std(ddof=1) / math.sqrt(n), n - 1) for one in (low, high)]
    least, most = min(ends[0][0], ends[1][0]), max(ends[0][1], ends[1][1])
    if min(value.low for value in values) > 0:
        least, most = math.exp(least), math.exp(min(most, 700.0))
    return Interval(median, min(median, least), max(median, most))


@dataclass(frozen=True)
class PairedRow:
    """Both sides of one configuration, each by number of repetition; none of them empty."""

    before: Mapping[int, ValueRange]
    after: Mapping[int, ValueRange]

    def __post_init__(self) -> None:
        if not self.before or not self.after:
            raise ValueError("a row has repetitions on both sides")

    @classmethod
    def unpaired(cls, before: Values, after: Values) -> PairedRow:
        """Two samples without blocks."""
        return cls(dict(enumerate(before)), dict(enumerate(after, start=len(before))))

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the same repetitions."""
        return self.before.keys() == self.after.keys()

    def in_pairs(self) -> PairedRow:
        """The repetitions that both sides have, where these are the better part of one side and two at least; else all.

        A repetition is measured as a block: what both sides of it have in common says more than what one has alone.
        """
        common = self.before.keys() & self.after.keys()
        if len(common) < max(2, min(len(self.before), len(self.after)) / 2):
            return self
        sides = [{number: side[number] for number in sorted(common)} for side in (self.before, self.after)]
        return PairedRow(*sides)


@dataclass(frozen=True)
class EffectEstimate:
    """By how much the side after exceeds the one before, on average over the rows.

    `change`: with its 95 % interval, whose ends may be infinite. `n`: pairs, or repetitions of the smaller side of
    each row where they do not pair. `freedom`: repetitions beyond the first of each row. `spread`: standard deviation
    of one difference, and `error` of the mean difference; None where they are not known. `error_freedom`: degrees of
    freedom of `error`. `blur`: how far from its middle the difference may lie, as the values are known. `p`: two-sided,
    of no difference. `direction`: 1 for more, -1 for less, 0 for neither. `rows`: the middle of each.
    """

    change: Interval
    n: int
    is_paired: bool
    freedom: int
    spread: float | None
    error: float | None
    error_freedom: float
    blur: float
    p: float
    direction: int
    rows: tuple[float, ...]


def estimate(rows: Sequence[PairedRow]) -> EffectEstimate:
    """The difference over all rows. Raises ValueError when there is none."""
    if not rows:
        raise ValueError("no rows")
    rows = [row.in_pairs() for row in rows]
    ends = _at_both_ends(rows)
    middle = _Sides.of(rows, lambda value: value.middle)
    value = middle.mean
    if not math.isfinite(value):  # what is known of all, which infinite ends do not move far
        value = ends[0].central
    spread, error, error_freedom = middle.scatter or (None, None, 0.0)
    blur = abs(ends[1].mean - ends[0].mean) / 2
    low, high = (min(one.interval[0] for one in ends), max(one.interval[1] for one in ends))
    tails = [max(one.tail(0.0, below=below) for one in ends) for below in (True, False)]
    return EffectEstimate(
        change=Interval(value, min(low, value), max(high, value)),
        n=sum(min(len(row.before), len(row.after)) for row in rows),
        is_paired=all(row.is_paired for row in rows),
        freedom=sum(min(len(row.before), len(row.after)) - 1 for row in rows),
        spread=spread,
        error=error,
        error_freedom=error_freedom,
        blur=math.inf if math.isnan(blur) else blur,
        p=min(1.0, 2 * min(tails)),
        direction=(tails[0] < tails[1]) - (tails[0] > tails[1]),
        rows=tuple(_Sides.of([row], lambda value: value.middle).mean for row in rows),
    )


def equivalence_p(rows: Sequence[PairedRow], margin: float) -> float:
    """How likely differences as close to none as these are, if the true one were `margin` or more either way.

    Two one-sided tests (Schuirmann 1987), twice the larger one: at most 0.05 where the 95 % interval lies within. Two
    values without an end count against: how much they differ nobody knows.
    """
    ends = _at_both_ends([row.in_pairs() for row in rows])
    above = max(one.tail(-margin, below=True, unknown=0.0) for one in ends)
    return min(1.0, 2 * max(above, *(one.tail(margin, below=False, unknown=0.0) for one in ends)))


def required_pairs(found: EffectEstimate, margin: float, alpha: float) -> int | None:
    """With how many pairs in all a study like this would tell four times in five, at level `alpha`, if what was found
    is true: that there is a difference, or that it is less than `margin`; whichever takes fewer.

    None where the spread is not known, or no number up to MOST would do: then it is as large as the margin, or too
    small for how exactly the values are known.
    """
    if found.spread is None or not math.isfinite(found.change.value):
        return None
    size = abs(found.change.value)
    apart = max(size, margin - size) - found.blur
    sizes = [*range(3, 60), *range(60, 200, 5), *range(200, MAX_PAIRS + 1, 50)]
    return next((n for n in sizes if _detectable_size(n, alpha) * found.spread <= apart), None) if apart > 0 else None


def detectable_effect(spread: float, error: float, freedom: float, alpha: float, power: float = POWER) -> float:
    """The difference that is seen at the two-sided level `alpha` with this power. `error`: of the mean difference, in
    units of `spread`, the standard deviation of one."""
    return float((stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(power, freedom)) * spread * error)


def share_of(logarithm: float) -> float:
    """The change that the logarithm of a ratio stands for, as a share."""
    return math.expm1(logarithm) if logarithm < 700 else math.inf


def logarithm_of(above: float, below: float) -> float:
    """Of their ratio: infinite where one is nothing or has no end; 0 of equal ones."""
    if above == below:
        return 0.0
    if above <= 0 or math.isinf(below):
        return -math.inf
    return math.inf if below <= 0 or math.isinf(above) else math.log(above / below)


def p_text(p: float) -> str:
    """A p behind its name: `= 0.031`, `< 0.0001`."""
    return f"= {p:.2g}" if p >= MIN_P else f"< {MIN_P:.4f}"


def false_discoveries(p_values: Sequence[float]) -> list[float]:
    """Shares of false discoveries among all that are at least as small (Benjamini and Hochberg 1995)."""
    return list(map(float, stats.false_discovery_control(p_values))) if p_values else []


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """The p-values, corrected for there being several of them (Holm 1979): all that stay below 0.05 are believed
    together with a chance of one in twenty that any is wrong."""
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


@cache
def _detectable_size(n: int, alpha: float) -> float:
    """What n pairs see, in standard deviations of a difference."""
    return detectable_effect(1.0, 1 / math.sqrt(n), n - 1, alpha)


def _at_both_ends(rows: Sequence[PairedRow]) -> list[_Sides]:
    return [_Sides.of(rows, pick) for pick in (_lowest, _high)]


def _low(value: ValueRange) -> float:
    return value.low


def _lowest(value: ValueRange) -> float:
    """The lower end; without an upper end it is above whatever ended there."""
    return value.low if math.isfinite(value.high) else math.nextafter(value.low, math.inf)


def _high(value: ValueRange) -> float:
    return value.high


def _t_interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return mean - reach, mean + reach


@dataclass(frozen=True)
class _Sides:
    """All rows with each value at one place of its interval: the numbers before and after, in the same order where all
    rows are `paired`. `ranked`: whether they are compared by ranks."""

    rows: tuple[Sides, ...]
    is_paired: bool
    ranked: bool

    @classmethod
    def of(cls, rows: Sequence[PairedRow], pick: Callable[[ValueRange], float]) -> _Sides:
        found = [
            tuple(np.array([pick(side[number]) for number in sorted(side)]) for side in (row.before, row.after))
            for row in rows
        ]
        is_open = any(
            math.isinf(value.high) for row in rows for side in (row.before, row.after) for value in side.values()
        )
        return cls(tuple((before, after) for before, after in found), all(row.is_paired for row in rows), is_open)

    @property
    def mean(self) -> float:
        """Over rows of their differences; not finite where a value is not."""
        with np.errstate(invalid="ignore"):
            return float(np.mean([after.mean() - before.mean() for before, after in self.rows]))

    @property
    def pairs(self) -> list[Floats]:
        """By row the differences of its pairs; of two without an end not a number."""
        with np.errstate(invalid="ignore"):
            return [after - before for before, after in self.rows]

    @property
    def signed(self) -> bool:
        """Whether there are pairs enough to be compared by signed ranks."""
        return self.is_paired and sum(len(before) for before, _ in self.rows) >= ranks.MIN_PAIRS

    @property
    def central(self) -> float:
        """The shift that ranks estimate (Hodges and Lehmann 1963), of values that are finite."""
        votes = ranks.walsh_averages(np.concatenate(self.pairs)) if self.signed else ranks.differences(self.rows)
        return float(np.median(votes))

    @property
    def scatter(self) -> tuple[float, float, float] | None:
        """Standard deviation of one difference, error of the mean, and degrees of freedom; None where unknown."""
        if self.is_paired:
            pairs = self.pairs
            variance, freedom = _pooled_variance(pairs)
            if not freedom:
                return None
            error = math.sqrt(variance * sum(1 / len(one) for one in pairs)) / len(pairs)
            return math.sqrt(variance), error, freedom
        sides = [_pooled_variance([row[side] for row in self.rows]) for side in range(2)]
        freedom = sum(one[1] for one in sides)
        if not freedom:
            return None
        pooled = sum(variance * free for variance, free in sides) / freedom
        equal = all(len(before) == len(after) for before, after in self.rows)
        variances = [pooled if equal or not free else variance for variance, free in sides]
        parts = [one * sum(1 / len(row[side]) for row in self.rows) for side, one in enumerate(variances)]
        if not equal and all(free for _, free in sides) and any(parts):
            freedom = sum(parts) ** 2 / sum(part**2 / free for part, (_, free) in zip(parts, sides, strict=True))
        # The difference of two values without a pair scatters by both.
        return math.sqrt(2 * pooled), math.sqrt(sum(parts)) / len(self.rows), freedom

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference, or of a common shift where an end is open."""
        if self.ranked and self.signed:
            return ranks.signed_interval(np.concatenate(self.pairs), CONFIDENCE)
        if self.ranked:
            return ranks.sums_interval(self.rows, CONFIDENCE)
        found = self.scatter
        return (-math.inf, math.inf) if found is None else _t_interval(self.mean, found[1], found[2])

    def tail(self, at: float, *, below: bool, unknown: float = 0.5) -> float:
        """One-sided p of the true difference being `at` or less (`below`), or `at` or more. `unknown`: what two values
        without an end count as a vote against that."""
        sign = 1 if below else -1
        if self.ranked and self.signed:
            return ranks.signed_tail(sign * (np.concatenate(self.pairs) - at), unknown)
        if self.ranked:
            return ranks.sums_tail([(sign * (before + at), sign * after) for before, after in self.rows], unknown)
        found, away = self.scatter, sign * (self.mean - at)
        if found is None:
            return 1.0
        return float(stats.t.sf(away / found[1], found[2])) if found[1] > 0 else float(away <= 0)


def _pooled_variance(samples: Sequence[Floats]) -> tuple[float, float]:
    """Variance about each sample's own mean, and its degrees of freedom; what has no end tells nothing of it."""
    known = [kept for one in samples if len(kept := one[np.isfinite(one)])]
    freedom = float(sum(len(one) - 1 for one in known))
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in known)
    return (squares / freedom if freedom else 0.0), freedom
