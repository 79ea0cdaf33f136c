"""Recommendation of the cheapest configuration that meets all limits, with its confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from faultline.comparison.candidates import COSTS, Candidate, ParetoChoice, SampledFronts, sample_figures
from faultline.comparison.statistics.estimate import MIN_REPETITIONS, Floats
from faultline.system.errors import ConfigError

# Share of the draws that makes a recommendation conclusive: an error in one of five costs less than further
# measurements, and the confidence is shown.
MIN_CONFIDENCE = 0.8
# Smallest share of draws of a contender; other candidates need no further repetitions.
MIN_CONTENDER_SHARE = 0.05
_SIZES = (5, 6, 8, 10, 15, 20, 30, 50, 80)


@dataclass(frozen=True)
class Objective:
    """Objective of a recommendation: minimise `minimise`, a key of COSTS, within `limits` by key.

    An infinite limit requires a finite figure, such as an observed recovery.
    """

    minimise: str
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in (self.minimise, *self.limits):
            if key not in COSTS:
                raise ValueError(f"{key}: unknown; expected one of {', '.join(COSTS)}")
        if not all(limit > 0 for limit in self.limits.values()):  # nor NaN
            raise ValueError("limits: expected numbers above 0")


@dataclass(frozen=True)
class Recommendation:
    """Recommended configuration.

    `best`: by medians, the least cost within the limits; None if no candidate meets them. `nearest` then violates the
    limits least, by the figures `missed`. `confidence`: share of the draws in which `best` is best; `runner_up`: the
    candidate that is best most often otherwise, with its share. `is_conclusive`: whether the confidence suffices.
    `experiments`: further experiments that would suffice, each contender repeated up to `target_repetitions` times;
    None if unknown. `unknown`: names of candidates that lack a figure.
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
    """Return the recommendation. Raises ConfigError without a choice, or if no candidate has a figure."""
    if len(choice.candidates) < 2:
        raise ConfigError(_no_choice_text(choice))
    costs = tuple(dict.fromkeys((objective.minimise, *objective.limits)))
    keys = tuple(COSTS[cost] for cost in costs)
    figures = [{cost: one.figure(COSTS[cost]) for cost in costs} for one in choice.candidates]
    for cost in costs:
        if all(figure[cost] is None for figure in figures):
            raise ConfigError(
                f"{cost}: unknown for every configuration of the sweep; expected one of {', '.join(COSTS)}"
            )
    whole = [place for place, figure in enumerate(figures) if None not in figure.values()]
    unknown = tuple(one.name for place, one in enumerate(choice.candidates) if place not in whole)
    known = [choice.candidates[place] for place in whole]
    # An unknown figure meets no limit.
    values = [{cost: math.inf if (one := figures[place][cost]) is None else one for cost in costs} for place in whole]
    within = [place for place, figure in enumerate(values) if _meets_limits(figure, objective)]
    # On a tie, the first candidate.
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
    # With few repetitions all draws are alike, so that they show no contenders.
    few = [place for place, one in enumerate(known) if one.repetitions < MIN_REPETITIONS]
    sure = float(shares[number])
    if not few and sure >= MIN_CONFIDENCE:
        return Recommendation(objective, best, sure, second, is_conclusive=True, unknown=unknown)
    up_to = MIN_REPETITIONS if few else _sufficient_repetitions(known, keys, objective, number)
    measured = few or contenders
    experiments = None if up_to is None else _count_experiments([known[place] for place in measured], up_to)
    return Recommendation(objective, best, sure, second, False, experiments, up_to, unknown=unknown)


def _is_within(value: float, limit: float) -> bool:
    """Return whether a figure is finite and within the limit, which may be infinite."""
    return math.isfinite(value) and value <= limit


def _meets_limits(figure: Mapping[str, float], objective: Objective) -> bool:
    return math.isfinite(figure[objective.minimise]) and all(
        _is_within(figure[key], limit) for key, limit in objective.limits.items()
    )


def _excess(figure: Mapping[str, float], objective: Objective) -> tuple[int, float, float]:
    """Return by how much the limits are exceeded: infinite figures, largest ratio, and the cost."""
    known = [figure[key] / limit for key, limit in objective.limits.items() if math.isfinite(figure[key])]
    return len(objective.limits) - len(known), max(known, default=0.0), figure[objective.minimise]


def _shares(drawn: SampledFronts, objective: Objective) -> Floats:
    """Return in which share of the draws each candidate is best within the limits; ties are shared."""
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
    """Return the repetitions that would make the choice conclusive if the measured figures are true."""
    usual = known[number].repetitions
    for size in _SIZES:
        if size > usual and _shares(sample_figures(known, keys, repetitions=size), objective)[number] >= MIN_CONFIDENCE:
            return size
    return None


def _count_experiments(candidates: Sequence[Candidate], up_to: int) -> int:
    # A repetition that two sweeps have measured counts once.
    measured = (len({entry.repetition for entry in point.valid}) for one in candidates for point in one.points)
    return sum(max(0, up_to - number) for number in measured)


def _no_choice_text(choice: ParetoChoice) -> str:
    if choice.incomplete:
        return (
            f"{choice.incomplete[0]}: not measured in all of these cases: {'; '.join(choice.circumstances)}; "
            "fix: measure the missing cells, see `./faultline missing`"
        )
    if choice.overloaded:
        kept = f"only {choice.candidates[0].name} keeps up" if choice.candidates else "none keeps up"
        return f"{'; '.join(choice.overloaded)}: load not sustained, {kept}; fix: lower the rate"
    if choice.unusable:
        return f"choice: no usable run of {'; '.join(choice.unusable)}; fix: measure it again"
    varied, given = (
        " and ".join(axis.noun for axis in choice.circumstance_axes),
        "is" if len(choice.circumstance_axes) == 1 else "are",
    )
    what = f"it varies {varied}, which {given} given" if varied else "it has one configuration"
    return f"the sweep leaves nothing to choose: {what}; vary a setting, such as checkpoint_interval_s"
