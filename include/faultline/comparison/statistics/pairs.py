"""How much one side exceeds the other, where both were measured in the same blocks; values may be known as intervals.

A *row* is one configuration with both sides of it: the same in everything but what is asked about. Within a row the
repetitions of both sides are paired by number where they have the same ones, since a repetition is measured as a block
and what disturbs the machine for an hour disturbs both. Rows differ in their level and in their effect, so each keeps
its own mean, and the scatter about it is pooled: the interval is about these rows, not about others.

A value is only known to lie in an interval (a recovery: between the last late tuple and the first on time), perhaps
without an upper end. Where in it nobody knows, and the share of the way is taken to be the same on both sides, as when
faults come at all phases of a cycle. The difference is then largest or least where all values stand at their lower
ends, or all at their upper ends, and the answer is what holds at both: its interval covers both intervals, its p is the
larger one. No distribution is assumed, and nothing is ever known more exactly than the values are.

Where all ends are finite this is Student's t. Where some are not, as of a recovery that was not seen to end, it is the
signed-rank test of Wilcoxon over all pairs, for which an infinite difference is just the largest; it takes six pairs to
give an interval at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from faultline.comparison.statistics.intervals import CONFIDENCE, Interval
from faultline.comparison.statistics.ranks import POWER
from faultline.comparison.statistics.sample import Floats, walsh_averages

# More repetitions than this nobody measures.
MOST = 1_000


@dataclass(frozen=True)
class Between:
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


@dataclass(frozen=True)
class Row:
    """Both sides of one configuration, each by number of repetition; none of them empty."""

    before: Mapping[int, Between]
    after: Mapping[int, Between]

    def __post_init__(self) -> None:
        if not self.before or not self.after:
            raise ValueError("a row has repetitions on both sides")

    @property
    def paired(self) -> bool:
        """Whether both sides have the same repetitions."""
        return self.before.keys() == self.after.keys()

    def in_pairs(self) -> Row:
        """The repetitions that both sides have, where these are the better part of one side and two at least; else all.

        A repetition is measured as a block: what both sides of it have in common says more than what one has alone.
        """
        common = self.before.keys() & self.after.keys()
        if len(common) < max(2, min(len(self.before), len(self.after)) / 2):
            return self
        sides = [{number: side[number] for number in sorted(common)} for side in (self.before, self.after)]
        return Row(*sides)


@dataclass(frozen=True)
class Estimate:
    """By how much the side after exceeds the one before, on average over the rows.

    `change`: with its 95 % interval, whose ends may be infinite. `n`: pairs, or repetitions of the smaller side of
    each row where they do not pair. `freedom`: repetitions beyond the first of each row. `spread`: standard deviation
    of one difference; None where it is not known. `blur`: how far from its middle
    the difference may lie, as the values are known.
    `p`: two-sided, of no difference. `rows`: the middle of each.
    """

    change: Interval
    n: int
    paired: bool
    freedom: int
    spread: float | None
    blur: float
    p: float
    rows: tuple[float, ...]


def estimate(rows: Sequence[Row]) -> Estimate:
    """The difference over all rows. Raises ValueError when there is none."""
    if not rows:
        raise ValueError("no rows")
    rows = [row.in_pairs() for row in rows]
    ends = _ends(rows)
    low, high = (_bound(ends, below=below) for below in (True, False))
    middle, spread, _ = _student(_sides(rows, lambda one: one.middle))
    freedom = sum(min(len(row.before), len(row.after)) - 1 for row in rows)
    each = tuple(_student([one])[0] for one in _sides(rows, lambda one: one.middle))
    if not math.isfinite(middle):  # the middle of what is known of all, which infinite ends do not move far
        middle = _central(ends[0])
    blur = abs(_student(ends[1])[0] - _student(ends[0])[0]) / 2
    blur = math.inf if math.isnan(blur) else blur
    p = min(1.0, 2 * min(_tail(ends, 0.0, below=True), _tail(ends, 0.0, below=False)))
    return Estimate(
        change=Interval(middle, min(low, middle), max(high, middle)),
        n=sum(min(len(row.before), len(row.after)) for row in rows),
        paired=all(row.paired for row in rows),
        freedom=freedom,
        spread=spread,
        blur=blur,
        p=p,
        rows=each,
    )


def p_beyond(rows: Sequence[Row], margin: float) -> float:
    """How likely differences as close to none as these are, if the true one were `margin` or more either way.

    Two one-sided tests (Schuirmann 1987), twice the larger one: at most 0.05 where the 95 % interval lies within.
    """
    ends = _ends(rows)
    below, above = _tail(ends, -margin, below=True), _tail(ends, margin, below=False)
    return min(1.0, 2 * max(below, above))


def needed_pairs(found: Estimate, margin: float, alpha: float) -> int | None:
    """With how many pairs in all a study like this would tell four times in five, at level `alpha`, if what was found
    is true: that there is a difference, or that it is less than `margin`; whichever takes fewer.

    None where the spread is not known, or no number up to MOST would do: then it is as large as the margin, or too
    small for how exactly the values are known.
    """
    if found.spread is None or not math.isfinite(found.change.value):
        return None
    size = abs(found.change.value)
    apart = max(size, margin - size) - found.blur
    if apart <= 0:
        return None
    return next((n for n in _sizes() if _reach(n, alpha) * found.spread <= apart), None)


def _sizes() -> Sequence[int]:
    return [*range(3, 60), *range(60, 200, 5), *range(200, MOST + 1, 50)]


@cache
def _reach(n: int, alpha: float) -> float:
    """What n pairs see, in standard deviations of a difference."""
    return float((stats.t.ppf(1 - alpha / 2, n - 1) + stats.t.ppf(POWER, n - 1)) / math.sqrt(n))


@dataclass(frozen=True)
class _Side:
    """Numbers of one row: differences of its pairs, or both samples where there are no pairs."""

    pairs: Floats | None
    before: Floats
    after: Floats


def _ends(rows: Sequence[Row]) -> tuple[list[_Side], list[_Side]]:
    """All values at their lower ends, and all at their upper ends."""
    return _sides(rows, lambda one: one.low), _sides(rows, lambda one: one.high)


def _sides(rows: Sequence[Row], pick: Callable[[Between], float]) -> list[_Side]:
    found = []
    for row in rows:
        order = sorted(row.before)
        before = np.array([pick(row.before[key]) for key in order])
        after = np.array([pick(row.after[key]) for key in (order if row.paired else sorted(row.after))])
        with np.errstate(invalid="ignore"):
            # Of two without an end nobody knows which is more: not a number.
            found.append(_Side(after - before if row.paired else None, before, after))
    return found


def _student(sides: Sequence[_Side]) -> tuple[float, float | None, float]:
    """Mean over rows of their means, standard deviation of one difference, and its degrees of freedom."""
    means, squares, freedom, unpaired = [], 0.0, 0, False
    for one in sides:
        if one.pairs is not None:
            with np.errstate(invalid="ignore"):
                means.append(float(one.pairs.mean()))
            samples = [one.pairs]
        else:
            with np.errstate(invalid="ignore"):
                means.append(float(one.after.mean() - one.before.mean()))
            samples, unpaired = [one.before, one.after], True
        # What has no end tells nothing of the scatter.
        for sample in (kept for one_of in samples if len(kept := one_of[np.isfinite(one_of)])):
            squares += float(((sample - sample.mean()) ** 2).sum())
            freedom += len(sample) - 1
    # The difference of two values without a pair scatters by both.
    spread = math.sqrt(squares / freedom * (2 if unpaired else 1)) if freedom else None
    with np.errstate(invalid="ignore"):
        return float(np.mean(means)), spread, float(freedom)


def _error(sides: Sequence[_Side]) -> float:
    """Of the mean over rows, in standard deviations of one difference."""
    shares = [
        1 / len(one.pairs) if one.pairs is not None else (1 / len(one.before) + 1 / len(one.after)) / 2 for one in sides
    ]
    return math.sqrt(sum(shares)) / len(shares)


def _finite(sides: Sequence[_Side]) -> bool:
    return all(np.isfinite(one.before).all() and np.isfinite(one.after).all() for one in sides)


def _bound(ends: Sequence[Sequence[_Side]], *, below: bool) -> float:
    """One end of the 95 % interval: what holds at both ends of the values."""
    found = [_bound_at(sides, below=below) for sides in ends]
    return min(found) if below else max(found)


def _tail(ends: Sequence[Sequence[_Side]], at: float, *, below: bool) -> float:
    """One-sided p of the true difference being `at` or less (`below`), or `at` or more; at either end of the values."""
    return max(_tail_at(sides, at, below=below) for sides in ends)


def _bound_at(sides: Sequence[_Side], *, below: bool) -> float:
    worst = -math.inf if below else math.inf
    if _finite(sides):
        mean, spread, freedom = _student(sides)
        if spread is None:
            return worst
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * spread * _error(sides)
        return mean - reach if below else mean + reach
    pairs = _pairs(sides, below=below)
    if pairs is None:
        return worst
    averages = walsh_averages(pairs)
    # The k-th smallest average of two, where a sum of ranks below k has no more than the chance of one tail.
    k = int((np.cumsum(_rank_sums(len(pairs))) <= (1 - CONFIDENCE) / 2 + 1e-12).sum())
    if not k:
        return worst
    return float(averages[k - 1] if below else averages[len(averages) - k])


def _tail_at(sides: Sequence[_Side], at: float, *, below: bool) -> float:
    if _finite(sides):
        mean, spread, freedom = _student(sides)
        if spread is None:
            return 1.0
        away = mean - at if below else at - mean
        error = spread * _error(sides)
        return float(stats.t.sf(away / error, freedom)) if error > 0 else float(away <= 0)
    pairs = _pairs(sides, below=below)
    if pairs is None:
        return 1.0
    away_each = pairs - at if below else at - pairs
    # The sum of ranks of the positive differences is the number of averages of two that are positive.
    positive = int((walsh_averages(away_each) > 0).sum())  # a tie counts against
    return float(_rank_sums(len(pairs))[positive:].sum())


def _pairs(sides: Sequence[_Side], *, below: bool) -> Floats | None:
    """All differences, those of which nobody knows anything at the end that proves least; None where some have no
    pair."""
    found = [one.pairs for one in sides if one.pairs is not None]
    if len(found) < len(sides):
        return None
    pairs = np.concatenate(found)
    return np.where(np.isnan(pairs), -math.inf if below else math.inf, pairs)


def _central(lowest: Sequence[_Side]) -> float:
    """The median of all averages of two, with what has no end where it was last seen."""
    pairs = _pairs(lowest, below=True)
    return math.nan if pairs is None else float(np.median(walsh_averages(pairs)))


@cache
def _rank_sums(n: int) -> Floats:
    """Chances of each sum of ranks of the positive ones among n differences whose signs are chance."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        grown = np.zeros(len(chances) + rank)
        grown[: len(chances)] += chances / 2
        grown[rank:] += chances / 2
        chances = grown
    return chances
