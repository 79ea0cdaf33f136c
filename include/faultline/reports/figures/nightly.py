"""Figure of one metric over nightly runs or commits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.nightly_history import MetricHistory
from faultline.comparison.slo import SLO
from faultline.comparison.statistics.estimate import Interval
from faultline.reports.figures.configurations import add_limit_line
from faultline.reports.figures.style import FAINT_COLOUR, LIMIT_COLOUR, SERIES_COLOURS, legend_above, set_layout

MAX_DAILY_TICKS = 10
_DAY_MS = 86_400_000
# Length of the date in an ISO timestamp.
_DATE_LENGTH = 10


def history_figure(
    history: MetricHistory, environment_changes: Mapping[str, str], *, by_commit: bool = False, limit: SLO | None = None
) -> go.Figure:
    """Return medians with intervals, and the limit if given.

    A line marks a change point, a diamond a change of the environment (by date of the nightly run).
    """
    names = {position: _name(position, by_commit) for position in history.positions}
    points = [
        (names[position], one)
        for position, one in zip(history.positions, history.values, strict=True)
        if one is not None
    ]
    finite = [(name, one) for name, one in points if one.value < float("inf")]
    # The interval of a single run has no length; such a point is not joined by the line.
    intervals = [(name, one) for name, one in finite if one.low < one.high]
    single = [(name, one) for name, one in finite if one.low == one.high]
    figure = go.Figure()
    _add_medians(figure, history, intervals)
    if single:
        figure.add_scatter(
            x=[name for name, _ in single],
            y=[one.value for _, one in single],
            name="single value",
            mode="markers",
            marker={"color": SERIES_COLOURS[0], "size": 7},
            text=[f"{name}: {history.metric.name} {history.metric.text(one.value)}" for name, one in single],
            hovertemplate="%{text}<extra></extra>",
        )
    at = {name: one.value for name, one in finite}
    changed = [(names[position], words) for position, words in environment_changes.items() if names.get(position) in at]
    if changed:
        figure.add_scatter(
            x=[name for name, _ in changed],
            y=[at[name] for name, _ in changed],
            name="environment changed",
            mode="markers",
            marker={"color": FAINT_COLOUR, "symbol": "diamond-open", "size": 13, "line": {"width": 2}},
            text=[f"{name}: {words}" for name, words in changed],
            hovertemplate="%{text}<extra></extra>",
        )
    for number in history.changes:
        position = (
            [*names.values()].index(names[history.positions[number]]) if by_commit else names[history.positions[number]]
        )
        figure.add_vline(x=position, line={"color": LIMIT_COLOUR, "width": 1.6, "dash": "dash"})
    set_layout(
        figure,
        420,
        (72, 16, 44, 56),
        showlegend=len(figure.data) > 1,
        legend=legend_above(),
        xaxis=_commit_axis(list(names.values())) if by_commit else _date_axis(history),
        yaxis={
            "title": {"text": history.metric.title},
            "zeroline": False,
            "rangemode": "tozero",
            "tickformat": ",~r",
        },
    )
    if limit is not None:
        add_limit_line(figure, limit.bound, limit.text, [_finite(one.high, one.value) for _, one in finite])
    return figure


def _add_medians(figure: go.Figure, history: MetricHistory, intervals: list[tuple[str, Interval]]) -> None:
    figure.add_scatter(
        x=[name for name, _ in intervals],
        y=[one.value for _, one in intervals],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_finite(one.high, one.value) - one.value for _, one in intervals],
            "arrayminus": [one.value - _finite(one.low, one.value) for _, one in intervals],
            "thickness": 1.2,
            "width": 4,
            "color": SERIES_COLOURS[0],
        },
        name="median",
        mode="lines+markers",
        line={"color": SERIES_COLOURS[0], "width": 1.6},
        marker={"color": SERIES_COLOURS[0], "size": 7},
        text=[f"{name}: {history.metric.text(one.value)} {history.metric.unit}" for name, one in intervals],
        hovertemplate="%{text}<extra></extra>",
    )


def _name(position: str, by_commit: bool) -> str:
    return position if by_commit else position[:_DATE_LENGTH]


def _date_axis(history: MetricHistory) -> dict[str, Any]:
    """Return a date axis, or categories if a record has an invalid date.

    If there are few days, each gets one tick, because plotly would repeat the same label within a day.
    """
    try:
        first, last = (datetime.fromisoformat(history.positions[position]) for position in (0, -1))
        few = (last - first).days < MAX_DAILY_TICKS
    except (ValueError, TypeError):
        return {"title": {"text": "nightly run"}, "type": "category"}
    axis = {"title": {"text": "nightly run"}, "type": "date", "zeroline": False, "automargin": True}
    axis["tickformat"] = "%Y-%m-%d"
    return {**axis, "dtick": _DAY_MS} if few else axis


def _commit_axis(names: list[str]) -> dict[str, Any]:
    """Return a category axis of commits, in order of measurement."""
    order = {"type": "category", "categoryorder": "array", "categoryarray": names}
    return {"title": {"text": "commit"}, "automargin": True, **order}


def _finite(value: float, other: float) -> float:
    return value if abs(value) < float("inf") else other
