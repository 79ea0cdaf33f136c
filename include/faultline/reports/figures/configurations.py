"""Figure of one metric of a sweep: heat map over two numeric axes, else curves with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.config_points import Axis, Figure, Point, is_number, label, split_controls, value_or_bound
from faultline.records.catalogue import MACRO
from faultline.records.columns import Metric
from faultline.records.index_entry import IndexEntry
from faultline.reports.figures.style import (
    FAINT_COLOUR,
    INVALID,
    LIMIT_COLOUR,
    SERIES_COLOURS,
    SERIES_SYMBOLS,
    legend_above,
    set_layout,
)
from faultline.system.text import pluralize

# If there were more lines, they would be indistinguishable.
MAX_LINES = 24
# Horizontal offset of single runs (left of the median) and invalid runs (right), as a share of the axis.
POINT_OFFSET = 0.012
# An axis is logarithmic if maximum ÷ minimum reaches this.
LOG_FACTOR = 50
# Height of a small figure, which has its title and legend outside.
PANEL_HEIGHT = 220
# Thousands separators and no exponents, as in the tables.
_TICKS = ",~r"
_CATEGORIES = {"type": "category", "showgrid": False, "fixedrange": True, "automargin": True}
# A single hue from light to dark, so that greyscale prints keep the order.
_SCALE = [[0.0, "#d6e6f2"], [0.5, "#5f9ccb"], [1.0, "#0b3c63"]]


def heat_map(points: Sequence[Point], x: Axis, y: Axis, metric: Metric) -> go.Figure:
    """Return the medians over two axes.

    A cell without usable runs shows the median of its invalid runs in parentheses.
    """
    at = {(x.label(point), y.label(point)): point for point in split_controls(points)[0]}
    columns, rows = [label(value) for value in x.values], [label(value) for value in y.values]
    figures = [
        [at[column, row].figure(metric.key) if (column, row) in at else Figure(0) for column in columns] for row in rows
    ]
    notes = {position: _excluded_runs_text(point) for position, point in at.items()}
    figure = go.Figure(
        go.Heatmap(
            x=columns,
            y=rows,
            z=[[one.median for one in row] for row in figures],
            text=[[one.text(metric) if one.median is not None else "" for one in row] for row in figures],
            customdata=[
                [
                    f"{x.name} {column}\n{y.name} {row}\n{_figure_text(one, metric)}{notes.get((column, row), '')}"
                    for column, one in zip(columns, ones, strict=True)
                ]
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
    for (column, row), point in at.items():
        invalid = point.invalid_figure(metric.key)
        if not point.valid and invalid.median is not None:
            figure.add_annotation(
                # The index, because plotly would take a numeric text for an index.
                x=columns.index(column),
                y=rows.index(row),
                text=f"({invalid.text(metric)})",
                hovertext=f"{_figure_text(invalid, metric)}{_excluded_runs_text(point)}",
                showarrow=False,
                font={"color": FAINT_COLOUR},
            )
    set_layout(
        figure,
        130 + 46 * len(rows),
        (72, 16, 12, 56),
        xaxis={"title": {"text": x.name}, **_CATEGORIES},
        yaxis={"title": {"text": y.name}, **_CATEGORIES},
    )
    return figure


def curves(
    points: Sequence[Point], x: Axis, others: Sequence[Axis], metric: Metric, *, small: bool = False
) -> tuple[go.Figure, int]:
    """Return the metric along `x`, with a line per combination of the other axes, and the number of omitted lines.

    Bars show the range of the repetitions, small points single runs or recoveries; lines join repeated runs. Open
    triangles are lower bounds, grey diamonds control runs, hollow markers invalid runs.
    """
    figure = go.Figure()
    lines: dict[str, list[Point]] = {}
    measured, controls = split_controls(points)
    for point in measured:
        lines.setdefault(", ".join(axis.text_of(point) for axis in others), []).append(point)
    scale = _scale(x)
    for number, (name, members) in enumerate(list(lines.items())[:MAX_LINES]):
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        symbol = SERIES_SYMBOLS[number // len(SERIES_COLOURS) % len(SERIES_SYMBOLS)]
        _add_line(figure, members, x, metric, name or "median", colour, symbol)
        _add_runs(figure, members, x, metric, name or "median", colour)
        _invalid(figure, members, x, metric, name or "median", colour, symbol)
    if controls:
        _invalid(figure, controls, x, metric, "control", FAINT_COLOUR, "diamond")
        _add_line(figure, controls, x, metric, "control", FAINT_COLOUR, "diamond-open", joined=False)
    named = len({trace.name for trace in figure.data if trace.showlegend is not False}) > 1
    set_layout(
        figure,
        PANEL_HEIGHT if small else 420,
        (56, 12, 12, 44) if small else (72, 16, 44 if named else 12, 56),
        showlegend=named and not small,
        legend=legend_above(),
        xaxis={"title": {"text": x.name}, "zeroline": False, "automargin": True, **scale},
        yaxis={
            "title": {"text": "" if small else metric.title},
            "zeroline": False,
            "rangemode": "tozero",
            "tickformat": _TICKS,
        },
    )
    return figure, max(0, len(lines) - MAX_LINES)


def legend_entries(figure: go.Figure) -> list[tuple[str, str, bool]]:
    """Return the entries of the legend: name, colour, and whether the marker is hollow."""
    shown = [trace for trace in figure.data if trace.showlegend is not False]
    return [(trace.name, str(trace.marker.color), "-open" in str(trace.marker.symbol)) for trace in shown]


def add_limit_line(figure: go.Figure, bound: float, words: str, drawn: Sequence[float]) -> None:
    """Add a dotted line at a limit, labelled `words`, and extend the vertical axis to it and the values `drawn`."""
    top = max([bound, *drawn])
    figure.add_hline(
        y=bound,
        line={"color": LIMIT_COLOUR, "width": 1.4, "dash": "dot"},
        annotation={"text": f"limit: {words}", "font": {"color": LIMIT_COLOUR, "size": 11}},
        annotation_position="top left",
    )
    figure.update_yaxes(range=[min(0.0, bound), 1.08 * top if top > 0 else 1.0])


def _add_line(
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
    """Add a line through repeated runs, and separate markers for single runs and lower bounds."""
    measured = [(point, point.figure(metric.key)) for point in _points_on_axis(points, x)]
    joined = joined and x.numeric
    named = False
    for bound, repeated in ((False, True), (False, False), (True, True)):
        seen = [
            (point, one)
            for point, one in measured
            if one.median is not None and one.bound == bound and (bound or (one.n > 1) == repeated)
        ]
        if not seen:
            continue
        figure.add_scatter(
            x=[_axis_position(point, x) for point, _ in seen],
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
            text=[f"{name}: {_figure_text(one, metric)}" for _, one in seen],
            name=f"{name}: at least" if bound else name,
            legendgroup=name,
            # Repeated and single runs of one line share a legend entry.
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


def _add_runs(figure: go.Figure, points: Sequence[Point], x: Axis, metric: Metric, name: str, colour: str) -> None:
    """Add each repeated run, or each of its recoveries, as a small point; lower bounds are triangles."""
    seen = [
        (point, entry, what, value, bound)
        for point in _points_on_axis(points, x)
        for entry in point.valid
        for what, value, bound in _values(entry, metric)
        if len(point.valid) > 1 or what
    ]
    for bounded, symbol in ((False, "circle"), (True, "triangle-up-open")):
        shown = [one for one in seen if one[-1] is bounded]
        if shown:
            figure.add_scatter(
                x=[_axis_position(point, x, -POINT_OFFSET) for point, *_ in shown],
                y=[value for *_, value, _ in shown],
                text=[
                    f"{name}, run {entry.repetition + 1}{what}: {'> ' * bounded}{metric.text(value)} {metric.unit}"
                    for _, entry, what, value, _ in shown
                ],
                name="one run",
                legendgroup=name,
                showlegend=False,
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 5, "opacity": 0.55},
                hovertemplate="%{text}<extra></extra>",
            )


def _values(entry: IndexEntry, metric: Metric) -> list[tuple[str, float, bool]]:
    """Return the points of a run: recovery label, value, and whether it is a lower bound."""
    if metric.key == MACRO and entry.recoveries:
        return [
            (f", recovery {one.number}", one.low if one.high is None else one.high, one.high is None)
            for one in entry.recoveries
        ]
    seen = value_or_bound(entry, metric.key)
    return [] if seen is None else [("", *seen)]


def _invalid(
    figure: go.Figure, points: Sequence[Point], x: Axis, metric: Metric, name: str, colour: str, symbol: str
) -> None:
    """Add each invalid run as a hollow marker with its reason."""
    shown = [
        (point, entry, seen)
        for point in _points_on_axis(points, x)
        for entry in point.invalid
        if (seen := value_or_bound(entry, metric.key)) is not None
    ]
    if not shown:
        return
    first = INVALID not in {trace.name for trace in figure.data}
    figure.add_scatter(
        x=[_axis_position(point, x, POINT_OFFSET) for point, _, _ in shown],
        y=[value for _, _, (value, _) in shown],
        text=[
            f"{name}, run {entry.repetition + 1}: {'> ' * bound}{metric.text(value)} {metric.unit}\n"
            f"{reason_text(entry)}"
            for _, entry, (value, bound) in shown
        ],
        name=INVALID,
        legendgroup=INVALID,
        showlegend=first,
        mode="markers",
        marker={"color": colour, "symbol": f"{symbol}-open", "size": 8, "line": {"width": 1.6, "color": colour}},
        hovertemplate="%{text}<extra></extra>",
    )


def reason_text(entry: IndexEntry) -> str:
    """Return a text with the reason why a run does not count: `invalid: background-load: …`."""
    return f"{entry.status}: {next(iter(entry.reasons), 'unknown reason')}"


def _points_on_axis(points: Sequence[Point], x: Axis) -> list[Point]:
    """Return the points with a position on the axis; control runs may lack a varied parameter."""
    return [point for point in points if not x.numeric or is_number(x.of(point))]


def _axis_position(point: Point, x: Axis, aside: float = 0.0) -> Any:
    """Return the position of a point on an axis, shifted by the share `aside` of its length unless categorical."""
    if not x.numeric:
        return x.label(point)
    value, numbers = x.of(point), [float(one) for one in x.values]
    if not aside:
        return value
    if _is_log_axis(x):
        return float(value * (max(numbers) / min(numbers)) ** aside)
    return float(value + aside * (max(numbers) - min(numbers)))


def _is_log_axis(x: Axis) -> bool:
    """Return whether an axis is numeric and logarithmic."""
    numbers = [float(value) for value in x.values]
    return min(numbers) > 0 and max(numbers) >= LOG_FACTOR * min(numbers)


def _excluded_runs_text(point: Point) -> str:
    """Return a line for a tooltip about the invalid runs of a point; empty if there are none."""
    if not point.invalid:
        return ""
    runs = pluralize(len(point.invalid), "invalid run")
    return f"\n{runs} excluded: {reason_text(point.invalid[-1])}"


def _scale(x: Axis) -> dict[str, Any]:
    """Return the axis type: linear or logarithmic for numbers, else categories."""
    if not x.numeric:
        return {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [label(value) for value in x.values],
        }
    if _is_log_axis(x):
        return {"type": "log", "tickmode": "array", "tickvals": list(x.values), "ticktext": list(map(label, x.values))}
    if len(x.values) <= 12:
        return {"tickmode": "array", "tickvals": list(x.values), "ticktext": [label(value) for value in x.values]}
    return {}


def _figure_text(one: Figure, metric: Metric) -> str:
    """Return median, range and count in words."""
    if one.median is None:
        return "unknown"
    spread = f", {one.spread(metric)}" if one.spread(metric) else ""
    return f"{metric.name} {one.text(metric)} {metric.unit}{spread} (n = {one.n})"
