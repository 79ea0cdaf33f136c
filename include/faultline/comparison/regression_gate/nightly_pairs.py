"""From a night's plan and records to its pairs, and its verdict in words and as it is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faultline.comparison.compare import metrics_named
from faultline.comparison.config_points import Point, axes_of, interval_of
from faultline.comparison.decisions import percent
from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.comparison.regression_gate.verdict import (
    CellVerdict,
    GateStatus,
    GateVerdict,
    PairedRun,
    Pairs,
    judge_gate,
)
from faultline.comparison.slo import NO_SLOS, SLOReport
from faultline.comparison.statistics.estimate import Interval
from faultline.experiment.build import parse_build
from faultline.experiment.config import Configuration
from faultline.records.catalogue import CPU_PER_MILLION, KNOWN
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlan
from faultline.system.text import finite_or_none

# By power, for ten percent more work: docs/explanation/comparing.md. Before a fault there are but a few batches to take
# a latency of.
WITHOUT_FAULT, WITH_FAULT, UNPACED = "latency_ms.p50", CPU_PER_MILLION, "rps_per_core"
_ORDER = (GateStatus.WORSE, GateStatus.SUSPECTED, GateStatus.BETTER, GateStatus.NO_CHANGE, GateStatus.INCONCLUSIVE)
MAX_REASON = 200


def default_primary(config: Configuration) -> str:
    """The figure that a configuration is judged by where the form names none."""
    if not config.paced:
        return UNPACED
    return WITH_FAULT if config.planned_faults() else WITHOUT_FAULT


def paired_run_of(plan: SweepPlan, entries: Iterable[IndexEntry]) -> PairedRun:
    """The pairs of a night that was planned with a baseline. `entries`: records of its two series, in order of attempt.

    Of a repetition that was measured twice the newest sound record counts. Raises ValueError without a baseline.
    """
    baseline = plan.baseline
    if baseline is None:
        raise ValueError(f"{plan.sweep_id}: has no baseline")
    builds = {plan.series: plan.build, baseline.series: baseline.build}
    known = [one for one in entries if builds.get(one.series) == one.build]
    found = {(one.series, one.config_id, one.repetition): one for one in known if one.sound}
    named = _names(plan)
    cells = []
    for config_id, key in baseline.primary.items():
        (metric,) = metrics_named([key])
        repetitions = [cell.repetition for cell in plan.cells if cell.config_id == config_id]
        values = []
        for repetition in repetitions:
            both = [found.get((series, config_id, repetition)) for series in (baseline.series, plan.series)]
            told = [interval_of(one, key) for one in both if one is not None]
            if len(told) == 2 and told[0] is not None and told[1] is not None:
                values.append((told[0], told[1]))
        cells.append(Pairs.of(config_id, named[config_id], metric, values, len(repetitions)))
    problem = _failure_text(known, plan.series, "tonight's build") or _failure_text(
        known, baseline.series, "the baseline"
    )
    return PairedRun(str(plan.logical_date), plan.build, baseline.build, tuple(cells), problem)


def paired_runs_of(plans: Iterable[SweepPlan], entries: Sequence[IndexEntry]) -> list[PairedRun]:
    """All nights with a baseline, the oldest first."""
    nights = [plan for plan in plans if plan.logical_date and plan.baseline]
    return sorted((paired_run_of(plan, entries) for plan in nights), key=lambda night: night.date)


def reason_text(cell: CellVerdict) -> str:
    """What changed, by how much, how sure that is, and since when, in a line."""
    figure = f"{cell.metric.name} " if cell.metric else ""
    text = f"{cell.name}: {figure}{change_text(cell.change)}, n = {cell.pairs} pairs, q = {cell.q:.2g}"
    if cell.since is None:
        return text
    nights = f"{cell.nights} nights in a row" if cell.nights > 1 else "the first night"
    return f"{text}, since {cell.since[:10]} ({nights})"


def change_text(change: Interval | None) -> str:
    """`+11 % (+6.0 … +17)`; both ends in percent."""
    if change is None:
        return "unknown"
    value, low, high = (percent(one) for one in (change.value, change.low, change.high))
    return f"{value} % ({low} … {high})"


def detectable_text(cell: CellVerdict) -> str:
    """How large a change would have been seen."""
    name = f"{cell.name} ({cell.metric.name})" if cell.metric else cell.name
    if cell.detectable is None or not math.isfinite(cell.detectable):
        return f"{name}: no change would have been seen"
    return f"{name}: {percent(cell.detectable).lstrip('+')} %"


def paired_verdict(verdict: GateVerdict, spec: Mapping[str, Any], promised: SLOReport = NO_SLOS) -> NightlyVerdict:
    """The verdict as it is kept beside the records. `spec`: the baseline's build as the form names it."""
    night, beyond = verdict.night, promised.violations
    red = verdict.red or bool(beyond)
    counts = [f"{len(beyond)} beyond a limit"] * bool(beyond)
    counts += [f"{n} {one}" for one in _ORDER if (n := len(verdict.of(one)))]
    said = ", ".join(counts) or "nothing was judged"

    def lines(finding: GateStatus) -> tuple[str, ...]:
        return tuple(reason_text(one) for one in verdict.of(finding))

    return NightlyVerdict(
        date=night.date, build=night.build, red=red,
        baseline={"build": night.baseline, "spec": parse_build(spec, "baseline").text},
        summary=f"{'red' if red else 'green'}: {said}; beside the baseline {night.baseline}, in the same night",
        problem="; ".join(verdict.problems) or None,
        # Of all together each configuration counts by its own scatter: no one share would be seen in all.
        visible=tuple(detectable_text(one) for one in verdict.cells if one.config_id),
        cells=tuple(_cell(one) for one in verdict.cells), reasons=lines(GateStatus.WORSE),
        suspicions=lines(GateStatus.SUSPECTED), improvements=lines(GateStatus.BETTER), **promised.as_json(),
    )  # fmt: skip


def _cell(cell: CellVerdict) -> dict[str, Any]:
    change = cell.change
    return {
        "name": cell.name,
        "config_id": cell.config_id or None,
        "metric": cell.metric.key if cell.metric else None,
        "finding": str(cell.status),
        "pairs": cell.pairs,
        "planned": cell.planned,
        "change": None if change is None else [finite_or_none(one) for one in (change.value, change.low, change.high)],
        "p": cell.p,
        "q": cell.q,
        "visible": None if cell.detectable is None else finite_or_none(cell.detectable),
        "since": cell.since,
        "nights": cell.nights,
    }


def _names(plan: SweepPlan) -> Mapping[str, str]:
    """Each configuration by what tells it from the others, else by workload and fault."""
    points = list({cell.config_id: Point(cell.config_id, cell.config, ()) for cell in plan.cells}.values())
    axes = axes_of(points)
    told = {point.config_id: ", ".join(axis.text_of(point) for axis in axes) for point in points}
    return {point.config_id: told[point.config_id] or str(point.config.get("workload")) for point in points}


def _failure_text(entries: Sequence[IndexEntry], series: str, whose: str) -> str:
    """Why nothing of a side is there, in a line; empty where something is."""
    own = [one for one in entries if one.series == series]
    if any(one.sound for one in own):
        return ""
    if not own:
        return f"{whose} did not run: no attempt got as far as a record"
    why = own[-1].reasons[0] if own[-1].reasons else own[-1].status
    verb = "did not run" if all(one.status == "failed" for one in own) else "has no usable record"
    return f"{whose} {verb}: {why[:MAX_REASON]}"


# A night that never was: what an alert on it would say, so that whoever receives alerts can be tried out.


# How much worse or better a made-up night is, and how its pairs scatter around that.
CHANGE, SCATTER = 0.22, (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def sample_verdict(kind: str, night: str, configurations: Mapping[str, str], figure: str) -> NightlyVerdict | None:
    """What would be kept of a night in which each configuration (name by id) is so much `worse` or `better`; None of
    one that is `broken`."""
    if kind == "broken":
        return None
    metric = next(one for one in KNOWN if one.key == figure)
    centre = math.log1p(CHANGE) * (1 if kind == "worse" else -1)
    values = tuple(centre + SCATTER[number % len(SCATTER)] for number in range(15))
    cells = tuple(Pairs(one, name, metric, values, values, len(values)) for one, name in configurations.items())
    # Two nights that agree are red.
    verdict = judge_gate(
        [PairedRun(date, "tonight", "baseline", cells) for date in ("2026-01-01T02:00:00+00:00", night)]
    )
    return paired_verdict(verdict, {})
