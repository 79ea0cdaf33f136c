"""Allocation of machine time for recoveries: more runs, or more injections per run.

Recoveries of one run resemble each other, so beyond some number a further injection adds less information than a
further run. That number follows from the variances between and within runs and from the costs of a start and an
injection. The number of injections is part of a configuration, so the result is advice for the next sweep.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from faultline.comparison.config_points import Point
from faultline.comparison.decisions import OVERHEAD_S
from faultline.comparison.statistics.estimate import CONFIDENCE, Interval
from faultline.records.index_entry import IndexEntry

# With fewer gaps, a single interruption would distort the cost of a start.
MIN_GAPS = 3
# Saving of machine time that justifies another configuration.
MIN_SAVING = 0.1


@dataclass(frozen=True)
class Costs:
    """Machine time in seconds, for a run without injections, and for each injection with its baseline window.

    `measured`: for each of the two, whether it was measured rather than assumed.
    """

    start_s: float
    injection_s: float
    measured: tuple[bool, bool]


@dataclass(frozen=True)
class Allocation:
    """Variation of recoveries over several runs, and the best number of injections.

    `censored`: number of censored recoveries; they count with their lower bound, so variances tend to be too small.
    `injections`: median number of recoveries of a run. `best`: number of injections per run that gives the narrowest
    confidence interval per machine-hour; `least`, `most`: its range at the ends of the variance ratio's interval; None
    if no configuration has two runs. `saving`: share of machine time that `best` saves at an equally wide interval.
    """

    components: Components
    drift: Slope | None
    censored: int
    costs: Costs
    injections: int
    best: int | None = None
    least: int | None = None
    most: int | None = None
    saving: float = 0.0

    @property
    def is_worthwhile(self) -> bool:
        """Whether `best` saves enough machine time to justify a new sweep."""
        return self.saving >= MIN_SAVING

    def equivalent_runs(self, runs: int) -> int:
        """Return how many runs with `best` injections give as narrow an interval as `runs` runs with `injections`."""
        ratio = self.components.ratio
        if self.best is None or ratio is None or math.isinf(ratio.value):
            return runs
        return math.ceil(runs * (ratio.value + 1 / self.best) / (ratio.value + 1 / self.injections))


def allocation_of(points: Sequence[Point], entries: Iterable[IndexEntry] = ()) -> Allocation | None:
    """Return the allocation over all configurations; None if no usable run has two recoveries.

    `entries`: all attempts of the sweeps, for their costs.
    """
    runs = [[one.recoveries for one in point.valid if one.recoveries] for point in points]
    found = components([[[one.middle for one in run] for run in group] for group in runs])
    if found is None:
        return None
    every = [run for group in runs for run in group]
    ageing = slope([[(one.number, one.middle) for one in run] for run in every])
    costs = costs_of([one for point in points for one in point.valid if one.recoveries], entries)
    injections = round(statistics.median(map(len, every)))
    draft = Allocation(found, ageing, sum(one.high is None for run in every for one in run), costs, injections)
    if found.ratio is None:
        return draft
    best, least, most = (
        best_injections(ratio, costs.start_s, costs.injection_s)
        for ratio in (found.ratio.value, found.ratio.high, found.ratio.low)
    )
    now, then = (price(found.ratio.value, k, costs.start_s, costs.injection_s) for k in (injections, best))
    return Allocation(
        found, ageing, draft.censored, costs, injections, best, least, most, saving=max(0.0, 1 - then / now)
    )


def costs_of(runs: Sequence[IndexEntry], entries: Iterable[IndexEntry] = ()) -> Costs:
    """Return the costs of `runs`, each with at least one injection, from the times in their records.

    `entries`: all attempts of their sweeps. The cost of a start is the median time from the end of one measured window
    to the T0 (start of warm-up) of the next attempt; without enough attempts OVERHEAD_S plus the warm-up. The cost of
    an injection is the median time between two injections of a run; if no run has two, its share of the window.
    """
    gaps = list(_gaps(entries))
    spacings = [one.spacing_s for one in runs if one.spacing_s]
    warm_up_s = statistics.median(float(one.config["warmup_s"]) for one in runs)
    shares = [(one.window[1] if one.window else float(one.config["duration_s"])) / len(one.recoveries) for one in runs]
    known = len(gaps) >= MIN_GAPS, bool(spacings)
    return Costs(
        statistics.median(gaps) if known[0] else OVERHEAD_S + warm_up_s,
        max(1.0, statistics.median(spacings or shares)),
        known,
    )


def _gaps(entries: Iterable[IndexEntry]) -> Iterator[float]:
    """Yield, for consecutive attempts of one sweep on one host, the time from T0 to T0 less the first window, in s."""
    found: dict[tuple[str | None, str | None], list[tuple[float, float]]] = {}
    for one in entries:
        if one.window is not None:
            found.setdefault((one.sweep_id, one.surroundings.get("host")), []).append(one.window)
    for same in found.values():
        for (began_s, window_s), (following_s, _) in pairwise(sorted(same)):
            if following_s - began_s > window_s:
                yield following_s - began_s - window_s


# Variance components of recoveries: between runs and within a run


# Number of recoveries that a run needs for a slope.
MIN_FOR_SLOPE = 3
# Ratio of injection time to start time in one run; beyond it a start takes less than a tenth of the run, so more
# injections save little.
STARTS_PER_RUN = 9
MAX_INJECTIONS = 64

# Values of one run; runs of one configuration; configurations.
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Components:
    """Variance components within and between runs, in the squared unit of the values, pooled over configurations.

    `between`: None if no configuration has two runs; never below 0. `ratio`: between ÷ within with its 95 % interval;
    None if `between` is, infinite if `within` is 0. `runs`: number of runs with a value; `values`: number of values.
    """

    within: float
    between: float | None
    ratio: Interval | None
    runs: int
    values: int

    @property
    def correlation(self) -> Interval | None:
        """Intraclass correlation: share of the variance between runs, with its 95 % interval."""
        if self.ratio is None:
            return None
        return Interval(*(_share(one) for one in (self.ratio.value, self.ratio.low, self.ratio.high)))


@dataclass(frozen=True)
class Slope:
    """Change of the values per injection: mean over runs with its 95 % interval, infinite for one run."""

    change: Interval
    runs: int


def components(configurations: Sequence[Runs]) -> Components | None:
    """Return the variance components; None if no run has two values. Runs without a value do not count."""
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
    # Effective number of values of a run, for unequal runs.
    size /= free_between
    mean_square = squares / free_between
    between = max(0.0, (mean_square - within) / size)
    return Components(within, between, _ratio(mean_square, within, size, free_between, free_within), len(runs), values)


def best_injections(ratio: float, start_s: float, injection_s: float) -> int:
    """Return the number of injections per run that minimises variance × machine time (Kalibera and Jones 2013).

    It is sqrt((cost of a start ÷ cost of an injection) ÷ ratio), where `ratio` is the variance between runs divided by
    the variance within runs. It is never above the number at which a start takes a tenth of a run.
    """
    most = max(1, min(MAX_INJECTIONS, math.ceil(STARTS_PER_RUN * start_s / injection_s)))
    if ratio <= 0:
        return most
    exact = math.sqrt(start_s / injection_s / ratio)
    if exact >= most:
        return most
    lower = max(1, math.floor(exact))
    return min((lower, min(most, lower + 1)), key=lambda k: price(ratio, k, start_s, injection_s))


def price(ratio: float, injections: float, start_s: float, injection_s: float) -> float:
    """Return machine time × variance of the estimate, in units of the variance within a run."""
    if math.isinf(ratio):
        return start_s + injections * injection_s
    return (start_s + injections * injection_s) * (ratio + 1 / injections)


def slope(runs: Sequence[Sequence[tuple[int, float]]]) -> Slope | None:
    """Return the change of values with the number of the injection; None without a run of MIN_FOR_SLOPE injections.

    The slope of each run is fitted by least squares. Runs have equal weights, because recoveries of one run are not
    independent.
    """
    enough = [run for run in runs if len({number for number, _ in run}) >= MIN_FOR_SLOPE]
    slopes = [float(stats.linregress(*zip(*run, strict=True)).slope) for run in enough]
    if not slopes:
        return None
    mean, reach = float(np.mean(slopes)), math.inf
    if len(slopes) > 1:
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(slopes) - 1))
        reach = quantile * float(np.std(slopes, ddof=1)) / math.sqrt(len(slopes))
    return Slope(Interval(mean, mean - reach, mean + reach), len(slopes))


def _ratio(mean_square: float, within: float, size: float, free_between: int, free_within: int) -> Interval:
    if not within:
        return Interval(math.inf, math.inf if mean_square else 0.0, math.inf)
    tail = (1 - CONFIDENCE) / 2
    low, high = (mean_square / within / float(stats.f.ppf(one, free_between, free_within)) for one in (1 - tail, tail))
    return Interval(*(max(0.0, (one - 1) / size) for one in (mean_square / within, low, high)))


def _share(ratio: float) -> float:
    return 1.0 if math.isinf(ratio) else ratio / (1 + ratio)
