"""Latency, throughput, lag and CPU of one attempt over time, in one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from faultline.records.format import LABELS, signed, split_name
from faultline.reports.figures.style import FAINT_COLOUR, FAULT_COLOUR, ROLE_COLOURS, STRONG_COLOUR, set_layout
from faultline.reports.views.series import RecoveryBounds, lag_violations, latency_violations

Series = Mapping[str, Any]
Points = Sequence[Mapping[str, Any]]

_LIGHT = "#86B6E0"
_SHADE = "rgba(128,138,148,0.13)"
_VIOLATION = "rgba(213,94,0,0.16)"
_MARK = "rgba(128,138,148,0.55)"


# Symbols of events in the order of the legend. Start barrier and measured window need none: shading shows them.
MARKS = {
    "t0": "x",
    "t1": "line-ns-open",
    "t2": "triangle-up",
    "t3": "triangle-right",
    "t4": "square",
    "t5": "circle",
    "t6": "diamond",
    "t7": "star",
    "fault_undone": "cross-open",
    "driver_restarted": "pentagon-open",
    "service_up": "hexagon-open",
    "state_epoch": "bowtie-open",
    "replacement_up": "triangle-down-open",
    "snapshot": "circle-open",
    "durable": "circle-dot-open",
    "last_violation": "x-thin-open",
}
# Vertical ranges of the event strip and the four rows, as shares of the height.
_STRIP = (0.965, 1.0)
_ROWS = ((0.735, 0.95), (0.495, 0.695), (0.265, 0.455), (0.0, 0.225))
_TITLES = ("Latency (ms)", "Throughput\n(records/s)", "Lag (records)", "CPU (cores)")
_AXES = ("y", "y2", "y3", "y4")
# The latency axis is logarithmic if maximum ÷ median reaches this.
_LOG_FACTOR = 12


def time_figure(
    series: Series,
    *,
    rate: float | None = None,
    machine_cores: int | None = None,
    bounds: Sequence[RecoveryBounds] = (),
) -> go.Figure:
    """Return latency, throughput, lag and CPU of one attempt over seconds after T0.

    `series`: content of series.json; non-finite numbers become gaps. `rate`: offered rate in records/s, shown for
    comparison. `machine_cores`: cores of the machine, shown if the CPU use comes close. `bounds`: recovery thresholds
    of each fault; violations are shaded. Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for
    invalid content.
    """
    figure = go.Figure()
    _add_latency(figure, series["latency"])
    _add_throughput(figure, series["throughput"], rate)
    _add_lag(figure, series["lag"])
    peak = _add_cpu(figure, series["cpu"])
    start, end = _span(series)
    _add_events(figure, series["events"])
    _add_shades(figure, *_window(series), end)
    _add_bounds(figure, series, bounds, end)
    if machine_cores is not None and peak > machine_cores / 2:
        _add_level(figure, "y4", machine_cores, [start, end], f"{machine_cores} cores")
    set_layout(
        figure,
        780,
        (78, 150, 58, 48),
        hovermode="x unified",
        hoversubplots="axis",
        dragmode="zoom",
        xaxis={
            "anchor": "y4",
            "range": [start, end],
            "title": {"text": "Seconds after T0 (start barrier)"},
            "hoverformat": ".1f",
            "zeroline": False,
        },
        yaxis5={"domain": _STRIP, "range": [-1, 1], "visible": False, "fixedrange": True},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.012, "yanchor": "bottom"},
        showlegend=True,
        **_row_layout(_needs_log_axis(series["latency"])),
    )
    return figure


def _add_curve(figure: go.Figure, row: int, points: Points, key: str, name: str, unit: str, **more: Any) -> None:
    """Add a curve to a row (1 to 4 from the top), with an entry in the legend next to it."""
    line = {"color": STRONG_COLOUR, "width": 1.8, **more.pop("line", {})}
    figure.add_scatter(
        x=_column(points, "t_s"),
        y=_column(points, key, more.pop("digits", 3)),
        name=name,
        line=line,
        yaxis=_AXES[row - 1],
        legend=f"legend{row + 1}",
        hovertemplate=f"%{{y:{more.pop('form', ',.0f')}}} {unit}",
        **{"mode": "lines", **more},
    )


def _add_latency(figure: go.Figure, points: Points) -> None:
    # The maximum is drawn first, so that it lies behind the p99, which often equals it.
    _add_curve(figure, 1, points, "max_ms", "latency max", "ms", marker={"size": 4},
           line={"color": FAINT_COLOUR, "width": 1.4, "dash": "dot"})  # fmt: skip
    for key, name, colour in (("p99_ms", "p99", STRONG_COLOUR), ("p50_ms", "p50", _LIGHT)):
        _add_curve(figure, 1, points, key, f"latency {name}", "ms", mode="lines+markers", marker={"size": 4},
               line={"color": colour, "width": 2})  # fmt: skip


def _add_throughput(figure: go.Figure, points: Points, rate: float | None) -> None:
    # A point is the end of a time bin, so the line steps at the start of the bin.
    _add_curve(figure, 2, points, "rps", "committed", "records/s", digits=1, line={"shape": "vh"})
    known = _known(points, "t_s")
    if rate is not None and known:
        _add_level(figure, "y2", rate, [round(known[0], 3), round(known[-1], 3)], "offered", "legend3")


def _add_lag(figure: go.Figure, points: Points) -> None:
    _add_curve(figure, 3, points, "records", "lag at commit", "records", digits=0, mode="lines+markers",
           marker={"size": 4})  # fmt: skip


def _add_cpu(figure: go.Figure, points: Points) -> float:
    """Add stacked areas and return the highest sum of all roles."""
    filled = [{"t_s": point["t_s"], **{role: point.get(role, 0.0) for role in ROLE_COLOURS}} for point in points]
    for role, colour in ROLE_COLOURS.items():
        if role != "python_workers" or any(_number(point[role]) for point in filled):
            _add_curve(figure, 4, filled, role, role.replace("_", " "), "cores", form=".2f", stackgroup="cpu",
                   line={"color": colour, "width": 0.8})  # fmt: skip
    return max((sum(_number(point[role]) or 0.0 for role in ROLE_COLOURS) for point in filled), default=0.0)


def _add_events(figure: go.Figure, events: Points) -> None:
    """Add each event as a line through all rows and a marker above them.

    To save space, the legend lists only the events of the first fault.
    """
    order = list(MARKS)
    events = [event for event in events if _number(event["t_s"]) is not None]
    fault_times = {split_name(event["name"])[1]: float(event["t_s"]) for event in events if _base_name(event) == "t0"}
    marked = [event for event in events if _base_name(event) in MARKS]
    named: set[str] = set()
    for event in sorted(marked, key=lambda event: (split_name(event["name"])[1], order.index(_base_name(event)))):
        # The undo events of several victims share a legend entry.
        _add_event(figure, event, fault_times, legend="#" not in event["name"] and event["name"] not in named)
        named.add(event["name"])


def _base_name(event: Mapping[str, Any]) -> str:
    return split_name(str(event["name"]))[0]


def _add_event(figure: go.Figure, event: Mapping[str, Any], fault_times: Mapping[int, float], *, legend: bool) -> None:
    """Add one event; `fault_times`: t0 (instant of the fault) by number of the fault, in seconds after T0."""
    plain, number = split_name(str(event["name"]))
    at, fault = round(float(event["t_s"]), 3), plain == "t0"
    after = f" {signed(at - fault_times[number], 1)} s" if number in fault_times and not fault else ""
    several = f" (fault {number})" if number > 1 else ""
    colour = FAULT_COLOUR if fault else FAINT_COLOUR
    figure.add_scatter(
        x=[at],
        y=[0],
        name=f"{LABELS[plain]}{after}{several}",
        mode="markers",
        marker={
            "symbol": MARKS[plain],
            "size": 10 if fault else 9,
            "color": colour,
            "line": {"width": 1.4, "color": colour},
        },
        yaxis="y5",
        meta=str(event["name"]),
        showlegend=legend,
        cliponaxis=False,
        hovertemplate=f"{at:.3f} s after T0",
    )
    line = {"color": FAULT_COLOUR, "width": 2} if fault else {"color": _MARK, "width": 1, "dash": "dot"}
    top = {"x0": at, "x1": at, "y0": 0, "y1": _STRIP[1]}
    figure.add_shape(type="line", name=str(event["name"]), xref="x", yref="paper", **top, line=line, layer="above")


def _add_shades(figure: go.Figure, warmup_s: float, duration_s: float, end: float) -> None:
    """Shade the warm-up and the time after the measured window."""
    until = warmup_s + duration_s
    for name, left, right in (("warm-up", 0.0, warmup_s), ("drain", until, end)):
        if right <= left:
            continue
        figure.add_shape(
            type="rect",
            name=name,
            xref="x",
            yref="paper",
            x0=left,
            x1=right,
            y0=0,
            y1=_ROWS[0][1],
            fillcolor=_SHADE,
            line={"width": 0},
            layer="below",
        )
        figure.add_annotation(
            text=name,
            x=left,
            xref="x",
            y=_ROWS[0][1],
            yref="paper",
            xanchor="left",
            yanchor="top",
            showarrow=False,
            font={"size": 11},
            opacity=0.75,
        )


def _add_bounds(figure: go.Figure, series: Series, bounds: Sequence[RecoveryBounds], end: float) -> None:
    """Add L* and lag* from each fault to the next one, and shade their violations until the recovery."""
    for number, one in enumerate(bounds):
        until = bounds[number + 1].from_s if number + 1 < len(bounds) else end
        drawn = [("y3", "legend4", f"lag* {one.lag:,.0f}", one.lag, lag_violations(series["lag"], one))]
        if one.latency_ms is not None:
            late = latency_violations(series["latency"], one)
            drawn.insert(0, ("y", "legend2", f"L* {one.latency_ms:,.0f} ms", one.latency_ms, late))
        for axis, legend, name, height, spans in drawn:
            figure.add_scatter(
                x=[round(one.from_s, 3), round(until, 3)],
                y=[round(height, 1)] * 2,
                name=name,
                mode="lines",
                line={"color": FAULT_COLOUR, "width": 1.4, "dash": "dash"},
                yaxis=axis,
                legend=legend,
                showlegend=number == 0,
                hoverinfo="skip",
            )
            for left, right in spans:
                figure.add_shape(
                    type="rect",
                    name="violation",
                    xref="x",
                    yref=f"{axis} domain",
                    x0=round(left, 3),
                    x1=round(right, 3),
                    y0=0,
                    y1=1,
                    fillcolor=_VIOLATION,
                    line={"width": 0},
                    layer="below",
                )


def _add_level(
    figure: go.Figure, axis: str, value: float, span: Sequence[float], name: str, legend: str = "legend5"
) -> None:
    """Add a dotted horizontal reference line."""
    figure.add_scatter(
        x=list(span),
        y=[value, value],
        name=name,
        mode="lines",
        line={"color": FAINT_COLOUR, "width": 1, "dash": "dot"},
        yaxis=axis,
        legend=legend,
        hoverinfo="skip",
    )


def _row_layout(log: bool) -> dict[str, Any]:
    layout: dict[str, Any] = {}
    for index, (domain, title) in enumerate(zip(_ROWS, _TITLES, strict=True)):
        axis: dict[str, Any] = {
            "domain": domain,
            "anchor": "x",
            "title": {"text": title, "standoff": 8},
            "fixedrange": True,
            "zeroline": False,
        }
        if index == 0 and log:
            axis |= {"type": "log", "title": {"text": "Latency\n(ms, log)", "standoff": 8}, "dtick": "D2"}
        else:
            axis |= {"rangemode": "tozero", "tickformat": ",~g"}
        layout["yaxis" if index == 0 else f"yaxis{index + 1}"] = axis
        layout[f"legend{index + 2}"] = {"x": 1.012, "xanchor": "left", "y": domain[1], "yanchor": "top"}
    return layout


def _needs_log_axis(points: Points) -> bool:
    usual = sorted(_known(points, "p50_ms"))
    if not usual or usual[0] <= 0:
        return False
    return max(_known(points, "max_ms"), default=0.0) > _LOG_FACTOR * usual[len(usual) // 2]


def _span(series: Series) -> tuple[float, float]:
    """Return the time range: from T0 or the first point, if earlier, to the last point or the end of the window."""
    times = [time for name in ("latency", "throughput", "lag", "cpu") for time in _known(series[name], "t_s")]
    return min([0.0, *times]), max([sum(_window(series)), *times])


def _window(series: Series) -> tuple[float, float]:
    """Return the lengths of warm-up and measured window in seconds. Raises ValueError if one is not finite."""
    warmup_s, duration_s = float(series["warmup_s"]), float(series["duration_s"])
    if not math.isfinite(warmup_s + duration_s):
        raise ValueError("warmup_s, duration_s: expected finite numbers")
    return warmup_s, duration_s


def _column(points: Points, key: str, digits: int = 3) -> list[float | None]:
    return [None if (value := _number(point[key])) is None else round(value, digits) for point in points]


def _known(points: Points, key: str) -> list[float]:
    """Return the numbers of a column without gaps."""
    return [value for point in points if (value := _number(point[key])) is not None]


def _number(value: Any) -> float | None:
    """Return a finite number, or None if missing or not finite."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
