"""Pages of a sweep, a matrix and the nightly runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.coverage import cell_text, gap_of
from faultline.comparison.decisions import decided_in_plan
from faultline.comparison.selection import entries_of_sweep
from faultline.experiment.nightly_file import NIGHTLY, is_nightly
from faultline.records.catalogue import by_group
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlans
from faultline.reports.pages.airflow_links import runs_of_sweep
from faultline.reports.pages.site import PAGE_ROWS, STATUSES, PageNotFound, ResultsSite, attempt_links, paginate, render
from faultline.reports.views import nightly
from faultline.reports.views.nightly import AXES, NightlyPageQuery, NightlyView
from faultline.reports.views.run import minute_text
from faultline.reports.views.sweep import COST_FIELDS, SweepPageQuery, SweepView

MAX_NEIGHBOURS = 50
MAX_MISSING = 100


def sweep_page(site: ResultsSite, sweep_id: str | None, choice: SweepPageQuery | None = None) -> str:
    """Return the page of a sweep, or (None) of the records without one. Raises PageNotFound if there is no record."""
    site.index.refresh()
    entries = entries_of_sweep(site.index, site.results, sweep_id)
    if not entries:
        raise PageNotFound(f"No record of the sweep {sweep_id}." if sweep_id else "No record without a sweep.")
    return _page(site, entries, choice or SweepPageQuery(), sweep=sweep_id)


def matrix_page(site: ResultsSite, matrix: str, choice: SweepPageQuery | None = None) -> str:
    """Return the page of a matrix over all its sweeps. Raises PageNotFound without a record."""
    site.index.refresh()
    entries = site.index.of_matrix(matrix)
    if not entries:
        raise PageNotFound(f"No record of the matrix {matrix}.")
    return _page(site, entries, choice or SweepPageQuery(), matrix=matrix)


def _page(
    site: ResultsSite,
    entries: Sequence[IndexEntry],
    choice: SweepPageQuery,
    *,
    sweep: str | None = None,
    matrix: str | None = None,
) -> str:
    view = SweepView(entries, choice)
    figures: dict[str, go.Figure] = {} if view.figure is None else {"metric": view.figure}
    # A nightly run is compared with others, so it has no summary of its own.
    nightly_date = (
        next((minute_text(one.logical_date) for one in view.members if one.logical_date), None) if sweep else None
    )
    summary = None if nightly_date else view.summary(figures)
    page, pages, offset = paginate(choice.page, len(view.points))
    whole_matrix = matrix or next((entry.matrix for entry in entries if entry.matrix), None)
    siblings = site.index.sweeps_of(whole_matrix, MAX_NEIGHBOURS) if sweep else []
    return render(
        site,
        "sweep",
        title=sweep or matrix or "Records without a sweep",
        kind="Matrix" if matrix else "Sweep",
        page_parts=_page_parts(sweep, matrix),
        view=view,
        matrix=None if matrix else whole_matrix,
        runs=[(run, site.run_link(run)) for run in (runs_of_sweep(site, whole_matrix, sweep) if sweep else ())],
        counts=[(status, sum(entry.status == status for entry in entries)) for status in STATUSES],
        summary=summary,
        nightly_date=nightly_date,
        query=choice,
        cost_fields=COST_FIELDS,
        metric_groups=by_group(view.metrics),
        figures=figures,
        rows=[
            {**view.row(point), "attempts": attempt_links(site, point.entries)}
            for point in view.points[offset : offset + PAGE_ROWS]
        ],
        problems=[(times, reason, attempt_links(site, [newest])) for times, reason, newest in view.problems],
        missing=_missing_cells(site, sweep),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            *_page_parts(sweep, matrix),
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
        neighbours=[other for other in siblings if other != sweep],
        # Siblings are sorted newest first, so the following one in the list is the previous one in time.
        before=next(iter(siblings[siblings.index(sweep) + 1 :]), None) if whole_matrix and sweep in siblings else None,
        sweep=sweep,
    )


def _page_parts(sweep: str | None, matrix: str | None) -> tuple[str, ...]:
    """Return the parts of the address of this page."""
    return ("sweeps", sweep) if sweep else ("matrices", matrix) if matrix else ("unswept",)


def _missing_cells(site: ResultsSite, sweep: str | None) -> dict[str, Any] | None:
    """Return the planned cells without a usable record; None without a plan."""
    plan = SweepPlans(site.results).read(sweep) if sweep else None
    if plan is None:
        return None
    entries = site.index.of_configurations(cell.config_id for cell in plan.cells)
    gap = gap_of(plan, entries, decided_in_plan(plan, entries))
    shown = [(cell_text(gap, one), one.last or "never measured") for one in gap.missing[:MAX_MISSING]]
    return {"planned": gap.planned, "count": len(gap.missing), "cells": shown}


def nightly_page(site: ResultsSite, choice: NightlyPageQuery | None = None) -> str:
    """Return the page of nightly runs, or setup instructions before the first one.

    Raises PageNotFound for an unknown DAG, axis, configuration or metric.
    """
    choice = choice or NightlyPageQuery()
    site.index.refresh()
    kinds = sorted(
        (name for tally in site.index.matrices() if (name := tally.name) and is_nightly(name)),
        key=lambda one: one != NIGHTLY,
    )
    if choice.dag_id and choice.dag_id not in kinds:
        raise PageNotFound(f"No nightly run of {choice.dag_id} has a record.")
    if choice.axis not in ("", *AXES):
        raise PageNotFound(f"by: got {choice.axis}; expected {' or '.join(AXES)}.")
    dag_id = choice.dag_id or (kinds[0] if kinds else NIGHTLY)
    view = NightlyView(site.results, site.index.of_matrix(dag_id), dag_id, choice)
    if not view.runs:
        return render(site, "nightly_setup", title="Nightly runs")
    page, pages, offset = paginate(choice.page, len(view.dates), nightly.RUNS_PER_PAGE)
    return render(
        site,
        "nightly",
        title="Nightly runs",
        view=view,
        figures={"history": view.figure} if view.figure is not None else {},
        metric_groups=by_group(view.metrics),
        kinds=kinds,
        rows=view.rows(view.dates[offset : offset + nightly.RUNS_PER_PAGE]),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            "nights", of=choice.dag_id, metric=choice.metric, cell=choice.cell, by=choice.axis, page=number
        ),
    )
