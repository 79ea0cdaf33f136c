"""The pages of one sweep, of a matrix, and of the nightly runs: their views, and the ways to experiments and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.coverage import cell_text, gap_of
from faultline.comparison.decisions import settled_in
from faultline.comparison.selection import entries_of_sweep
from faultline.experiment.nightly_file import NIGHTLY, is_nightly
from faultline.records.catalogue import by_group
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlans
from faultline.reports.pages.runs import runs_of_sweep
from faultline.reports.pages.site import PAGE_ROWS, STATUSES, PageNotFound, ResultsSite, attempts, paged, render
from faultline.reports.views import nightly
from faultline.reports.views.nightly import BY, ChosenMetric, NightlyView
from faultline.reports.views.run import minute
from faultline.reports.views.sweep import ASKS, MetricChoice, SweepView

NEIGHBOURS = 50
MOST_MISSING = 100


def sweep_page(site: ResultsSite, sweep_id: str | None, choice: MetricChoice | None = None) -> str:
    """The page of a sweep; of None: of the records that belong to none. Raises Unknown when it has no record."""
    site.index.refresh()
    entries = entries_of_sweep(site.index, site.results, sweep_id)
    if not entries:
        raise PageNotFound(f"No sweep {sweep_id} has a record." if sweep_id else "Every record belongs to a sweep.")
    return _page(site, entries, choice or MetricChoice(), sweep=sweep_id)


def matrix_page(site: ResultsSite, matrix: str, choice: MetricChoice | None = None) -> str:
    """The page of a matrix over all its sweeps. Raises Unknown when it has no record."""
    site.index.refresh()
    entries = site.index.of_matrix(matrix)
    if not entries:
        raise PageNotFound(f"No matrix {matrix} has a record.")
    return _page(site, entries, choice or MetricChoice(), matrix=matrix)


def _page(
    site: ResultsSite,
    entries: Sequence[IndexEntry],
    choice: MetricChoice,
    *,
    sweep: str | None = None,
    matrix: str | None = None,
) -> str:
    view = SweepView(entries, choice)
    figures: dict[str, go.Figure] = {} if view.figure is None else {"metric": view.figure}
    # A night is judged against others: what it would answer by itself is nothing that anybody asked.
    night = next((minute(one.logical_date) for one in view.members if one.logical_date), None) if sweep else None
    answer = None if night else view.answer(figures)
    page, pages, offset = paged(choice.page, len(view.points))
    whole_matrix = matrix or next((entry.matrix for entry in entries if entry.matrix), None)
    others = site.index.sweeps_of(whole_matrix, NEIGHBOURS) if sweep else []
    return render(
        site,
        "sweep",
        title=sweep or matrix or "Without a sweep",
        kind="Matrix" if matrix else "Sweep",
        here=_here(sweep, matrix),
        view=view,
        matrix=None if matrix else whole_matrix,
        runs=[(run, site.run_link(run)) for run in (runs_of_sweep(site, whole_matrix, sweep) if sweep else ())],
        counts=[(status, sum(entry.status == status for entry in entries)) for status in STATUSES],
        answer=answer,
        night=night,
        wish=choice,
        asks=ASKS,
        metric_groups=by_group(view.metrics),
        figures=figures,
        rows=[
            {**view.row(point), "attempts": attempts(site, point.entries)}
            for point in view.points[offset : offset + PAGE_ROWS]
        ],
        troubles=[(times, reason, attempts(site, [newest])) for times, reason, newest in view.troubles],
        gap=_gap(site, sweep),
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


def _here(sweep: str | None, matrix: str | None) -> tuple[str, ...]:
    """The parts of this page's own address."""
    return ("sweeps", sweep) if sweep else ("matrices", matrix) if matrix else ("unswept",)


def _gap(site: ResultsSite, sweep: str | None) -> dict[str, Any] | None:
    """What the sweep set out to measure and has no valid record of; None when its plan is not known."""
    plan = SweepPlans(site.results).read(sweep) if sweep else None
    if plan is None:
        return None
    entries = site.index.of_configurations(cell.config_id for cell in plan.cells)
    gap = gap_of(plan, entries, settled_in(plan, entries))
    shown = [(cell_text(gap, one), one.last or "never measured") for one in gap.missing[:MOST_MISSING]]
    return {"planned": gap.planned, "missing": len(gap.missing), "cells": shown}


def nightly_page(site: ResultsSite, choice: ChosenMetric | None = None) -> str:
    """The page; before the first night one that says how to set it up. Raises Unknown for nights, a cell or a metric
    that there are not."""
    choice = choice or ChosenMetric()
    site.index.refresh()
    kinds = sorted(
        (name for tally in site.index.matrices() if (name := tally.name) and is_nightly(name)),
        key=lambda one: one != NIGHTLY,
    )
    if choice.of and choice.of not in kinds:
        raise PageNotFound(f"No night of {choice.of} has a record yet.")
    if choice.by not in ("", *BY):
        raise PageNotFound(f"Nights are drawn by {' or '.join(BY)}, not by {choice.by}.")
    of = choice.of or (kinds[0] if kinds else NIGHTLY)
    view = NightlyView(site.results, site.index.of_matrix(of), of, choice)
    if not view.nights:
        return render(site, "no_nights", title="Nights")
    page, pages, offset = paged(choice.page, len(view.dates), nightly.NIGHTS_A_PAGE)
    return render(
        site,
        "nights",
        title="Nights",
        view=view,
        figures={"course": view.figure} if view.figure is not None else {},
        ways=BY,
        metric_groups=by_group(view.metrics),
        kinds=kinds,
        rows=view.rows(view.dates[offset : offset + nightly.NIGHTS_A_PAGE]),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            "nights", of=choice.of, metric=choice.metric, cell=choice.cell, by=choice.by, page=number
        ),
    )
