"""Variance components of recoveries: between runs and within a run, and what they say of the next runs.

Describes only; claims are made from run values (`estimate`, `sequential`). One-way analysis of variance with unequal
numbers, each configuration with its own mean. Intervals are those of the F distribution, so they hold for values that
scatter normally, and nearly for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from faultline.comparison.statistics.estimate import CONFIDENCE, Interval

# A slope over the number of the injection takes so many recoveries of a run.
LEAST_FOR_SLOPE = 3
# Beyond this number of injections a start takes less than a tenth of a run: more of them save next to nothing.
STARTS_PER_RUN = 9
MOST_INJECTIONS = 64

# Values of one run; runs of one configuration; configurations.
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Components:
    """Variances in the square of the values' unit, pooled over configurations.

    `between`: None where no configuration has two runs; never below 0. `ratio`: between ÷ within with its 95 %
    interval, None as `between`; infinite where nothing scatters within runs. `runs`: that have a value; `values`: of
    them all.
    """

    within: float
    between: float | None
    ratio: Interval | None
    runs: int
    values: int

    @property
    def correlation(self) -> Interval | None:
        """Intraclass correlation: the share of the variance that lies between runs, with its 95 % interval."""
        if self.ratio is None:
            return None
        return Interval(*(_share(one) for one in (self.ratio.value, self.ratio.low, self.ratio.high)))


@dataclass(frozen=True)
class Slope:
    """Change of the values per injection: mean of the runs' slopes with its 95 % interval, infinite for one run."""

    change: Interval
    runs: int


def components(configurations: Sequence[Runs]) -> Components | None:
    """The components; None where no run has two values. Runs without a value do not count."""
    known = [[np.asarray(run, dtype=np.float64) for run in runs if len(run)] for runs in configurations]
    runs = [run for group in known for run in group]
    values, free_within = sum(map(len, runs)), sum(len(run) - 1 for run in runs)
    if not free_within:
        return None
    within = sum(float(((run - run.mean()) ** 2).sum()) for run in runs) / free_within
    free_between = sum(len(group) - 1 for group in known if group)
    if not free_between:
        return Components(within, None, None, len(runs), values)
    squares, size = 0.0, 0.0
    for group in known:
        sizes = np.array([len(run) for run in group], dtype=np.float64)
        if len(group) > 1:
            means = np.array([run.mean() for run in group])
            squares += float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum())
            size += float(sizes.sum() - (sizes**2).sum() / sizes.sum())
    # The usual number of values of a run, where runs have unequal ones.
    size /= free_between
    mean_square = squares / free_between
    between = max(0.0, (mean_square - within) / size)
    return Components(within, between, _ratio(mean_square, within, size, free_between, free_within), len(runs), values)


def best_injections(ratio: float, start_s: float, injection_s: float) -> int:
    """The number of injections per run that minimises variance per machine-hour (Kalibera and Jones 2013).

    sqrt((cost of a start ÷ cost of an injection) ÷ ratio), where `ratio` is the variance between runs ÷ that within.
    At most the number at which a start takes a tenth of a run; this many where no variance between runs is seen.
    """
    most = max(1, min(MOST_INJECTIONS, math.ceil(STARTS_PER_RUN * start_s / injection_s)))
    if ratio <= 0:
        return most
    exact = math.sqrt(start_s / injection_s / ratio)
    if exact >= most:
        return most
    lower = max(1, math.floor(exact))
    return min((lower, min(most, lower + 1)), key=lambda k: price(ratio, k, start_s, injection_s))


def price(ratio: float, injections: float, start_s: float, injection_s: float) -> float:
    """Machine time × variance of the estimate, in units of the variance within: half of it, half the cost of knowing
    as much."""
    if math.isinf(ratio):
        return start_s + injections * injection_s
    return (start_s + injections * injection_s) * (ratio + 1 / injections)


def slope(runs: Sequence[Sequence[tuple[int, float]]]) -> Slope | None:
    """How values change with the number of the injection, over the runs that have LEAST_FOR_SLOPE of them or more.

    A run's slope is that of least squares; runs count alike, since recoveries of one run are not independent. None
    without such a run.
    """
    slopes = [_slope(run) for run in runs if len({number for number, _ in run}) >= LEAST_FOR_SLOPE]
    if not slopes:
        return None
    mean, reach = float(np.mean(slopes)), math.inf
    if len(slopes) > 1:
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(slopes) - 1))
        reach = quantile * float(np.std(slopes, ddof=1)) / math.sqrt(len(slopes))
    return Slope(Interval(mean, mean - reach, mean + reach), len(slopes))


def _slope(run: Sequence[tuple[int, float]]) -> float:
    numbers, values = (np.array(one, dtype=np.float64) for one in zip(*run, strict=True))
    off = numbers - numbers.mean()
    return float((off * values).sum() / (off**2).sum())


def _ratio(mean_square: float, within: float, size: float, free_between: int, free_within: int) -> Interval:
    if not within:
        return Interval(math.inf, math.inf if mean_square else 0.0, math.inf)
    tail = (1 - CONFIDENCE) / 2
    low, high = (mean_square / within / float(stats.f.ppf(one, free_between, free_within)) for one in (1 - tail, tail))
    return Interval(*(max(0.0, (one - 1) / size) for one in (mean_square / within, low, high)))


def _share(ratio: float) -> float:
    return 1.0 if math.isinf(ratio) else ratio / (1 + ratio)
