"""The nights of the regression set: one figure over all of them, and what each came to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from faultline.comparison.cells import axes_of, in_order, names_of, points_of
from faultline.comparison.coverage import gap_of, missed_nights
from faultline.comparison.limits import Limit
from faultline.comparison.nights import (
    Course,
    Night,
    changes_of_surroundings,
    course_of,
    course_of_commits,
    kept_verdict,
    nights_of,
)
from faultline.experiment.night_file import is_night
from faultline.experiment.nightly_schedule import NIGHTLY
from faultline.records.catalogue import Metric, by_group, metrics_of
from faultline.records.format import NONE
from faultline.records.manifest import Manifest, Manifests
from faultline.records.summary import Entry
from faultline.reports.figures.nights import course_figure
from faultline.reports.pages.site import Site, Unknown, paged, render
from faultline.reports.views.sweep import chosen_metric

NIGHTS_A_PAGE = 60
BY = ("night", "commit")
_NOT_MEASURED = "not measured; ./faultline missing {} --measure makes up for it, or a backfill"


@dataclass(frozen=True)
class Chosen:
    """What a reader chose; empty: the default. `cell` is a configuration's id, `of` the DAG whose nights are shown,
    `by` what its figure is drawn along."""

    metric: str = ""
    cell: str = ""
    page: int = 1
    of: str = ""
    by: str = ""


def nights_page(site: Site, choice: Chosen | None = None) -> str:
    """The page; before the first night one that says how to set it up. Raises Unknown for nights, a cell or a metric
    that there are not."""
    choice = choice or Chosen()
    site.index.refresh()
    kinds = sorted(
        (name for tally in site.index.matrices() if (name := tally.name) and is_night(name)),
        key=lambda one: one != NIGHTLY,
    )
    if choice.of and choice.of not in kinds:
        raise Unknown(f"No night of {choice.of} has a record yet.")
    if choice.by not in ("", *BY):
        raise Unknown(f"Nights are drawn by {' or '.join(BY)}, not by {choice.by}.")
    of = choice.of or (kinds[0] if kinds else NIGHTLY)
    entries = site.index.of_matrix(of)
    nights = nights_of(entries)
    if not nights:
        return render(site, "no_nights", title="Nights")
    points = points_of(entries)
    names = names_of(points)
    cells = [(point.config_id, names[point.config_id]) for point in in_order(points, axes_of(points))]
    cell = choice.cell or cells[0][0]
    if cell not in dict(cells):
        raise Unknown(f"No night has measured the configuration {cell}.")
    metrics = metrics_of([entry for entry in entries if entry.config_id == cell])
    metric = chosen_metric(metrics, choice.metric)
    surroundings = changes_of_surroundings(nights)
    course = course_of(nights, cell, metric) if metric else None
    drawn = course_of_commits(nights, cell, metric) if metric and choice.by == "commit" else course
    planned = [plan for plan in Manifests(site.results).of_matrix(of) if plan.logical_date]
    plans = {plan.logical_date: plan for plan in planned}
    measured = {night.date: night for night in nights}
    of_night: dict[str, list[Entry]] = {}
    for entry in entries:
        of_night.setdefault(str(entry.logical_date), []).append(entry)
    # Of those that never ran there is no record, and perhaps no plan.
    waiting = {
        str(plan.logical_date): gap_of(plan, ()).planned for plan in planned if plan.logical_date not in measured
    }
    missed = {gap.series: gap.planned for gap in missed_nights(planned, datetime.now(UTC))}
    absent = {date: ("nothing measured yet", cells) for date, cells in waiting.items()}
    absent |= {date: (_NOT_MEASURED.format(of), cells) for date, cells in missed.items()}
    dates = sorted({*measured, *absent}, reverse=True)
    page, pages, offset = paged(choice.page, len(dates), NIGHTS_A_PAGE)
    shown = dates[offset : offset + NIGHTS_A_PAGE]
    # Of a year of nights only the verdicts that are looked at are read.
    kept = cache(lambda sweep_id: kept_verdict(site.results, sweep_id))
    limit = limit_of((kept(night.entries[-1].sweep_id) for night in reversed(nights[-NIGHTS_A_PAGE:])), metric)
    return render(
        site,
        "nights",
        title="Nights",
        figures={"course": course_figure(drawn, surroundings, by_commit=drawn is not course, limit=limit)}
        if drawn and any(drawn.values)
        else {},
        limit=limit,
        by=choice.by or BY[0],
        ways=BY,
        metric=metric,
        metric_groups=by_group(metrics),
        cells=cells,
        cell=cell,
        cell_name=dict(cells)[cell],
        kinds=kinds,
        of=of,
        rows=gathered(
            [
                _row(site, measured[date], of_night.get(date, []), plans.get(date), surroundings, course, kept)
                if date in measured
                else _absent_row(date, *absent[date])
                for date in shown
            ]
        ),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            "nights", of=choice.of, metric=choice.metric, cell=choice.cell, by=choice.by, page=number
        ),
    )


def _row(
    site: Site,
    night: Night,
    every: Sequence[Entry],
    plan: Manifest | None,
    surroundings: Mapping[str, str],
    course: Course | None,
    kept: Callable[[str | None], Mapping[str, Any]],
) -> dict[str, Any]:
    """One night of the table. `every`: what was measured of it, its baseline's too; `kept`: the verdict on a sweep, as
    its task kept it."""
    sweep = night.entries[-1].sweep_id
    verdict = kept(sweep)
    place = course.places.index(night.date) if course else -1
    value = course.values[place] if course else None
    return {
        "day": night.day,
        "until": "",
        "href": site.link("sweeps", sweep) if sweep else None,
        "valid": len(night.valid),
        "total": len(night.entries),
        "missing": None if plan is None else len(gap_of(plan, every).missing),
        "build": night.build or NONE,
        "value": course.metric.text(value.value) if course and value is not None else NONE,
        "begins": course is not None and place in course.changes,
        "summary": verdict.get("summary") or "not compared",
        "beyond": _lines(verdict.get("beyond")),
        "suspected": _lines(verdict.get("suspicions")),
        "better": _lines(verdict.get("improvements")),
        "visible": "; ".join(_lines(verdict.get("visible"))),
        "power": verdict.get("power") or "",
        "worse": _lines(verdict.get("reasons")),
        "problem": verdict.get("problem") or "",
        "changed": surroundings.get(night.date, ""),
    }


def _absent_row(date: str, summary: str, planned: int) -> dict[str, Any]:
    """A night of which nothing was measured."""
    blank: dict[str, Any] = {
        "href": None,
        "until": "",
        "value": NONE,
        "begins": False,
        "worse": [],
        "beyond": [],
        "suspected": [],
        "better": [],
        "visible": "",
        "power": "",
        "problem": "",
        "changed": "",
        "build": NONE,
    }
    return {**blank, "day": date[:10], "summary": summary, "valid": 0, "total": 0, "missing": planned}


def gathered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, the newest first, with those of nights in a row of which nothing was measured as one."""
    found: list[dict[str, Any]] = []
    for row in rows:
        last = found[-1] if found else row
        alike = all(last[key] == row[key] for key in ("href", "summary", "missing"))
        if found and row["href"] is None and not row["total"] and alike:
            found[-1] = {**row, "until": last["until"] or last["day"]}
        else:
            found.append(row)
    return found


def limit_of(kept: Iterable[Mapping[str, Any]], metric: Metric | None) -> Limit | None:
    """The limit of a figure by the newest night that had limits. `kept`: verdicts of nights, the newest first."""
    bounds = next((found for one in kept if isinstance(found := one.get("limits"), dict)), {})
    bound = bounds.get(metric.key) if metric else None
    return Limit(metric, float(bound)) if metric and isinstance(bound, int | float) else None


def _lines(found: object) -> Sequence[str]:
    return [str(one) for one in found] if isinstance(found, list) else []
