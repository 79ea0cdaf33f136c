"""Pairs of a nightly run from its plan and records, and the text and stored form of its verdict."""

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

# The metrics with the most power to detect 10 % more work, see docs/explanation/comparing.md. With a fault, latency
# before the fault rests on few batches, so CPU is used.
WITHOUT_FAULT, WITH_FAULT, UNPACED = "latency_ms.p50", CPU_PER_MILLION, "rps_per_core"
_ORDER = (GateStatus.WORSE, GateStatus.SUSPECTED, GateStatus.BETTER, GateStatus.NO_CHANGE, GateStatus.INCONCLUSIVE)
MAX_REASON = 200


def default_primary(config: Configuration) -> str:
    """Return the metric by which a configuration is judged if the trigger form names none."""
    if not config.paced:
        return UNPACED
    return WITH_FAULT if config.planned_faults() else WITHOUT_FAULT


def paired_run_of(plan: SweepPlan, entries: Iterable[IndexEntry]) -> PairedRun:
    """Return the pairs of a nightly run with a reference build. `entries`: records of both series, in order of attempt.

    The newest usable record of each repetition counts. Raises ValueError without a reference build.
    """
    baseline = plan.baseline
    if baseline is None:
        raise ValueError(f"{plan.sweep_id}: no reference build")
    builds = {plan.series: plan.build, baseline.series: baseline.build}
    known = [one for one in entries if builds.get(one.series) == one.build]
    found = {(one.series, one.config_id, one.repetition): one for one in known if one.is_usable}
    named = _names(plan)
    cells = []
    for config_id, key in baseline.primary.items():
        (metric,) = metrics_named([key])
        repetitions = [cell.repetition for cell in plan.cells if cell.config_id == config_id]
        values = []
        for repetition in repetitions:
            both = [found.get((series, config_id, repetition)) for series in (baseline.series, plan.series)]
            ranges = [interval_of(one, key) for one in both if one is not None]
            if len(ranges) == 2 and ranges[0] is not None and ranges[1] is not None:
                values.append((ranges[0], ranges[1]))
        cells.append(Pairs.of(config_id, named[config_id], metric, values, len(repetitions)))
    problem = _failure_text(known, plan.series, "the installed build") or _failure_text(
        known, baseline.series, "the reference build"
    )
    return PairedRun(str(plan.logical_date), plan.build, baseline.build, tuple(cells), problem)


def paired_runs_of(plans: Iterable[SweepPlan], entries: Sequence[IndexEntry]) -> list[PairedRun]:
    """Return all nightly runs with a reference build, the oldest first."""
    paired = [plan for plan in plans if plan.logical_date and plan.baseline]
    return sorted((paired_run_of(plan, entries) for plan in paired), key=lambda run: run.date)


def reason_text(cell: CellVerdict) -> str:
    """Return one line with the change of a cell, its certainty, and since when it has been worse."""
    figure = f"{cell.metric.name} " if cell.metric else ""
    text = f"{cell.name}: {figure}{change_text(cell.change)}, n = {cell.pairs} pairs, q = {cell.q:.2g}"
    if cell.since is None:
        return text
    count = f"{cell.nights} runs in a row" if cell.nights > 1 else "the first run"
    return f"{text}, since {cell.since[:10]} ({count})"


def change_text(change: Interval | None) -> str:
    """Return a change with its interval in percent: `+11 % (+6.0 … +17)`."""
    if change is None:
        return "unknown"
    value, low, high = (percent(one) for one in (change.value, change.low, change.high))
    return f"{value} % ({low} … {high})"


def detectable_text(cell: CellVerdict) -> str:
    """Return the minimum detectable effect of a cell as text."""
    name = f"{cell.name} ({cell.metric.name})" if cell.metric else cell.name
    if cell.detectable is None or not math.isfinite(cell.detectable):
        return f"{name}: no detectable effect"
    return f"{name}: {percent(cell.detectable).lstrip('+')} %"


def paired_verdict(verdict: GateVerdict, spec: Mapping[str, Any], promised: SLOReport = NO_SLOS) -> NightlyVerdict:
    """Return the verdict in its stored form. `spec`: the reference build as given in the trigger form."""
    run, violations = verdict.run, promised.violations
    red = verdict.red or bool(violations)
    counts = [f"{len(violations)} beyond a limit"] * bool(violations)
    counts += [f"{n} {one}" for one in _ORDER if (n := len(verdict.of(one)))]
    summary = ", ".join(counts) or "nothing was judged"

    def lines(finding: GateStatus) -> tuple[str, ...]:
        return tuple(reason_text(one) for one in verdict.of(finding))

    return NightlyVerdict(
        date=run.date, build=run.build, red=red,
        baseline={"build": run.baseline, "spec": parse_build(spec, "baseline").text},
        summary=f"{'red' if red else 'green'}: {summary}; compared with the reference build {run.baseline}",
        problem="; ".join(verdict.problems) or None,
        # The pooled cell has no detectable effect: its configurations are scaled by their own variation.
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
    """Return a name by configuration: values on the axes, else the workload."""
    points = list({cell.config_id: Point(cell.config_id, cell.config, ()) for cell in plan.cells}.values())
    axes = axes_of(points)
    names = {point.config_id: ", ".join(axis.text_of(point) for axis in axes) for point in points}
    return {point.config_id: names[point.config_id] or str(point.config.get("workload")) for point in points}


def _failure_text(entries: Sequence[IndexEntry], series: str, whose: str) -> str:
    """Return why a side has no usable record, in one line; empty if it has one."""
    own = [one for one in entries if one.series == series]
    if any(one.is_usable for one in own):
        return ""
    if not own:
        return f"{whose} did not run: no attempt has a record"
    why = own[-1].reasons[0] if own[-1].reasons else own[-1].status
    verb = "did not run" if all(one.status == "failed" for one in own) else "has no usable record"
    return f"{whose} {verb}: {why[:MAX_REASON]}"


# Sample verdicts, for a test of alerts


# Change of the sample run, and the deviations of its pairs from it.
CHANGE, SCATTER = 0.22, (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def sample_verdict(kind: str, date: str, configurations: Mapping[str, str], figure: str) -> NightlyVerdict | None:
    """Return the verdict of an invented nightly run, for a test of alerts; None if `kind` is `broken`.

    `kind`: `worse` or `better`, the same for each of `configurations` (name by id).
    """
    if kind == "broken":
        return None
    metric = next(one for one in KNOWN if one.key == figure)
    centre = math.log1p(CHANGE) * (1 if kind == "worse" else -1)
    values = tuple(centre + SCATTER[index % len(SCATTER)] for index in range(15))
    cells = tuple(Pairs(one, name, metric, values, values, len(values)) for one, name in configurations.items())
    # It takes two runs that agree to make a regression.
    verdict = judge_gate([PairedRun(day, "tonight", "baseline", cells) for day in ("2026-01-01T02:00:00+00:00", date)])
    return paired_verdict(verdict, {})
