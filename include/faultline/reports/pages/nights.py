"""The nights of the regression set: one figure over all of them, and what each came to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.cells import axes_of, in_order, points_of
from faultline.comparison.coverage import gap_of, missed_nights, recorded
from faultline.comparison.nights import Course, Night, changes_of_surroundings, course_of, nights_of
from faultline.experiment.night_file import is_night
from faultline.experiment.nightly_schedule import NIGHTLY
from faultline.records.format import NONE
from faultline.records.manifest import Manifest, Manifests
from faultline.records.metrics import by_group, metrics_of
from faultline.records.summary import Entry
from faultline.reports.pages.charts import escaped
from faultline.reports.pages.site import Site, Unknown, paged, render
from faultline.reports.pages.sweep import chosen_metric
from faultline.reports.sweep_figures import SERIES_COLOURS
from faultline.reports.time_series import FAINT_COLOUR

NIGHTS_A_PAGE = 60
NIGHTS_WITH_A_TICK = 10
_DAY_MS = 86_400_000
_NOT_MEASURED = "not measured; `./faultline missing {} --measure` makes up for it, or a backfill"
_CLEAR = "rgba(0,0,0,0)"
_CHANGE_COLOUR = "#b3261e"


@dataclass(frozen=True)
class Chosen:
    """What a reader chose; empty: the default. `cell` is a configuration's id, `of` the DAG whose nights are shown."""

    metric: str = ""
    cell: str = ""
    page: int = 1
    of: str = ""


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
    of = choice.of or (kinds[0] if kinds else NIGHTLY)
    entries = site.index.of_matrix(of)
    nights = nights_of(entries)
    if not nights:
        return render(site, "no_nights", title="Nights")
    points = points_of(entries)
    axes = axes_of(points)
    cells = [
        (point.config_id, ", ".join(f"{axis.name} {axis.label(point)}" for axis in axes) or point.entries[0].fault)
        for point in in_order(points, axes)
    ]
    cell = choice.cell or cells[0][0]
    if cell not in dict(cells):
        raise Unknown(f"No night has measured the configuration {cell}.")
    metrics = metrics_of([entry for entry in entries if entry.config_id == cell])
    metric = chosen_metric(metrics, choice.metric)
    surroundings = changes_of_surroundings(nights)
    course = course_of(nights, cell, metric) if metric else None
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
    return render(
        site,
        "nights",
        title="Nights",
        figures={"course": course_figure(course, surroundings)} if course and any(course.values) else {},
        metric=metric,
        metric_groups=by_group(metrics),
        cells=cells,
        cell=cell,
        cell_name=dict(cells)[cell],
        kinds=kinds,
        of=of,
        rows=[
            _row(site, measured[date], of_night.get(date, []), plans.get(date), surroundings, course)
            if date in measured
            else _absent_row(date, *absent[date])
            for date in shown
        ],
        page=page,
        pages=pages,
        page_link=lambda number: site.link("nights", of=choice.of, metric=choice.metric, cell=choice.cell, page=number),
    )


def course_figure(course: Course, surroundings: Mapping[str, str]) -> go.Figure:
    """Medians over nights with intervals; a line where a level begins, a diamond where the surroundings changed."""
    seen = [(date[:10], one) for date, one in zip(course.dates, course.values, strict=True) if one is not None]
    ended = [(day, one) for day, one in seen if one.value < float("inf")]
    # Of a single run the interval is the run itself; no line joins it.
    known = [(day, one) for day, one in ended if one.low < one.high]
    single = [(day, one) for day, one in ended if one.low == one.high]
    colour = SERIES_COLOURS[0]
    figure = go.Figure()
    figure.add_scatter(
        x=[day for day, _ in known],
        y=[one.value for _, one in known],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_finite(one.high, one.value) - one.value for _, one in known],
            "arrayminus": [one.value - _finite(one.low, one.value) for _, one in known],
            "thickness": 1.2,
            "width": 4,
            "color": colour,
        },
        name="median",
        mode="lines+markers",
        line={"color": colour, "width": 1.6},
        marker={"color": colour, "size": 7},
        text=[f"{day}: {course.metric.text(one.value)} {escaped(course.metric.unit)}" for day, one in known],
        hovertemplate="%{text}<extra></extra>",
    )
    if single:
        figure.add_scatter(
            x=[day for day, _ in single],
            y=[one.value for _, one in single],
            name="single value",
            mode="markers",
            marker={"color": colour, "size": 7},
            text=[f"{day}: {escaped(course.metric.name)} {course.metric.text(one.value)}" for day, one in single],
            hovertemplate="%{text}<extra></extra>",
        )
    by_day = {day: one.value for day, one in ended}
    changed = [(date[:10], words) for date, words in surroundings.items() if date[:10] in by_day]
    if changed:
        figure.add_scatter(
            x=[day for day, _ in changed],
            y=[by_day[day] for day, _ in changed],
            name="other surroundings",
            mode="markers",
            marker={"color": FAINT_COLOUR, "symbol": "diamond-open", "size": 13, "line": {"width": 2}},
            text=[f"{day}: {escaped(words)}" for day, words in changed],
            hovertemplate="%{text}<extra></extra>",
        )
    for number in course.changes:
        figure.add_vline(x=course.dates[number][:10], line={"color": _CHANGE_COLOUR, "width": 1.6, "dash": "dash"})
    figure.update_layout(
        height=420,
        margin={"l": 72, "r": 16, "t": 44, "b": 56},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        showlegend=len(figure.data) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={
            "title": {"text": "night"},
            "type": "date",
            "zeroline": False,
            "tickformat": "%Y-%m-%d",
            **_ticks(course),
        },
        yaxis={
            "title": {"text": escaped(course.metric.title)},
            "zeroline": False,
            "rangemode": "tozero",
            "tickformat": ",~r",
        },
    )
    return figure


def _ticks(course: Course) -> dict[str, Any]:
    """One a day where there are few, which would else get several with the same text."""
    first, last = (datetime.fromisoformat(course.dates[place]) for place in (0, -1))
    return {"dtick": _DAY_MS} if (last - first).days < NIGHTS_WITH_A_TICK else {}


def _row(
    site: Site,
    night: Night,
    every: Sequence[Entry],
    plan: Manifest | None,
    surroundings: Mapping[str, str],
    course: Course | None,
) -> dict[str, Any]:
    """One night of the table. `every`: what was measured of it, its baseline's too."""
    sweep = night.entries[-1].sweep_id
    verdict = _kept(site, sweep)
    place = course.dates.index(night.date) if course else -1
    value = course.values[place] if course else None
    return {
        "day": night.day,
        "href": site.link("sweeps", sweep) if sweep else None,
        "valid": len(night.valid),
        "total": len(night.entries),
        "missing": None if plan is None else len(gap_of(plan, recorded(every)).missing),
        "build": night.build or NONE,
        "value": course.metric.text(value.value) if course and value is not None else NONE,
        "begins": course is not None and place in course.changes,
        "summary": verdict.get("summary") or "not compared",
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
        "value": NONE,
        "begins": False,
        "worse": [],
        "suspected": [],
        "better": [],
        "visible": "",
        "power": "",
        "problem": "",
        "changed": "",
        "build": NONE,
    }
    return {**blank, "day": date[:10], "summary": summary, "valid": 0, "total": 0, "missing": planned}


def _kept(site: Site, sweep: str | None) -> Mapping[str, Any]:
    """The verdict as the task wrote it; empty when there is none, or when it cannot be read."""
    try:
        found = json.loads((site.results / "nights" / f"{sweep}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(found: object) -> Sequence[str]:
    return [str(one) for one in found] if isinstance(found, list) else []


def _finite(value: float, other: float) -> float:
    return value if abs(value) < float("inf") else other
