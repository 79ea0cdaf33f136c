"""Estimation for fixed samples: effect size, confidence interval, and required repetitions.

The unit is the run. Its value may be known as a range only (a recovery ends between the last late tuple and the first
on time), possibly without upper end. A *row* holds both sides of one configuration, which are equal in everything but
the tested parameter. Within a row, repetitions with the same number on both sides form pairs, because a repetition is
measured as a block and a disturbance of an hour affects both. Rows differ in level and effect, so each keeps its own
mean, and the variances about the means are pooled: the interval holds for these rows only. Sides of unequal size keep
separate variances (Welch 1947).

Values are assumed to lie at the same relative position of their ranges on both sides, as when faults hit all phases of
a cycle. Everything is computed twice, with all values at their lower ends and with all at their upper ends. The result
holds for both: its interval covers both intervals, and its p is the larger one.

If all ends are finite, this is Student's t. Otherwise, for example with censored recoveries, it is Wilcoxon's signed
ranks for six pairs or more, else Mann and Whitney's rank sums within rows. See `./faultline bench calibration`.
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
# Equivalence margin as a share of the figure.
NEGLIGIBLE = 0.05
# Repetitions per side that a verdict or a recommendation needs.
MIN_REPETITIONS = 5
# Degrees of freedom that a claim needs: those of three runs of one configuration. With two runs, an interval extends 13
# standard errors to each side.
MIN_FREEDOM = 2
# Smaller p values are not shown as numbers: they depend on unverified tails of the distribution.
MIN_P = 0.0001
# Upper bound on repetitions.
MAX_PAIRS = 1_000

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; an unknown end is infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ValueRange:
    """A value in [low, high]; `high` is infinite if censored."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and self.high >= self.low):
            raise ValueError(f"range: got {self.low} to {self.high}; expected finite low <= high")

    @property
    def middle(self) -> float:
        """Middle of the range; infinite without upper end."""
        return (self.low + self.high) / 2


Values = Sequence[ValueRange]


def exact_values(values: Sequence[float]) -> tuple[ValueRange, ...]:
    """Return ranges for exact values."""
    return tuple(ValueRange(float(value), float(value)) for value in values)


def median_of(values: Values) -> float:
    """Return the median of the upper ends: infinite if half are censored, NaN without values."""
    return float(np.median([value.high for value in values])) if values else math.nan


def spread_of(values: Values) -> float | None:
    """Return the coefficient of variation of the finite values; None for fewer than two, or a mean of 0."""
    known = [value.high for value in values if math.isfinite(value.high)]
    if len(known) < 2 or not (mean := statistics.fmean(known)):
        return None
    return statistics.stdev(known) / abs(mean)


def median_interval(values: Values) -> Interval | None:
    """Return median and 95 % interval; None for fewer than two values.

    The interval is Student's t, or that of order statistics if a value is infinite.
    """
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
    """Both sides of one configuration by repetition; neither is empty."""

    before: Mapping[int, ValueRange]
    after: Mapping[int, ValueRange]

    def __post_init__(self) -> None:
        if not self.before or not self.after:
            raise ValueError("row: expected repetitions on both sides")

    @classmethod
    def unpaired(cls, before: Values, after: Values) -> PairedRow:
        """Return a row of two samples that were not measured in blocks."""
        return cls(dict(enumerate(before)), dict(enumerate(after, start=len(before))))

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the same repetitions."""
        return self.before.keys() == self.after.keys()

    def in_pairs(self) -> PairedRow:
        """Return the common repetitions, or all if these are fewer than two or than half of the smaller side."""
        common = self.before.keys() & self.after.keys()
        if len(common) < max(2, min(len(self.before), len(self.after)) / 2):
            return self
        sides = [{number: side[number] for number in sorted(common)} for side in (self.before, self.after)]
        return PairedRow(*sides)


@dataclass(frozen=True)
class EffectEstimate:
    """Difference of the side after from the side before, averaged over the rows.

    `change`: with its 95 % interval, whose ends may be infinite. `n`: number of pairs; an unpaired row counts the
    repetitions of its smaller side. `freedom`: `n` less one per row. `spread`: standard deviation of one difference;
    `error`: standard error of the mean difference; both None if unknown. `error_freedom`: degrees of freedom of
    `error`. `blur`: half width of the range in which the difference is known. `p`: two-sided p of no difference.
    `direction`: 1 for more, -1 for less, 0 for neither. `rows`: difference in each row, with values in mid-range.
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
    """Return the difference over all rows. Raises ValueError without rows."""
    if not rows:
        raise ValueError("rows: empty; expected at least one")
    rows = [row.in_pairs() for row in rows]
    ends = _at_both_ends(rows)
    middle = _Sides.of(rows, lambda value: value.middle)
    value = middle.mean
    if not math.isfinite(value):  # use the estimate by ranks, which infinite values affect little
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
    """Return the p of a true difference of `margin` or more in either direction.

    This is twice the larger p of two one-sided tests (Schuirmann 1987), so it is at most 0.05 if the 95 % interval lies
    within the margin. Two censored values count against equivalence, because their difference is unknown.
    """
    ends = _at_both_ends([row.in_pairs() for row in rows])
    above = max(one.tail(-margin, below=True, unknown=0.0) for one in ends)
    return min(1.0, 2 * max(above, *(one.tail(margin, below=False, unknown=0.0) for one in ends)))


def required_pairs(found: EffectEstimate, margin: float, alpha: float) -> int | None:
    """Return the total number of pairs with which a similar study decides at level `alpha` with 80 % power.

    It decides for a difference or for equivalence within `margin`, whichever takes fewer pairs. None if the spread is
    unknown, or if MAX_PAIRS do not suffice because the effect is close to the margin or the resolution is too low.
    """
    if found.spread is None or not math.isfinite(found.change.value):
        return None
    size = abs(found.change.value)
    apart = max(size, margin - size) - found.blur
    sizes = [*range(3, 60), *range(60, 200, 5), *range(200, MAX_PAIRS + 1, 50)]
    return next((n for n in sizes if _detectable_size(n, alpha) * found.spread <= apart), None) if apart > 0 else None


def detectable_effect(spread: float, error: float, freedom: float, alpha: float, power: float = POWER) -> float:
    """Return the difference that is detected at the two-sided level `alpha` with this power.

    `spread`: standard deviation of one difference; `error`: standard error of the mean difference, in units of it.
    """
    return float((stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(power, freedom)) * spread * error)


def share_of(logarithm: float) -> float:
    """Return the relative change for the logarithm of a ratio."""
    return math.expm1(logarithm) if logarithm < 700 else math.inf


def logarithm_of(above: float, below: float) -> float:
    """Return the logarithm of above ÷ below: 0 if they are equal, else infinite if one is zero or infinite."""
    if above == below:
        return 0.0
    if above <= 0 or math.isinf(below):
        return -math.inf
    return math.inf if below <= 0 or math.isinf(above) else math.log(above / below)


def p_text(p: float) -> str:
    """Return a p for display: `= 0.031`, `< 0.0001`."""
    return f"= {p:.2g}" if p >= MIN_P else f"< {MIN_P:.4f}"


def false_discoveries(p_values: Sequence[float]) -> list[float]:
    """Return the false discovery rate among all p that are at least as small (Benjamini and Hochberg 1995)."""
    return list(map(float, stats.false_discovery_control(p_values))) if p_values else []


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return the p-values corrected for multiple tests (Holm 1979), with a family-wise error of 5 % at p ≤ 0.05."""
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


@cache
def _detectable_size(n: int, alpha: float) -> float:
    """Return the difference that n pairs detect, in standard deviations of a difference."""
    return detectable_effect(1.0, 1 / math.sqrt(n), n - 1, alpha)


def _at_both_ends(rows: Sequence[PairedRow]) -> list[_Sides]:
    return [_Sides.of(rows, pick) for pick in (_lowest, _high)]


def _low(value: ValueRange) -> float:
    return value.low


def _lowest(value: ValueRange) -> float:
    """Return the lower end; for a censored value slightly more, so it ranks above a value that ended there."""
    return value.low if math.isfinite(value.high) else math.nextafter(value.low, math.inf)


def _high(value: ValueRange) -> float:
    return value.high


def _t_interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return mean - reach, mean + reach


@dataclass(frozen=True)
class _Sides:
    """All rows, with each value at one position of its range.

    `rows`: values before and after, in the same order if `is_paired`. `ranked`: whether ranks are compared, as needed
    if a value is infinite.
    """

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
        """Mean over rows of their differences; not finite if a value is infinite."""
        with np.errstate(invalid="ignore"):
            return float(np.mean([after.mean() - before.mean() for before, after in self.rows]))

    @property
    def pairs(self) -> list[Floats]:
        """Differences of the pairs by row; NaN for two infinite values."""
        with np.errstate(invalid="ignore"):
            return [after - before for before, after in self.rows]

    @property
    def signed(self) -> bool:
        """Whether there are enough pairs for signed ranks."""
        return self.is_paired and sum(len(before) for before, _ in self.rows) >= ranks.MIN_PAIRS

    @property
    def central(self) -> float:
        """Shift estimated by ranks (Hodges and Lehmann 1963)."""
        shifts = ranks.walsh_averages(np.concatenate(self.pairs)) if self.signed else ranks.differences(self.rows)
        return float(np.median(shifts))

    @property
    def scatter(self) -> tuple[float, float, float] | None:
        """Standard deviation of one difference, error of the mean, and degrees of freedom; None if unknown."""
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
        # Without pairs, the difference of two values has the variance of both.
        return math.sqrt(2 * pooled), math.sqrt(sum(parts)) / len(self.rows), freedom

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean difference, or of a common shift if a value is infinite."""
        if self.ranked and self.signed:
            return ranks.signed_interval(np.concatenate(self.pairs), CONFIDENCE)
        if self.ranked:
            return ranks.sums_interval(self.rows, CONFIDENCE)
        found = self.scatter
        return (-math.inf, math.inf) if found is None else _t_interval(self.mean, found[1], found[2])

    def tail(self, at: float, *, below: bool, unknown: float = 0.5) -> float:
        """Return the one-sided p of a true difference of at most (`below`) or at least `at`.

        `unknown`: weight of a pair of infinite values, whose difference is unknown, as evidence against that.
        """
        sign = 1 if below else -1
        if self.ranked and self.signed:
            return ranks.signed_tail(sign * (np.concatenate(self.pairs) - at), unknown)
        if self.ranked:
            return ranks.sums_tail([(sign * (before + at), sign * after) for before, after in self.rows], unknown)
        found, distance = self.scatter, sign * (self.mean - at)
        if found is None:
            return 1.0
        return float(stats.t.sf(distance / found[1], found[2])) if found[1] > 0 else float(distance <= 0)


def _pooled_variance(samples: Sequence[Floats]) -> tuple[float, float]:
    """Return the variance about each sample's mean, and its degrees of freedom; infinite values are omitted."""
    known = [kept for one in samples if len(kept := one[np.isfinite(one)])]
    freedom = float(sum(len(one) - 1 for one in known))
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in known)
    return (squares / freedom if freedom else 0.0), freedom
