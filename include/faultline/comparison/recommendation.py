"""Which configuration to choose: the least of one cost among those that keep within limits, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from faultline.comparison.candidates import COSTS, Candidate, ParetoChoice, SampledFronts, sample_figures
from faultline.comparison.statistics.estimate import MIN_REPETITIONS, Floats
from faultline.system.errors import ConfigError

# A choice is told when it is the best in so many of the draws: wrong one time in five costs less than measuring on,
# and whoever wants to be surer sees how sure it is.
MIN_CONFIDENCE = 0.8
# A candidate that is the best less often than this is no contender, and needs no more repetitions.
MIN_CONTENDER_SHARE = 0.05
_SIZES = (5, 6, 8, 10, 15, 20, 30, 50, 80)


@dataclass(frozen=True)
class Objective:
    """What is asked for: the least of `minimise`, a key of COSTS, and no more than each of `limits`, by key.

    A limit that is infinite asks that the figure has an end at all: that it recovers.
    """

    minimise: str
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in (self.minimise, *self.limits):
            if key not in COSTS:
                raise ValueError(f"{key}: is none of {', '.join(COSTS)}")
        if not all(limit > 0 for limit in self.limits.values()):  # nor NaN
            raise ValueError("limits are above 0")


@dataclass(frozen=True)
class Recommendation:
    """What to choose. `best`: by medians, the least of what is asked for among those within the limits; None when none
    is, and `nearest` then misses `missed` (by key: its figure) least.

    `sure`: in which share of the draws `best` is the best; `second`: which one is else most often, and in which
    share. `told`: whether that is enough to choose; `experiments`: so many more would tell, each contender repeated up
    to `up_to` times; None when nobody knows. `unknown`: names of candidates that lack a figure.
    """

    objective: Objective
    best: Candidate | None
    confidence: float = 0.0
    runner_up: tuple[Candidate, float] | None = None
    is_conclusive: bool = False
    experiments: int | None = None
    target_repetitions: int | None = None
    nearest: Candidate | None = None
    missed: Mapping[str, float] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def recommend(choice: ParetoChoice, objective: Objective) -> Recommendation:
    """The advice. Raises ConfigError when there is nothing to choose, or no candidate knows a figure."""
    if len(choice.candidates) < 2:
        raise ConfigError(_no_choice_text(choice))
    costs = tuple(dict.fromkeys((objective.minimise, *objective.limits)))
    keys = tuple(COSTS[cost] for cost in costs)
    figures = [{cost: one.figure(COSTS[cost]) for cost in costs} for one in choice.candidates]
    for cost in costs:
        if all(figure[cost] is None for figure in figures):
            raise ConfigError(
                f"{cost}: not known of any configuration of the sweep; ask for another of {', '.join(COSTS)}"
            )
    whole = [place for place, figure in enumerate(figures) if None not in figure.values()]
    unknown = tuple(one.name for place, one in enumerate(choice.candidates) if place not in whole)
    known = [choice.candidates[place] for place in whole]
    # Of what nothing is known nothing is within a limit.
    values = [{cost: math.inf if (one := figures[place][cost]) is None else one for cost in costs} for place in whole]
    within = [place for place, figure in enumerate(values) if _meets_limits(figure, objective)]
    # Of two with the same figure the first.
    number = min(within, key=lambda place: values[place][objective.minimise], default=None)
    if number is None:
        nearest = min(range(len(known)), key=lambda place: _excess(values[place], objective), default=None)
        if nearest is None:
            return Recommendation(objective, None, unknown=unknown)
        limits = {objective.minimise: math.inf, **objective.limits}
        missed = {key: values[nearest][key] for key in limits if not _is_within(values[nearest][key], limits[key])}
        return Recommendation(objective, None, nearest=known[nearest], missed=missed, unknown=unknown)
    best = known[number]
    shares = _shares(sample_figures(known, keys), objective)
    others = [other for other in range(len(known)) if other != number]
    next_best = max(others, key=lambda other: shares[other], default=None)
    second = None if next_best is None or not shares[next_best] else (known[next_best], float(shares[next_best]))
    contenders = sorted({number, *(other for other in others if shares[other] >= MIN_CONTENDER_SHARE)})
    # Also those few runs say nothing about: with one repetition every draw is the same.
    few = [place for place, one in enumerate(known) if one.repetitions < MIN_REPETITIONS]
    sure = float(shares[number])
    if not few and sure >= MIN_CONFIDENCE:
        return Recommendation(objective, best, sure, second, is_conclusive=True, unknown=unknown)
    up_to = MIN_REPETITIONS if few else _sufficient_repetitions(known, keys, objective, number)
    measured = few or contenders
    experiments = None if up_to is None else _count_experiments([known[place] for place in measured], up_to)
    return Recommendation(objective, best, sure, second, False, experiments, up_to, unknown=unknown)


def _is_within(value: float, limit: float) -> bool:
    """Whether it is known and no more; the limit may be infinite, a figure must not."""
    return math.isfinite(value) and value <= limit


def _meets_limits(figure: Mapping[str, float], objective: Objective) -> bool:
    return math.isfinite(figure[objective.minimise]) and all(
        _is_within(figure[key], limit) for key, limit in objective.limits.items()
    )


def _excess(figure: Mapping[str, float], objective: Objective) -> tuple[int, float, float]:
    """By how much it misses the limits: how many are infinite, the largest ratio, and what is minimised."""
    known = [figure[key] / limit for key, limit in objective.limits.items() if math.isfinite(figure[key])]
    return len(objective.limits) - len(known), max(known, default=0.0), figure[objective.minimise]


def _shares(drawn: SampledFronts, objective: Objective) -> Floats:
    """In which share of the draws each candidate is the best within the limits; shared where several are."""
    cost = drawn.likely[COSTS[objective.minimise]].copy()
    for key, limit in objective.limits.items():
        drawn_key = drawn.highest[COSTS[key]]
        cost[(drawn_key > limit) | ~np.isfinite(drawn_key)] = math.inf
    least = cost.min(axis=1, keepdims=True)
    best = (cost == least) & np.isfinite(cost)
    return np.asarray((best / np.maximum(best.sum(axis=1, keepdims=True), 1)).mean(axis=0))


def _sufficient_repetitions(
    known: Sequence[Candidate], keys: Sequence[str], objective: Objective, number: int
) -> int | None:
    """With how many repetitions the choice would be sure, if what was measured is how it is."""
    usual = known[number].repetitions
    for size in _SIZES:
        if size > usual and _shares(sample_figures(known, keys, repetitions=size), objective)[number] >= MIN_CONFIDENCE:
            return size
    return None


def _count_experiments(candidates: Sequence[Candidate], up_to: int) -> int:
    # A repetition that two sweeps have measured is one.
    measured = (len({entry.repetition for entry in point.valid}) for one in candidates for point in one.points)
    return sum(max(0, up_to - number) for number in measured)


def _no_choice_text(choice: ParetoChoice) -> str:
    if choice.incomplete:
        return (
            f"{choice.incomplete[0]}: was not measured in all of these cases: {'; '.join(choice.circumstances)}. "
            "There is nothing to choose between; `./faultline missing` lists what is lacking"
        )
    if choice.overloaded:
        kept = f"only {choice.candidates[0].name} keeps up" if choice.candidates else "none keeps up"
        return f"{'; '.join(choice.overloaded)}: did not keep up with the load, {kept}; offer a lower rate to compare"
    if choice.unusable:
        return f"there is nothing to compare yet: no run of {'; '.join(choice.unusable)} is usable; measure it again"
    varied, given = (
        " and ".join(axis.noun for axis in choice.circumstance_axes),
        "is" if len(choice.circumstance_axes) == 1 else "are",
    )
    what = f"it varies {varied}, which {given} given" if varied else "it has one configuration"
    return f"the sweep leaves nothing to choose: {what}; vary a setting, such as checkpoint_interval_s"
