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

from faultline.comparison.cells import Point
from faultline.comparison.question import BESIDES_S
from faultline.comparison.statistics.components import (
    Components,
    Slope,
    best_injections,
    components,
    price,
    slope,
)
from faultline.records.summary import Entry

# Fewer gaps between runs say too little of what a start takes: one of them may hold an interruption.
LEAST_GAPS = 3
# A share of machine time that is worth another configuration.
WORTH_IT = 0.1


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
    ageing: Slope | None
    open_ended: int
    costs: Costs
    injections: int
    best: int | None = None
    least: int | None = None
    most: int | None = None
    saving: float = 0.0

    @property
    def worth_it(self) -> bool:
        """Whether another number of injections saves enough to make another sweep of it."""
        return self.saving >= WORTH_IT

    def runs_instead(self, runs: int) -> int:
        """Runs with `best` injections that give the same interval as `runs` with the present number."""
        ratio = self.components.ratio
        if self.best is None or ratio is None or math.isinf(ratio.value):
            return runs
        return math.ceil(runs * (ratio.value + 1 / self.best) / (ratio.value + 1 / self.injections))


def allocation_of(points: Sequence[Point], entries: Iterable[Entry] = ()) -> Allocation | None:
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
        found, ageing, draft.open_ended, costs, injections, best, least, most, saving=max(0.0, 1 - then / now)
    )


def costs_of(runs: Sequence[Entry], entries: Iterable[Entry] = ()) -> Costs:
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
    known = len(gaps) >= LEAST_GAPS, bool(spacings)
    return Costs(
        statistics.median(gaps) if known[0] else BESIDES_S + warm_up_s,
        max(1.0, statistics.median(spacings or shares)),
        known,
    )


def _gaps(entries: Iterable[Entry]) -> Iterator[float]:
    """From T0 to T0 of consecutive attempts of one sweep on one host, less the window of the first, in seconds."""
    found: dict[tuple[str | None, str | None], list[tuple[float, float]]] = {}
    for one in entries:
        if one.window is not None:
            found.setdefault((one.sweep_id, one.surroundings.get("host")), []).append(one.window)
    for same in found.values():
        for (began_s, window_s), (following_s, _) in pairwise(sorted(same)):
            if following_s - began_s > window_s:
                yield following_s - began_s - window_s
