"""Which configuration to choose: the least of one cost among those that keep within limits, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from faultline.comparison.candidates import COSTS, Candidate, ParetoChoice, SampledFronts, draw
from faultline.comparison.statistics.estimate import LEAST, Floats
from faultline.system.errors import ConfigError

# A choice is told when it is the best in so many of the draws: wrong one time in five costs less than measuring on,
# and whoever wants to be surer sees how sure it is.
SURE = 0.8
# A candidate that is the best less often than this is no contender, and needs no more repetitions.
CONTENDER = 0.05
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

    wish: Objective
    best: Candidate | None
    sure: float = 0.0
    second: tuple[Candidate, float] | None = None
    told: bool = False
    experiments: int | None = None
    up_to: int | None = None
    nearest: Candidate | None = None
    missed: Mapping[str, float] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def advise(choice: ParetoChoice, wish: Objective) -> Recommendation:
    """The advice. Raises ConfigError when there is nothing to choose, or no candidate knows a figure."""
    if len(choice.candidates) < 2:
        raise ConfigError(_nothing(choice))
    costs = tuple(dict.fromkeys((wish.minimise, *wish.limits)))
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
    within = [place for place, figure in enumerate(values) if _keeps(figure, wish)]
    # Of two with the same figure the first.
    number = min(within, key=lambda place: values[place][wish.minimise], default=None)
    if number is None:
        nearest = min(range(len(known)), key=lambda place: _excess(values[place], wish), default=None)
        if nearest is None:
            return Recommendation(wish, None, unknown=unknown)
        limits = {wish.minimise: math.inf, **wish.limits}
        missed = {key: values[nearest][key] for key in limits if not _below(values[nearest][key], limits[key])}
        return Recommendation(wish, None, nearest=known[nearest], missed=missed, unknown=unknown)
    best = known[number]
    shares = _shares(draw(known, keys), wish)
    others = [other for other in range(len(known)) if other != number]
    next_best = max(others, key=lambda other: shares[other], default=None)
    second = None if next_best is None or not shares[next_best] else (known[next_best], float(shares[next_best]))
    contenders = sorted({number, *(other for other in others if shares[other] >= CONTENDER)})
    # Also those few runs say nothing about: with one repetition every draw is the same.
    few = [place for place, one in enumerate(known) if one.repetitions < LEAST]
    sure = float(shares[number])
    if not few and sure >= SURE:
        return Recommendation(wish, best, sure, second, told=True, unknown=unknown)
    up_to = LEAST if few else _enough(known, keys, wish, number)
    measured = few or contenders
    experiments = None if up_to is None else _experiments([known[place] for place in measured], up_to)
    return Recommendation(wish, best, sure, second, False, experiments, up_to, unknown=unknown)


def _below(value: float, limit: float) -> bool:
    """Whether it is known and no more; the limit may be infinite, a figure must not."""
    return math.isfinite(value) and value <= limit


def _keeps(figure: Mapping[str, float], wish: Objective) -> bool:
    return math.isfinite(figure[wish.minimise]) and all(
        _below(figure[key], limit) for key, limit in wish.limits.items()
    )


def _excess(figure: Mapping[str, float], wish: Objective) -> tuple[int, float, float]:
    """By how much it misses the limits: how many are infinite, the largest ratio, and what is minimised."""
    known = [figure[key] / limit for key, limit in wish.limits.items() if math.isfinite(figure[key])]
    return len(wish.limits) - len(known), max(known, default=0.0), figure[wish.minimise]


def _shares(drawn: SampledFronts, wish: Objective) -> Floats:
    """In which share of the draws each candidate is the best within the limits; shared where several are."""
    cost = drawn.likely[COSTS[wish.minimise]].copy()
    for key, limit in wish.limits.items():
        drawn_key = drawn.highest[COSTS[key]]
        cost[(drawn_key > limit) | ~np.isfinite(drawn_key)] = math.inf
    least = cost.min(axis=1, keepdims=True)
    best = (cost == least) & np.isfinite(cost)
    return np.asarray((best / np.maximum(best.sum(axis=1, keepdims=True), 1)).mean(axis=0))


def _enough(known: Sequence[Candidate], keys: Sequence[str], wish: Objective, number: int) -> int | None:
    """With how many repetitions the choice would be sure, if what was measured is how it is."""
    usual = known[number].repetitions
    for size in _SIZES:
        if size > usual and _shares(draw(known, keys, repetitions=size), wish)[number] >= SURE:
            return size
    return None


def _experiments(candidates: Sequence[Candidate], up_to: int) -> int:
    # A repetition that two sweeps have measured is one.
    measured = (len({entry.repetition for entry in point.valid}) for one in candidates for point in one.points)
    return sum(max(0, up_to - number) for number in measured)


def _nothing(choice: ParetoChoice) -> str:
    if choice.incomplete:
        return (
            f"{choice.incomplete[0]}: was not measured in all of these cases: {'; '.join(choice.given)}. There is "
            "nothing to choose between; `./faultline missing` lists what is lacking"
        )
    if choice.overloaded:
        kept = f"only {choice.candidates[0].name} keeps up" if choice.candidates else "none keeps up"
        return f"{'; '.join(choice.overloaded)}: did not keep up with the load, {kept}; offer a lower rate to compare"
    if choice.unusable:
        return f"there is nothing to compare yet: no run of {'; '.join(choice.unusable)} is usable; measure it again"
    varied, given = " and ".join(axis.noun for axis in choice.varied), "is" if len(choice.varied) == 1 else "are"
    what = f"it varies {varied}, which {given} given" if varied else "it has one configuration"
    return f"the sweep leaves nothing to choose: {what}; vary a setting, such as checkpoint_interval_s"
