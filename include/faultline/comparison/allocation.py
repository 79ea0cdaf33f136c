"""How machine time is best spent on recoveries: more runs, or more injections in each.

Recoveries of one run resemble each other, so from some number on another injection adds less than another run. Where
that is, follows from the variances between and within runs and from what a start and an injection cost. The number of
injections is part of a configuration: it cannot change within a sweep, so what comes out is advice for the next one.
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

# Fewer gaps between runs say too little of what a start takes: one of them may hold an interruption.
MIN_GAPS = 3
# A share of machine time that is worth another configuration.
MIN_SAVING = 0.1


@dataclass(frozen=True)
class Costs:
    """Machine time in seconds: of a run without its injections (start, warm-up, end), and of each injection with the
    baseline before it. `measured`: which of both; the other is assumed."""

    start_s: float
    injection_s: float
    measured: tuple[bool, bool]


@dataclass(frozen=True)
class Allocation:
    """What the recoveries of several runs say of the next ones.

    `open_ended`: recoveries not seen to end, taken where they were last known not to be over, so that variances are
    too small rather than too large. `injections`: median number of recoveries of a run. `best`, `least`, `most`:
    injections per run with the narrowest interval per machine-hour, and the range that the variances leave; None for
    single runs. `saving`: share of machine time that `best` saves for the same interval.
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
        """Whether another number of injections saves enough to make another sweep of it."""
        return self.saving >= MIN_SAVING

    def equivalent_runs(self, runs: int) -> int:
        """Runs with `best` injections that give the same interval as `runs` with the present number."""
        ratio = self.components.ratio
        if self.best is None or ratio is None or math.isinf(ratio.value):
            return runs
        return math.ceil(runs * (ratio.value + 1 / self.best) / (ratio.value + 1 / self.injections))


def allocation_of(points: Sequence[Point], entries: Iterable[IndexEntry] = ()) -> Allocation | None:
    """The allocation over all configurations; None where no valid run has two recoveries.

    `entries`: all attempts of the sweeps, by which the machine's time is counted.
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
    """What runs cost by the clock of their records: `runs` with several injections, one at least, and all attempts of
    their sweeps.

    A start is the median time from the end of one window of a sweep to where the next one's would begin if the warm-up
    cost nothing; by default BESIDES_S and the warm-up. An injection is the median time between two of a run; by default
    its share of the window.
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
    """From T0 to T0 of consecutive attempts of one sweep on one host, less the window of the first, in seconds."""
    found: dict[tuple[str | None, str | None], list[tuple[float, float]]] = {}
    for one in entries:
        if one.window is not None:
            found.setdefault((one.sweep_id, one.surroundings.get("host")), []).append(one.window)
    for same in found.values():
        for (began_s, window_s), (following_s, _) in pairwise(sorted(same)):
            if following_s - began_s > window_s:
                yield following_s - began_s - window_s


# Variance components of recoveries: between runs and within a run, and what they say of the next runs.


# A slope over the number of the injection takes so many recoveries of a run.
MIN_FOR_SLOPE = 3
# Beyond this number of injections a start takes less than a tenth of a run: more of them save next to nothing.
STARTS_PER_RUN = 9
MAX_INJECTIONS = 64

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
    most = max(1, min(MAX_INJECTIONS, math.ceil(STARTS_PER_RUN * start_s / injection_s)))
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
