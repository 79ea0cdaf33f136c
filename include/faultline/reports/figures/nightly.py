"""One figure over nights, or over commits, as a figure. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.nightly_history import MetricHistory
from faultline.comparison.slo import SLO
from faultline.comparison.statistics.estimate import Interval
from faultline.reports.figures.configurations import limit_line
from faultline.reports.figures.style import FAINT_COLOUR, LIMIT_COLOUR, SERIES_COLOURS, finish, legend_above

NIGHTS_WITH_A_TICK = 10
_DAY_MS = 86_400_000
# Of a night's date, what tells it from another.
_DAY = 10


def course_figure(
    course: MetricHistory, surroundings: Mapping[str, str], *, by_commit: bool = False, limit: SLO | None = None
) -> go.Figure:
    """Medians with intervals; a line where a level begins, a diamond where the surroundings of a night (by its date)
    changed, and the limit of the figure where it has one."""
    names = {place: _name(place, by_commit) for place in course.places}
    seen = [(names[place], one) for place, one in zip(course.places, course.values, strict=True) if one is not None]
    ended = [(name, one) for name, one in seen if one.value < float("inf")]
    # Of a single run the interval is the run itself; no line joins it.
    known = [(name, one) for name, one in ended if one.low < one.high]
    single = [(name, one) for name, one in ended if one.low == one.high]
    figure = go.Figure()
    _medians(figure, course, known)
    if single:
        figure.add_scatter(
            x=[name for name, _ in single],
            y=[one.value for _, one in single],
            name="single value",
            mode="markers",
            marker={"color": SERIES_COLOURS[0], "size": 7},
            text=[f"{name}: {course.metric.name} {course.metric.text(one.value)}" for name, one in single],
            hovertemplate="%{text}<extra></extra>",
        )
    at = {name: one.value for name, one in ended}
    changed = [(names[place], words) for place, words in surroundings.items() if names.get(place) in at]
    if changed:
        figure.add_scatter(
            x=[name for name, _ in changed],
            y=[at[name] for name, _ in changed],
            name="other surroundings",
            mode="markers",
            marker={"color": FAINT_COLOUR, "symbol": "diamond-open", "size": 13, "line": {"width": 2}},
            text=[f"{name}: {words}" for name, words in changed],
            hovertemplate="%{text}<extra></extra>",
        )
    for number in course.changes:
        place = [*names.values()].index(names[course.places[number]]) if by_commit else names[course.places[number]]
        figure.add_vline(x=place, line={"color": LIMIT_COLOUR, "width": 1.6, "dash": "dash"})
    finish(
        figure,
        420,
        (72, 16, 44, 56),
        showlegend=len(figure.data) > 1,
        legend=legend_above(),
        xaxis=_commits(list(names.values())) if by_commit else _nights(course),
        yaxis={
            "title": {"text": course.metric.title},
            "zeroline": False,
            "rangemode": "tozero",
            "tickformat": ",~r",
        },
    )
    if limit is not None:
        limit_line(figure, limit.bound, limit.text, [_finite(one.high, one.value) for _, one in ended])
    return figure


def _medians(figure: go.Figure, course: MetricHistory, known: list[tuple[str, Interval]]) -> None:
    figure.add_scatter(
        x=[name for name, _ in known],
        y=[one.value for _, one in known],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_finite(one.high, one.value) - one.value for _, one in known],
            "arrayminus": [one.value - _finite(one.low, one.value) for _, one in known],
            "thickness": 1.2,
            "width": 4,
            "color": SERIES_COLOURS[0],
        },
        name="median",
        mode="lines+markers",
        line={"color": SERIES_COLOURS[0], "width": 1.6},
        marker={"color": SERIES_COLOURS[0], "size": 7},
        text=[f"{name}: {course.metric.text(one.value)} {course.metric.unit}" for name, one in known],
        hovertemplate="%{text}<extra></extra>",
    )


def _name(place: str, by_commit: bool) -> str:
    return place if by_commit else place[:_DAY]


def _nights(course: MetricHistory) -> dict[str, Any]:
    """Days; one tick a day where there are few, which would else get several with the same text. Texts beside each
    other where a record says of its night what is no date."""
    try:
        first, last = (datetime.fromisoformat(course.places[place]) for place in (0, -1))
        few = (last - first).days < NIGHTS_WITH_A_TICK
    except (ValueError, TypeError):
        return {"title": {"text": "night"}, "type": "category"}
    axis = {"title": {"text": "night"}, "type": "date", "zeroline": False, "tickformat": "%Y-%m-%d", "automargin": True}
    return {**axis, "dtick": _DAY_MS} if few else axis


def _commits(names: list[str]) -> dict[str, Any]:
    """Commits beside each other, in the order in which they were measured."""
    order = {"type": "category", "categoryorder": "array", "categoryarray": names}
    return {"title": {"text": "commit"}, "automargin": True, **order}


def _finite(value: float, other: float) -> float:
    return value if abs(value) < float("inf") else other
