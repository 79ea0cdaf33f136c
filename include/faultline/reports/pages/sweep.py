"""One sweep or matrix: a metric over its axes, and the table of its cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.cells import FAULT, Axis, Figure, Point, apart, axes_of, groups_of, in_order, points_of
from faultline.comparison.coverage import cell_text, gap_of
from faultline.comparison.decisions import settled_in
from faultline.comparison.selection import entries_of_sweep
from faultline.records.catalogue import DEFAULT, TAIL, Metric, Sheet, by_group, metrics_in, metrics_of
from faultline.records.manifest import BASELINE, Manifests
from faultline.records.summary import Entry
from faultline.reports.figures import configurations as charts
from faultline.reports.pages.runs import runs_of_sweep
from faultline.reports.pages.site import PAGE_ROWS, STATUSES, Site, Unknown, attempts, paged, render
from faultline.reports.sweep_figures import SERIES_COLOURS
from faultline.reports.views.run import explained, minute, period
from faultline.system.errors import ConfigError

# What advice can be asked for: the cost, what the form calls its limit, and its unit.
ASKS = (
    ("recovery", "Recovery under", "s"), ("latency", "Latency p99 under", "ms"),
    ("latency_p50", "Latency p50 under", "ms"), ("cpu", "CPU under", "cores"),
)  # fmt: skip
# Of more configurations nobody reads an answer, and a page answers within a second.
MOST_ANSWERED = 100
NEIGHBOURS = 50
MOST_MISSING = 100


@dataclass(frozen=True)
class Choice:
    """What a reader chose; empty: the default. `x` is the key of the horizontal axis, `view` is `heat` or `curves`.

    `minimise` and `limits` are what advice is asked for.
    """

    metric: str = ""
    group: str = ""
    x: str = ""
    view: str = ""
    page: int = 1
    minimise: str = ""
    # By cost, as it was typed.
    limits: Mapping[str, str] = field(default_factory=dict)


def sweep_page(site: Site, sweep_id: str | None, choice: Choice | None = None) -> str:
    """The page of a sweep; of None: of the records that belong to none. Raises Unknown when it has no record."""
    site.index.refresh()
    entries = entries_of_sweep(site.index, site.results, sweep_id)
    if not entries:
        raise Unknown(f"No sweep {sweep_id} has a record." if sweep_id else "Every record belongs to a sweep.")
    return _page(site, entries, choice or Choice(), sweep=sweep_id)


def matrix_page(site: Site, matrix: str, choice: Choice | None = None) -> str:
    """The page of a matrix over all its sweeps. Raises Unknown when it has no record."""
    site.index.refresh()
    entries = site.index.of_matrix(matrix)
    if not entries:
        raise Unknown(f"No matrix {matrix} has a record.")
    return _page(site, entries, choice or Choice(), matrix=matrix)


def chosen_metric(metrics: Sequence[Metric], key: str) -> Metric | None:
    """The metric of that key, by default the latency p99 or else the first; None when there is none at all."""
    if not metrics:
        return None
    for metric in metrics:
        if metric.key == (key or DEFAULT):
            return metric
    if key:
        raise Unknown(f"No valid record here has the metric {key}.")
    return metrics[0]


def chosen_group(entries: Sequence[Entry], group: str) -> tuple[str, list[str]]:
    """The group of that name, by default the newest one with a valid record, and all groups.

    Of a night it is the night's own: a baseline that is measured beside it may be measured last.
    """
    groups = groups_of(entries)
    if group and group not in groups:
        raise Unknown(f"No record here is of build {group}.")
    own = [entry for entry in entries if not entry.series.endswith(BASELINE)] or entries
    believed = groups_of([entry for entry in own if entry.sound])
    return group or (believed or groups_of(own))[0], groups


def _page(
    site: Site, entries: Sequence[Entry], choice: Choice, *, sweep: str | None = None, matrix: str | None = None
) -> str:
    group, groups = chosen_group(entries, choice.group)
    members = [entry for entry in entries if entry.group == group]
    points = points_of(members)
    # Where nothing is usable, what is unsound is shown all the same, under its label.
    metrics = metrics_of(members) or metrics_of(members, unsound=True)
    measured = [point for point in points if point.valid or point.unsound]
    metric = chosen_metric(metrics, choice.metric)
    drawn_axes = axes_of(measured)
    x, view = _chosen_view(drawn_axes, choice)
    figures, left_out = _figures(measured, drawn_axes, x, view, metric)
    limit = _limit(choice, metric) if figures and view == "curves" else None
    if limit is not None and metric is not None:
        drawn = [high for point in measured if (high := point.figure(metric.key).high) is not None]
        charts.limit_line(figures["metric"], limit, f"{metric.text(limit)} {metric.unit}", drawn)
    axes = axes_of(points)
    ordered = in_order(points, axes)
    # A night is judged against others: what it would answer by itself is nothing that anybody asked.
    night = next((minute(one.logical_date) for one in members if one.logical_date), None) if sweep else None
    answer = None if night else _answer(members, choice, figures)
    page, pages, offset = paged(choice.page, len(ordered))
    cell_axes = [axis for axis in axes if axis.key != FAULT]
    columns = _columns(metrics, metric)
    whole_matrix = matrix or next((entry.matrix for entry in entries if entry.matrix), None)
    others = site.index.sweeps_of(whole_matrix, NEIGHBOURS) if sweep else []
    return render(
        site,
        "sweep",
        title=sweep or matrix or "Without a sweep",
        kind="Matrix" if matrix else "Sweep",
        here=_here(sweep, matrix),
        facts=_facts(entries),
        matrix=None if matrix else whole_matrix,
        runs=[(run, site.run_link(run)) for run in (runs_of_sweep(site, whole_matrix, sweep) if sweep else ())],
        counts=[(status, sum(entry.status == status for entry in entries)) for status in STATUSES],
        group=group,
        groups=groups,
        answer=answer,
        night=night,
        wish=choice,
        asks=ASKS,
        metric=metric,
        metric_groups=by_group(metrics),
        axes=drawn_axes,
        x=x,
        view=view,
        views=["heat", "curves"] if _two_numbers(drawn_axes) else [],
        left_out=left_out,
        limited=limit is not None,
        figures=figures,
        controls=_controls(measured, cell_axes, metric) if view == "heat" else [],
        with_controls=bool(apart(measured)[1]),
        repeated=any(len(point.valid) > 1 for point in measured),
        unsound=sum(len(point.unsound) for point in measured),
        usable=sum(len(point.valid) for point in measured),
        bounded=metric is not None and any(point.figure(metric.key).bound for point in measured),
        columns=columns,
        cell_axes=cell_axes,
        rows=[_row(site, point, cell_axes, columns) for point in ordered[offset : offset + PAGE_ROWS]],
        troubles=_troubles(site, members),
        gap=_gap(site, sweep),
        cell_total=len(ordered),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            *_here(sweep, matrix),
            **{**choice.limits, "minimise": choice.minimise},
            metric=choice.metric,
            build=choice.group,
            x=choice.x,
            view=choice.view,
            page=number,
        ),
        downloads=[
            (name, site.link(f"experiments.{name}", sweep=sweep, matrix=matrix))
            for name in ("csv", "parquet")
            if sweep or matrix
        ],
        neighbours=[other for other in others if other != sweep],
        # The newest first, so what follows this one was measured before it.
        before=next(iter(others[others.index(sweep) + 1 :]), None) if whole_matrix and sweep in others else None,
        sweep=sweep,
    )


def _answer(entries: Sequence[Entry], choice: Choice, figures: dict[str, go.Figure]) -> dict[str, Any] | None:
    """What the page says on top; adds the front to `figures`. Of a wish that is none it says why."""
    # Statistics take a second to import, and not every page needs them.
    from faultline.comparison.answer import answer_of, wish_of
    from faultline.comparison.unsound import unsound_of
    from faultline.reports.answer.view import answer_view

    if len({entry.config_id for entry in entries}) > MOST_ANSWERED:
        return None
    trouble, wish = "", None
    try:
        limits = {cost: (name, _typed(name, choice.limits.get(cost, ""))) for cost, name, _ in ASKS}
        wish = wish_of(choice.minimise or None, limits)
        found = answer_of(entries, wish)
    except ConfigError as error:
        trouble, found = str(error), answer_of(entries)
    view = answer_view(found, unsound_of(entries), figures)
    return None if view is None else {**view, "trouble": trouble}


def _typed(name: str, text: str) -> float | None:
    """A limit as it was typed; None where nothing was."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: {text} is no number; give one above 0") from None


def _limit(choice: Choice, metric: Metric | None) -> float | None:
    """What advice is asked to keep of the figure that is drawn; None where nothing is, or what is no limit."""
    if not any(choice.limits.values()):
        return None
    from faultline.comparison.candidates import COSTS

    asked = next((text for cost, text in choice.limits.items() if metric and COSTS.get(cost) == metric.key), "")
    try:
        limit = _typed("", asked)
    except ConfigError:
        return None
    return limit if limit is not None and math.isfinite(limit) and limit > 0 else None


def _here(sweep: str | None, matrix: str | None) -> tuple[str, ...]:
    """The parts of this page's own address."""
    return ("sweeps", sweep) if sweep else ("matrices", matrix) if matrix else ("unswept",)


def _chosen_view(axes: Sequence[Axis], choice: Choice) -> tuple[Axis | None, str]:
    """The horizontal axis and the view; a heat map where there are two axes and both are numbers."""
    if choice.view not in ("", "heat", "curves"):
        raise Unknown(f"No view is called {choice.view}.")
    if choice.x and choice.x not in [axis.key for axis in axes]:
        raise Unknown(f"The valid records here do not differ in {choice.x}.")
    if not axes:
        return None, ""
    x = next((axis for axis in axes if axis.key == choice.x), None) or _clearest(axes)
    return x, "heat" if _two_numbers(axes) and choice.view != "curves" else "curves"


def _clearest(axes: Sequence[Axis]) -> Axis:
    """The first axis along which there are no more lines than colours, else the one with the fewest lines."""
    cells = math.prod(len(axis.values) for axis in axes)
    few = (axis for axis in axes if cells <= len(axis.values) * len(SERIES_COLOURS))
    return next(few, max(axes, key=lambda axis: len(axis.values)))


def _two_numbers(axes: Sequence[Axis]) -> bool:
    return len(axes) == 2 and all(axis.numeric for axis in axes)


def _figures(
    points: Sequence[Point], axes: Sequence[Axis], x: Axis | None, view: str, metric: Metric | None
) -> tuple[dict[str, go.Figure], int]:
    """The figure under its place's name, and how many lines it leaves out."""
    if metric is None or x is None:
        return {}, 0
    others = [axis for axis in axes if axis.key != x.key]
    if view == "heat":
        return {"metric": charts.heat_map(points, x, others[0], metric)}, 0
    figure, left_out = charts.curves(in_order(points, [*others, x]), x, others, metric)
    return {"metric": figure}, left_out


def _facts(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """When and on what; several values of one thing are all named."""
    times = sorted(entry.measured_at for entry in entries)
    workloads = Counter(str(entry.config.get("workload", "unknown")) for entry in entries)
    cores = sorted({entry.cores for entry in entries if entry.cores})
    return [
        ("Measured", f"{period(times[0], times[-1])} UTC"),
        ("Workload", ", ".join(workloads)),
        ("Machine", f"{' or '.join(map(str, cores)) or 'unknown number of'} cores"),
        ("Experiments", str(len(entries))),
    ]


def _columns(metrics: Sequence[Metric], chosen: Metric | None) -> list[Metric]:
    """The columns of the table: the chosen metric first, then the usual ones that the records have. Beside the p99 what
    stands for it where there are few batches would say it again."""
    shown = {chosen.key, TAIL} if chosen and chosen.key == DEFAULT else {chosen.key if chosen else ""}
    usual = [metric for metric in metrics_in(Sheet.CELLS) if metric in metrics and metric.key not in shown]
    return [*([chosen] if chosen else []), *usual]


def _row(site: Site, point: Point, axes: Sequence[Axis], columns: Sequence[Metric]) -> dict[str, Any]:
    usable = bool(point.valid)
    figures = [(one, point.figure(one.key) if usable else point.unsound_figure(one.key)) for one in columns]
    return {
        "axes": [axis.label(point) for axis in axes],
        "fault": point.entries[0].fault,
        "config_id": point.config_id,
        "n": len(point.valid),
        "unsound": len(point.unsound),
        "why": charts.reason_of(point.unsound[-1]) if point.unsound else "",
        "figures": [one.text(metric) for metric, one in figures],
        "spread": figures[0][1].spread(figures[0][0]) if figures else "",
        "attempts": attempts(site, point.entries),
    }


def _troubles(site: Site, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The kinds of reasons why experiments are not valid, the commonest first, each with its newest example."""
    found: dict[str, list[tuple[Entry, str]]] = {}
    for entry in entries:
        for reason in explained(entry.reasons, entry.metrics) if entry.status != "valid" else ():
            found.setdefault(f"{entry.status} {reason.partition(':')[0]}", []).append((entry, reason))
    return [
        {"times": len(cases), "reason": cases[-1][1], "example": attempts(site, [cases[-1][0]])}
        for cases in sorted(found.values(), key=len, reverse=True)
    ]


def _gap(site: Site, sweep: str | None) -> dict[str, Any] | None:
    """What the sweep set out to measure and has no valid record of; None when its plan is not known."""
    plan = Manifests(site.results).read(sweep) if sweep else None
    if plan is None:
        return None
    entries = site.index.of_configurations(cell.config_id for cell in plan.cells)
    gap = gap_of(plan, entries, settled_in(plan, entries))
    shown = [(cell_text(gap, one), one.last or "never measured") for one in gap.missing[:MOST_MISSING]]
    return {"planned": gap.planned, "missing": len(gap.missing), "cells": shown}


def _controls(points: Sequence[Point], axes: Sequence[Axis], metric: Metric | None) -> list[str]:
    """What a heat map has no cell for: runs without a fault among runs with one."""
    told = []
    for point in apart(points)[1]:
        one = point.figure(metric.key) if metric else Figure(0)
        if metric and one.median is not None:
            where = ", ".join(axis.said(point) for axis in axes)
            spread = f", {one.spread(metric)}" if one.spread(metric) else ""
            told.append(f"{where}: {one.text(metric)} {metric.unit}{spread} (n = {one.n})")
    return told
