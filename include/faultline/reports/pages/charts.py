"""One metric of a sweep as a figure: a heat map over two numeric axes, else curves with error bars. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.cells import Axis, Figure, Point, apart, is_number, label
from faultline.records.metrics import Metric
from faultline.reports.sweep_figures import SERIES_COLOURS, SERIES_SYMBOLS
from faultline.reports.time_series import FAINT_COLOUR

# More lines than this cannot be told apart.
MAX_LINES = 24
# An axis whose greatest value is this many times its least is drawn in powers of ten.
LOG_FACTOR = 50
_CLEAR = "rgba(0,0,0,0)"
_LIMIT_COLOUR = "#d64538"
# As the tables write numbers: thousands apart, never as a power.
_TICKS = ",~r"
_CATEGORIES = {"type": "category", "showgrid": False, "fixedrange": True, "automargin": True}
# From light to dark on white, and readable on black: one hue, so that a print keeps the order.
_SCALE = [[0.0, "#d6e6f2"], [0.5, "#5f9ccb"], [1.0, "#0b3c63"]]


def heat_map(points: Sequence[Point], x: Axis, y: Axis, metric: Metric) -> go.Figure:
    """Medians over two axes; cells that were not measured stay empty."""
    at = {(x.label(point), y.label(point)): point.figure(metric.key) for point in apart(points)[0]}
    columns, rows = [label(value) for value in x.values], [label(value) for value in y.values]
    figures = [[at.get((column, row), Figure(0)) for column in columns] for row in rows]
    figure = go.Figure(
        go.Heatmap(
            x=columns,
            y=rows,
            z=[[one.median for one in row] for row in figures],
            text=[[one.text(metric) if one.median is not None else "" for one in row] for row in figures],
            customdata=[
                [f"{x.name} {columns[place]}\n{y.name} {row}\n{_told(one, metric)}" for place, one in enumerate(ones)]
                for row, ones in zip(rows, figures, strict=True)
            ],
            texttemplate="%{text}",
            hovertemplate="%{customdata}<extra></extra>",
            colorscale=_SCALE,
            xgap=2,
            ygap=2,
            hoverongaps=False,
            colorbar={
                "title": {"text": metric.unit, "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
                "tickformat": _TICKS,
            },
        )
    )
    figure.update_layout(
        height=130 + 46 * len(rows),
        margin={"l": 72, "r": 16, "t": 12, "b": 56},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        xaxis={"title": {"text": x.name}, **_CATEGORIES},
        yaxis={"title": {"text": y.name}, **_CATEGORIES},
    )
    return figure


def curves(points: Sequence[Point], x: Axis, others: Sequence[Axis], metric: Metric) -> tuple[go.Figure, int]:
    """The metric along `x`, a line for each combination of the other axes; the number of lines left out.

    A bar is the range of the repetitions; a line joins what was repeated. An open triangle is a lower bound, a grey
    diamond a control.
    """
    figure = go.Figure()
    lines: dict[str, list[Point]] = {}
    measured, controls = apart(points)
    for point in measured:
        lines.setdefault(", ".join(axis.said(point) for axis in others), []).append(point)
    scale = _scale(x)
    for number, (name, members) in enumerate(list(lines.items())[:MAX_LINES]):
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        symbol = SERIES_SYMBOLS[number // len(SERIES_COLOURS) % len(SERIES_SYMBOLS)]
        _line(figure, members, x, metric, name or "median", colour, symbol)
    if controls:
        _line(figure, controls, x, metric, "control", FAINT_COLOUR, "diamond-open", joined=False)
    figure.update_layout(
        height=420,
        margin={"l": 72, "r": 16, "t": 44 if len(figure.data) > 1 else 12, "b": 56},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        showlegend=len({trace.name for trace in figure.data}) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": x.name}, "zeroline": False, "automargin": True, **scale},
        yaxis={
            "title": {"text": metric.title},
            "zeroline": False,
            "rangemode": "tozero",
            "tickformat": _TICKS,
        },
    )
    return figure, max(0, len(lines) - MAX_LINES)


def limit_line(figure: go.Figure, bound: float, words: str, drawn: Sequence[float]) -> None:
    """A dotted line at a limit, said in `words`; the vertical axis is made to hold it beside the values `drawn`."""
    top = max([bound, *drawn])
    figure.add_hline(
        y=bound,
        line={"color": _LIMIT_COLOUR, "width": 1.4, "dash": "dot"},
        annotation={"text": f"limit: {words}", "font": {"color": _LIMIT_COLOUR, "size": 11}},
        annotation_position="top left",
    )
    figure.update_yaxes(range=[min(0.0, bound), 1.08 * top if top > 0 else 1.0])


def _line(
    figure: go.Figure,
    points: Sequence[Point],
    x: Axis,
    metric: Metric,
    name: str,
    colour: str,
    symbol: str,
    *,
    joined: bool = True,
) -> None:
    """One line through what was repeated. What no line joins: single runs, and lower bounds, which are open
    triangles."""
    measured = [(point, point.figure(metric.key)) for point in points]
    joined = joined and x.numeric
    named = False
    for bound, repeated in ((False, True), (False, False), (True, True)):
        seen = [
            (point, one)
            for point, one in measured
            if one.median is not None and one.bound == bound and (bound or (one.n > 1) == repeated)
        ]
        if x.numeric:
            # A control may lack what the others vary, such as the instant of the fault.
            seen = [(point, one) for point, one in seen if is_number(x.of(point))]
        if not seen:
            continue
        figure.add_scatter(
            x=[x.of(point) if x.numeric else x.label(point) for point, _ in seen],
            y=[one.median for _, one in seen],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [(one.high or 0.0) - (one.median or 0.0) for _, one in seen],
                "arrayminus": [(one.median or 0.0) - (one.low or 0.0) for _, one in seen],
                "thickness": 1.2,
                "width": 4,
                "color": colour,
                "visible": any(one.n > 1 for _, one in seen),
            },
            text=[f"{name}: {_told(one, metric)}" for _, one in seen],
            name=f"{name}: at least" if bound else name,
            legendgroup=name,
            # Repeated and single runs of one line have one entry.
            showlegend=bound or not named,
            mode="lines+markers" if joined and repeated and not bound else "markers",
            line={"color": colour, "width": 1.6},
            marker={
                "color": colour,
                "symbol": "triangle-up-open" if bound else symbol,
                "size": 10 if bound else 8,
                "line": {"width": 2 if bound else 1, "color": colour},
            },
            hovertemplate="%{text}<extra></extra>",
        )
        named = True


def _scale(x: Axis) -> dict[str, Any]:
    """Numbers by size, in powers of ten where they span much; texts beside each other."""
    if not x.numeric:
        return {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [label(value) for value in x.values],
        }
    numbers = [float(value) for value in x.values]
    if min(numbers) > 0 and max(numbers) >= LOG_FACTOR * min(numbers):
        return {"type": "log", "tickmode": "array", "tickvals": list(x.values), "ticktext": list(map(label, x.values))}
    if len(x.values) <= 12:
        return {"tickmode": "array", "tickvals": list(x.values), "ticktext": [label(value) for value in x.values]}
    return {}


def _told(one: Figure, metric: Metric) -> str:
    """Median, range and count in words."""
    if one.median is None:
        return "unknown"
    spread = f", {one.spread(metric)}" if one.spread(metric) else ""
    return f"{metric.name} {one.text(metric)} {metric.unit}{spread} (n = {one.n})"
