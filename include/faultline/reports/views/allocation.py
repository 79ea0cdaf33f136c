"""Variance of recoveries between and within runs in words, and the best number of injections per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from faultline.comparison.allocation import Allocation, Slope, allocation_of
from faultline.comparison.config_points import points_of
from faultline.comparison.decisions import Decision, counted_entries
from faultline.comparison.statistics.estimate import Interval
from faultline.records.catalogue import MACRO
from faultline.records.format import signed
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlan
from faultline.system.text import finite_or_none


def allocation_lines(found: Allocation) -> list[str]:
    """Return variance components, best number of injections, and trend over the injections of a run."""
    ageing = "" if found.drift is None else ageing_text(found.drift)
    return [line for line in (scatter_text(found), best_text(found), ageing) if line]


def scatter_text(found: Allocation) -> str:
    """Return `Recoveries vary by 2.1 s within a run and by 1.0 s between runs (standard deviations; …)`."""
    parts = found.components
    count = f"{parts.values} recoveries in {_runs(parts.runs)}"
    if found.censored:
        count += f", {found.censored} of them censored and counted with their lower bound"
    within = f"Recoveries vary by {math.sqrt(parts.within):.1f} s within a run"
    if parts.between is None or parts.correlation is None:
        return f"{within} (standard deviation; {count}). The variance between runs requires several runs."
    low, high = (round(100 * one) for one in (parts.correlation.low, parts.correlation.high))
    return (
        f"{within} and by {math.sqrt(parts.between):.1f} s between runs (standard deviations; {count}): "
        f"{100 * parts.correlation.value:.0f} % of the variance lies between runs (95 %: {low} … {high})."
    )


def best_text(found: Allocation) -> str:
    """Return a sentence on the number of injections per run that is most efficient; empty for single runs."""
    if found.best is None:
        return ""
    start, injection = (
        f"{seconds:.0f} s{'' if known else ' (assumed)'}"
        for seconds, known in zip((found.costs.start_s, found.costs.injection_s), found.costs.measured, strict=True)
    )
    range_text = "" if found.least == found.most else f" ({found.least} … {found.most})"
    text = (
        f"The most efficient number per run is {found.best} {_injections(found.best)}{range_text}; these runs "
        f"have {found.injections}. A start takes {start}, an injection {injection}"
    )
    if found.best == found.injections or not found.is_worthwhile:
        return f"{text}: no other number saves 10 % of the time."
    return f"{text}: injections={found.best} takes {100 * found.saving:.0f} % less time for the same interval."


def ageing_text(ageing: Slope) -> str:
    """Return the trend of recovery over the injections of a run."""
    change = ageing.change
    if math.isinf(change.high):
        text = f"Trend over the injections of a run: {signed(change.value, 1)} s per injection (one run)"
        return f"{text}. One run shows no significant trend."
    ends = f"95 %: {signed(change.low, 1)} … {signed(change.high, 1)}, {_runs(ageing.runs)}"
    text = f"Trend over the injections of a run: {signed(change.value, 1)} s per injection ({ends})"
    if change.low > 0:
        return f"{text}. Later recoveries take longer."
    if change.high < 0:
        return f"{text}. Later recoveries are faster."
    return f"{text}. No trend detected."


def decision_lines(plan: SweepPlan, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> list[str]:
    """Return one line per decision of a sweep, and the next step if a recovery is inconclusive."""
    points = points_of([one for blocks in counted_entries(plan, entries).values() for one in blocks.values()])
    further = next_step_text(decisions, allocation_of(points, entries))
    return [one.text for one in decisions] + ([further] if further else [])


def next_step_text(decisions: Sequence[Decision], found: Allocation | None) -> str:
    """Return advice: continue the sequential sweep, or start one with another number of injections.

    Empty if no recovery is inconclusive or the costs are unknown.
    """
    more = [
        one.pairs + one.more_pairs
        for one in decisions
        if not one.is_decided and one.metric.key == MACRO and one.more_pairs
    ]
    if found is None or found.best is None or not more:
        return ""
    now = f"{found.injections} {_injections(found.injections)} per run"
    here = f"This sweep needs about {max(more)} pairs with {now}"
    if not found.is_worthwhile:
        return f"{here}: measure more runs. {best_text(found)}"
    return (
        f"{here}, a new one with injections={found.best} about {found.equivalent_runs(max(more))}. {best_text(found)} "
        "`injections` is part of the configuration, so changing it requires a new sweep."
    )


def allocation_json(found: Allocation | None) -> dict[str, Any] | None:
    """Return the allocation as JSON values: variances in s², costs in s, unknown or infinite ends as null."""
    if found is None:
        return None
    parts = found.components
    return {
        "recoveries": parts.values,
        "runs": parts.runs,
        "not_seen_to_end": found.censored,
        "variance_within_s2": parts.within,
        "variance_between_s2": parts.between,
        "intraclass_correlation": _ends(parts.correlation),
        "start_s": found.costs.start_s,
        "injection_s": found.costs.injection_s,
        "costs_measured": dict(zip(("start", "injection"), found.costs.measured, strict=True)),
        "injections": found.injections,
        "best_injections": found.best,
        "best_injections_range": None if found.best is None else [found.least, found.most],
        "saving": found.saving,
        "s_per_injection": None if found.drift is None else _ends(found.drift.change),
        "runs_with_slope": 0 if found.drift is None else found.drift.runs,
    }


def _ends(one: Interval | None) -> dict[str, float | None] | None:
    return None if one is None else {name: finite_or_none(getattr(one, name)) for name in ("value", "low", "high")}


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _injections(number: int) -> str:
    return "injection" if number == 1 else "injections"
