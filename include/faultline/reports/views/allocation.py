"""Scatter of recoveries between and within runs in words, and whether more injections or more runs pay."""

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
    """Variance components, the best number of injections, and recovery by number of the injection."""
    ageing = "" if found.drift is None else ageing_text(found.drift)
    return [line for line in (scatter_text(found), best_text(found), ageing) if line]


def scatter_text(found: Allocation) -> str:
    """`Recoveries scatter by 2.1 s within a run and by 1.0 s between runs (standard deviations; …)`."""
    parts = found.components
    count = f"{parts.values} recoveries in {_runs(parts.runs)}"
    if found.censored:
        count += f", {found.censored} not seen to end and counted as far as they were watched"
    within = f"Recoveries scatter by {math.sqrt(parts.within):.1f} s within a run"
    if parts.between is None or parts.correlation is None:
        return f"{within} (standard deviation; {count}). Single runs cannot show how much runs differ."
    low, high = (round(100 * one) for one in (parts.correlation.low, parts.correlation.high))
    return (
        f"{within} and by {math.sqrt(parts.between):.1f} s between runs (standard deviations; {count}): "
        f"{100 * parts.correlation.value:.0f} % of the variance lies between runs (95 %: {low} … {high})."
    )


def best_text(found: Allocation) -> str:
    """The number of injections per run with the narrowest interval per machine-hour, and why; empty for single runs."""
    if found.best is None:
        return ""
    start, injection = (
        f"{seconds:.0f} s{'' if known else ' (assumed)'}"
        for seconds, known in zip((found.costs.start_s, found.costs.injection_s), found.costs.measured, strict=True)
    )
    range_text = "" if found.least == found.most else f" ({found.least} … {found.most})"
    text = (
        f"Most is known per machine-hour with {found.best} {_injections(found.best)} per run{range_text}; these runs "
        f"have {found.injections}. A start costs {start}, an injection {injection}"
    )
    if found.best == found.injections or not found.is_worthwhile:
        return f"{text}: no other number saves a tenth of the time."
    return f"{text}: injections={found.best} takes {100 * found.saving:.0f} % less time for the same interval."


def ageing_text(ageing: Slope) -> str:
    """Recovery by number of the injection: whether the engine ages within a run."""
    change = ageing.change
    if math.isinf(change.high):
        text = f"Recovery by number of the injection: {signed(change.value, 1)} s per injection (one run)"
        return f"{text}. One run cannot show whether the engine ages."
    ends = f"95 %: {signed(change.low, 1)} … {signed(change.high, 1)}, {_runs(ageing.runs)}"
    text = f"Recovery by number of the injection: {signed(change.value, 1)} s per injection ({ends})"
    if change.low > 0:
        return f"{text}. The engine ages: later recoveries take longer."
    if change.high < 0:
        return f"{text}. Later recoveries take less time."
    return f"{text}. No change with the number is shown."


def decision_lines(plan: SweepPlan, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> list[str]:
    """Each decision of a sweep in a line, and what is the way on where a recovery is undecided."""
    points = points_of([one for blocks in counted_entries(plan, entries).values() for one in blocks.values()])
    further = next_step_text(decisions, allocation_of(points, entries))
    return [one.text for one in decisions] + ([further] if further else [])


def next_step_text(decisions: Sequence[Decision], found: Allocation | None) -> str:
    """Whether a sweep that decides about recoveries should continue, or a new one with another number of injections
    costs less machine time; empty where nothing is open, or single runs say nothing of it."""
    more = [
        one.pairs + one.more_pairs
        for one in decisions
        if not one.is_decided and one.metric.key == MACRO and one.more_pairs
    ]
    if found is None or found.best is None or not more:
        return ""
    now = f"{found.injections} {_injections(found.injections)} per run"
    here = f"This sweep needs about {max(more)} pairs in all with {now}"
    if not found.is_worthwhile:
        return f"{here}: measure more runs. {best_text(found)}"
    return (
        f"{here}, a new one with injections={found.best} about {found.equivalent_runs(max(more))}. {best_text(found)} "
        "`injections` is part of a configuration, so a sweep keeps it."
    )


def allocation_json(found: Allocation | None) -> dict[str, Any] | None:
    """The same for programs: variances in s², costs in s; an unknown or infinite end null."""
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
