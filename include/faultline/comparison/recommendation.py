"""Recommendation of the cheapest configuration that meets all limits, with its confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from faultline.comparison.candidates import COSTS, Candidate, ParetoChoice, SampledFronts, sample_figures
from faultline.comparison.statistics.estimate import MIN_REPETITIONS, Floats
from faultline.system.errors import ConfigError

# A random draw resamples the figures of all candidates (see candidates.py); the cheapest one within the limits wins it.
# The choice is conclusive if it wins this share of the draws. 20 % wrong choices cost less
# than measuring more, and the user sees the confidence.
MIN_CONFIDENCE = 0.8
# A candidate that wins a smaller share of the draws is not a contender and needs no further repetitions.
MIN_CONTENDER_SHARE = 0.05
# Numbers of repetitions to try.
_SIZES = (5, 6, 8, 10, 15, 20, 30, 50, 80)


@dataclass(frozen=True)
class Objective:
    """Objective of a recommendation.

    `minimise`: key in COSTS of the cost to minimise. `limits`: upper limit per key in COSTS. A limit of infinity only
    requires that the figure is finite, for example that the recovery was observed.
    """

    minimise: str
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in (self.minimise, *self.limits):
            if key not in COSTS:
                raise ValueError(f"{key}: unknown; expected one of {', '.join(COSTS)}")
        if not all(limit > 0 for limit in self.limits.values()):  # also rejects NaN
            raise ValueError("limits: expected numbers above 0")


@dataclass(frozen=True)
class Recommendation:
    """Recommended configuration.

    `best`: candidate with the lowest median cost among those within all limits; None if there is none. In that case
    `nearest` is the candidate closest to the limits, and `missed` holds those of its figures that exceed a limit.
    `confidence`: share of the draws that `best` wins; `runner_up`: the candidate with the next largest share, and that
    share. `is_conclusive`: whether the confidence suffices. `experiments`: estimated number of further experiments
    needed for a conclusive choice; each contender then has `target_repetitions` repetitions. Both are None if unknown.
    `unknown`: names of candidates that lack a figure.
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
    """Return the recommendation.

    Raises ConfigError if there are fewer than two candidates, or if a required figure is missing from every candidate.
    """
    if len(choice.candidates) < 2:
        raise ConfigError(_no_choice_text(choice))
    costs = tuple(dict.fromkeys((objective.minimise, *objective.limits)))
    figure_names = tuple(COSTS[cost] for cost in costs)
    figures = [{cost: candidate.figure(COSTS[cost]) for cost in costs} for candidate in choice.candidates]
    for cost in costs:
        if all(figure[cost] is None for figure in figures):
            others = ", ".join(key for key in COSTS if key != cost)
            raise ConfigError(f"{cost}: not measured in any configuration of the sweep; fix: choose one of {others}")
    known: list[Candidate] = []
    values: list[dict[str, float]] = []
    for candidate, figure in zip(choice.candidates, figures, strict=True):
        measured = {cost: value for cost, value in figure.items() if value is not None}
        if len(measured) == len(costs):
            known.append(candidate)
            values.append(measured)
    unknown = tuple(candidate.name for candidate in choice.candidates if candidate not in known)
    within = [index for index, figure in enumerate(values) if _meets_limits(figure, objective)]
    # On a tie, the first candidate wins.
    best_index = min(within, key=lambda index: values[index][objective.minimise], default=None)
    if best_index is None:
        nearest = min(range(len(known)), key=lambda index: _excess(values[index], objective), default=None)
        if nearest is None:
            return Recommendation(objective, None, unknown=unknown)
        limits = {objective.minimise: math.inf, **objective.limits}
        missed = {key: values[nearest][key] for key in limits if not _is_within(values[nearest][key], limits[key])}
        return Recommendation(objective, None, nearest=known[nearest], missed=missed, unknown=unknown)
    best = known[best_index]
    shares = _shares(sample_figures(known, figure_names), objective)
    rest = [index for index in range(len(known)) if index != best_index]
    next_best = max(rest, key=lambda index: shares[index], default=None)
    second = None if next_best is None or not shares[next_best] else (known[next_best], float(shares[next_best]))
    contenders = sorted({best_index, *(index for index in rest if shares[index] >= MIN_CONTENDER_SHARE)})
    # With too few repetitions the draws barely differ, so they reveal no contenders.
    few = [index for index, candidate in enumerate(known) if candidate.repetitions < MIN_REPETITIONS]
    confidence = float(shares[best_index])
    if not few and confidence >= MIN_CONFIDENCE:
        return Recommendation(objective, best, confidence, second, is_conclusive=True, unknown=unknown)
    target = MIN_REPETITIONS if few else _sufficient_repetitions(known, figure_names, objective, best_index)
    repeated = [known[index] for index in few or contenders]
    experiments = None if target is None else _count_experiments(repeated, target)
    return Recommendation(objective, best, confidence, second, False, experiments, target, unknown=unknown)


def _is_within(value: float, limit: float) -> bool:
    """Return whether a figure is finite and within the limit, which may be infinite."""
    return math.isfinite(value) and value <= limit


def _meets_limits(figure: Mapping[str, float], objective: Objective) -> bool:
    return math.isfinite(figure[objective.minimise]) and all(
        _is_within(figure[key], limit) for key, limit in objective.limits.items()
    )


def _excess(figure: Mapping[str, float], objective: Objective) -> tuple[int, float, float]:
    """Return a sort key: number of infinite figures, largest ratio of a figure to its limit, cost."""
    known = [figure[key] / limit for key, limit in objective.limits.items() if math.isfinite(figure[key])]
    return len(objective.limits) - len(known), max(known, default=0.0), figure[objective.minimise]


def _shares(drawn: SampledFronts, objective: Objective) -> Floats:
    """Return, per candidate, the fraction of draws that it wins within the limits; a tie is split evenly."""
    # A recovery time is known only as an interval. Limits are checked against its upper end (`highest`), the cost uses
    # a value inside it (`likely`).
    cost = drawn.likely[COSTS[objective.minimise]].copy()
    for key, limit in objective.limits.items():
        drawn_key = drawn.highest[COSTS[key]]
        cost[(drawn_key > limit) | ~np.isfinite(drawn_key)] = math.inf
    least = cost.min(axis=1, keepdims=True)
    best = (cost == least) & np.isfinite(cost)
    return np.asarray((best / np.maximum(best.sum(axis=1, keepdims=True), 1)).mean(axis=0))


def _sufficient_repetitions(
    known: Sequence[Candidate], figure_names: Sequence[str], objective: Objective, best_index: int
) -> int | None:
    """Return how many repetitions would make the choice conclusive, if the measured figures are the true ones.

    None if more than the largest of _SIZES are needed.
    """
    for size in _SIZES:
        if size <= known[best_index].repetitions:
            continue
        if _shares(sample_figures(known, figure_names, repetitions=size), objective)[best_index] >= MIN_CONFIDENCE:
            return size
    return None


def _count_experiments(candidates: Sequence[Candidate], target: int) -> int:
    points = (point for candidate in candidates for point in candidate.points)
    # A repetition that two sweeps have measured counts once.
    return sum(max(0, target - len({entry.repetition for entry in point.valid})) for point in points)


def _no_choice_text(choice: ParetoChoice) -> str:
    if choice.incomplete:
        return (
            f"{choice.incomplete[0]}: measured in only some of these conditions: {'; '.join(choice.circumstances)}; "
            "fix: measure the missing combinations, see `./faultline missing`"
        )
    if choice.overloaded:
        kept = f"only {choice.candidates[0].name} keeps up" if choice.candidates else "none keeps up"
        return f"{'; '.join(choice.overloaded)}: load not sustained, {kept}; fix: lower the rate"
    if choice.unusable:
        return f"choice: no usable run of {'; '.join(choice.unusable)}; fix: measure it again"
    varied = " and ".join(axis.noun for axis in choice.circumstance_axes)
    what = f"it varies only conditions ({varied}), no settings" if varied else "it has one configuration"
    return f"the sweep leaves nothing to choose: {what}; vary a setting, such as checkpoint_interval_s"
