"""Figures of the report: one attempt over time, and the experiments beside each other. Pure functions.

Colours are from the Okabe-Ito palette, which people with a colour vision deficiency can tell apart, and of
middling lightness, so that they hold on white and on black. What depends on the theme (text, grid) is left to the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from faultline.record import Record
from faultline.table import fault_of, milliseconds, name_of, ordered, plain, plain_rows, seconds

Series = Mapping[str, Any]

ROLE_COLOURS = {
    "executors": "#0072B2",
    "driver": "#E69F00",
    "kafka": "#009E73",
    "generator": "#CC79A7",
    "python_workers": "#56B4E9",
}
FAULT_COLOUR = "#D55E00"
_STRONG, _SOFT, _FAINT = "#3B7DBD", "#86B6E0", "#8D99A5"
_SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_SHADE = "rgba(128,138,148,0.13)"
_MARK = "rgba(128,138,148,0.55)"


@dataclass(frozen=True)
class Mark:
    """How an event of the timeline is named and drawn."""

    label: str
    symbol: str


# In the order of the legend. `gate` and the window's edges are drawn as shades, not as marks.
MARKS = {
    "t0": Mark("t0 signal delivered", "x"),
    "t1": Mark("t1 last output", "line-ns-open"),
    "t2": Mark("t2 loss detected", "triangle-up"),
    "t3": Mark("t3 task launched", "triangle-right"),
    "t4": Mark("t4 state loaded", "square"),
    "t5": Mark("t5 caught up", "circle"),
    "t6": Mark("t6 lag normal", "diamond"),
    "t7": Mark("t7 all normal", "star"),
    "replacement_up": Mark("replacement up", "triangle-down-open"),
    "snapshot": Mark("last snapshot", "circle-open"),
}
# Parts of a recovery in order; the last one ends at t7.
PARTS = (
    ("detection_s", "detection", "#5B4B9A"),
    ("redeploy_s", "redeploy", "#3F72A8"),
    ("load_s", "load", "#2A9D9D"),
    ("replay_s", "replay", "#52B788"),
    ("catchup_s", "catch-up", "#A7C957"),
    ("settling", "until all normal", "#E9C46A"),
)
# Panels of the overview: title, and how a record gives its value.
_PANELS = ("Reload (s)", "Replay (s)", "Macro (s)", "Latency p99 (ms)")
# From top to bottom: the strip of events, then the four rows, as shares of the height.
_STRIP = (0.965, 1.0)
_ROWS = ((0.735, 0.95), (0.495, 0.695), (0.265, 0.455), (0.0, 0.225))
_TITLES = ("Latency (ms)", "Throughput<br>(records/s)", "Lag (records)", "CPU (cores)")
_AXES = ("y", "y2", "y3", "y4")
# The log axis pays where a curve leaves its usual height this many times behind.
_LOG_FACTOR = 12


def time_figure(series: Series, *, rate: float | None = None, machine_cores: int | None = None) -> go.Figure:
    """Latency, throughput, lag and CPU of one attempt over one time axis, seconds after T0.

    `series` is the content of series.json. `rate`: the offered rate in records/s, drawn for comparison;
    `machine_cores`: the machine's, drawn where the load comes near. Raises KeyError or TypeError on other content.
    """
    figure = go.Figure()
    _latency(figure, series["latency"])
    _throughput(figure, series["throughput"], rate)
    _lag(figure, series["lag"])
    peak = _cpu(figure, series["cpu"])
    start, end = _span(series)
    _events(figure, series["events"])
    _shades(figure, float(series["warmup_s"]), float(series["duration_s"]), end)
    if machine_cores is not None and peak > machine_cores / 2:
        _level(figure, "y4", machine_cores, [start, end], f"{machine_cores} cores")
    figure.update_layout(
        height=780,
        margin={"l": 78, "r": 150, "t": 58, "b": 48},
        hovermode="x unified",
        hoversubplots="axis",
        dragmode="zoom",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={
            "anchor": "y4",
            "range": [start, end],
            "title": {"text": "Seconds after T0 (opening of the gate)"},
            "hoverformat": ".1f",
            "zeroline": False,
        },
        yaxis5={"domain": _STRIP, "range": [-1, 1], "visible": False, "fixedrange": True},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.012, "yanchor": "bottom"},
        **_row_layout(_log_worthwhile(series["latency"])),
    )
    return figure


def overview_figures(records: Sequence[Record]) -> list[tuple[str, go.Figure]]:
    """For each axis of the matrix: its name, and reload, replay, macro and latency p99 along it.

    Only valid records; empty when no parameter has two values among them.
    """
    valid = [record for record in ordered(records) if record.status == "valid"]
    axes = [
        (key, name)
        for key, name in (("state_mb", "state (MB)"), ("checkpoint_interval_s", "checkpoint interval (s)"))
        if len({repr(record.config.get(key)) for record in valid}) > 1
    ]
    figures = []
    for index, (key, name) in enumerate(axes):
        other = axes[1 - index] if len(axes) == 2 else None
        figures.append((name, _along(valid, key, name, other)))
    return figures


def parts_figure(records: Sequence[Record]) -> go.Figure | None:
    """Where each recovery's time went, as stacked bars; None when no record holds a recovery."""
    rows = [
        (f"{row['number']} · {row['state_mb']} MB, {row['interval_s']} s", record)
        for row, record in zip(plain_rows(records), ordered(records), strict=True)
        if record.status == "valid" and record.metrics.recovery.recovered is not None
    ]
    if not rows:
        return None
    labels = [label for label, _ in rows]
    figure = go.Figure()
    lengths = [_part_lengths(record) for _, record in rows]
    for name, title, colour in PARTS:
        figure.add_bar(
            y=labels,
            x=[length.get(name) for length in lengths],
            name=title,
            orientation="h",
            marker={"color": colour},
            hovertemplate=f"{title} %{{x:.2f}} s<extra>%{{y}}</extra>",
        )
    if any("unseen" in length for length in lengths):
        figure.add_bar(
            y=labels,
            x=[length.get("unseen") for length in lengths],
            name="watched, not recovered",
            orientation="h",
            marker={"color": "rgba(128,138,148,0.25)", "pattern": {"shape": "/", "fgcolor": _FAINT}},
            hovertemplate="watched for %{x:.1f} s more, not recovered<extra>%{y}</extra>",
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.42,
        height=92 + 30 * len(rows),
        margin={"l": 112, "r": 16, "t": 34, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        xaxis={"title": {"text": "Seconds after the signal"}, "zeroline": False, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "fixedrange": True, "showgrid": False, "automargin": True},
    )
    return figure


def _part_lengths(record: Record) -> dict[str, float]:
    """Length of each known part; `settling` up to t7, or `unseen` up to where watching ended."""
    recovery = record.metrics.recovery
    known = {name: getattr(recovery, name, None) for name, _, _ in PARTS}
    lengths = {name: round(float(value), 3) for name, value in known.items() if value is not None}
    total = sum(lengths.values())
    if recovery.macro_s is not None:
        lengths["settling"] = round(max(0.0, recovery.macro_s - total), 3)
    elif recovery.censored_at_s is not None:
        lengths["unseen"] = round(max(0.0, recovery.censored_at_s - total), 3)
    return lengths


def _latency(figure: go.Figure, points: Sequence[Mapping[str, Any]]) -> None:
    times = _column(points, "t_s")
    for key, name, line in (
        ("max_ms", "max", {"color": _FAINT, "width": 1, "dash": "dot"}),
        ("p99_ms", "p99", {"color": _STRONG, "width": 2}),
        ("p50_ms", "p50", {"color": _SOFT, "width": 2}),
    ):
        figure.add_scatter(
            x=times,
            y=_column(points, key),
            name=f"latency {name}",
            mode="lines" if key == "max_ms" else "lines+markers",
            line=line,
            marker={"size": 4},
            yaxis="y",
            legend="legend2",
            hovertemplate="%{y:,.0f} ms",
        )


def _throughput(figure: go.Figure, points: Sequence[Mapping[str, Any]], rate: float | None) -> None:
    times = _column(points, "t_s")
    # A bin is given by its end: vertical first, then horizontal draws its value over its whole span.
    figure.add_scatter(
        x=times,
        y=_column(points, "rps", 1),
        name="committed",
        mode="lines",
        line={"color": _STRONG, "width": 1.8, "shape": "vh"},
        yaxis="y2",
        legend="legend3",
        hovertemplate="%{y:,.0f} records/s",
    )
    if rate is not None and times:
        _level(figure, "y2", rate, [times[0], times[-1]], "offered", "legend3")


def _lag(figure: go.Figure, points: Sequence[Mapping[str, Any]]) -> None:
    figure.add_scatter(
        x=_column(points, "t_s"),
        y=_column(points, "records", 0),
        name="lag at commit",
        mode="lines+markers",
        line={"color": _STRONG, "width": 1.8},
        marker={"size": 4},
        yaxis="y3",
        legend="legend4",
        hovertemplate="%{y:,.0f} records",
    )


def _cpu(figure: go.Figure, points: Sequence[Mapping[str, Any]]) -> float:
    """Stacked areas; returns the highest sum of all roles."""
    times = _column(points, "t_s")
    peak = 0.0
    for role, colour in ROLE_COLOURS.items():
        values = [float(point.get(role, 0.0)) for point in points]
        if role == "python_workers" and not any(values):
            continue
        figure.add_scatter(
            x=times,
            y=[round(value, 3) for value in values],
            name=role.replace("_", " "),
            mode="lines",
            stackgroup="cpu",
            line={"color": colour, "width": 0.8},
            yaxis="y4",
            legend="legend5",
            hovertemplate="%{y:.2f} cores",
        )
    for point in points:
        peak = max(peak, sum(float(point.get(role, 0.0)) for role in ROLE_COLOURS))
    return peak


def _events(figure: go.Figure, events: Sequence[Mapping[str, Any]]) -> None:
    """Each event as a line through all rows and a mark above them, whose legend says what it is."""
    found = {str(event["name"]): event for event in events}
    t0 = float(found["t0"]["t_s"]) if "t0" in found else None
    for name, mark in MARKS.items():
        if name not in found:
            continue
        at, fault = round(float(found[name]["t_s"]), 3), name == "t0"
        after = "" if t0 is None or fault else f" {at - t0:+.1f} s"
        colour = FAULT_COLOUR if fault else _FAINT
        figure.add_scatter(
            x=[at],
            y=[0],
            name=f"{mark.label}{after}",
            mode="markers",
            marker={"symbol": mark.symbol, "size": 10 if fault else 9, "color": colour, "line": {"width": 1.4}},
            yaxis="y5",
            meta=name,
            cliponaxis=False,
            hovertemplate=f"{at:.3f} s after T0",
        )
        line = {"color": FAULT_COLOUR, "width": 2} if fault else {"color": _MARK, "width": 1, "dash": "dot"}
        figure.add_shape(
            type="line", name=name, xref="x", yref="paper", x0=at, x1=at, y0=0, y1=_STRIP[1], line=line, layer="above"
        )


def _shades(figure: go.Figure, warmup_s: float, duration_s: float, end: float) -> None:
    """Warm-up, and what follows the measured window, in grey."""
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


def _level(
    figure: go.Figure, axis: str, value: float, span: Sequence[float], name: str, legend: str = "legend5"
) -> None:
    """A dotted reference line at one height."""
    figure.add_scatter(
        x=list(span),
        y=[value, value],
        name=name,
        mode="lines",
        line={"color": _FAINT, "width": 1, "dash": "dot"},
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
            axis |= {"type": "log", "title": {"text": "Latency<br>(ms, log)", "standoff": 8}, "dtick": "D2"}
        else:
            axis["rangemode"] = "tozero"
        layout["yaxis" if index == 0 else f"yaxis{index + 1}"] = axis
        layout[f"legend{index + 2}"] = {"x": 1.012, "xanchor": "left", "y": domain[1], "yanchor": "top"}
    return layout


def _log_worthwhile(points: Sequence[Mapping[str, Any]]) -> bool:
    usual = sorted(float(point["p50_ms"]) for point in points)
    if not usual or usual[0] <= 0:
        return False
    return max(float(point["max_ms"]) for point in points) > _LOG_FACTOR * usual[len(usual) // 2]


def _span(series: Series) -> tuple[float, float]:
    """From T0 (or an earlier point) to the last point or the window's end."""
    times = [float(point["t_s"]) for name in ("latency", "throughput", "lag", "cpu") for point in series[name]]
    end = float(series["warmup_s"]) + float(series["duration_s"])
    return min([0.0, *times]), max([end, *times])


def _column(points: Sequence[Mapping[str, Any]], key: str, digits: int = 3) -> list[float | None]:
    return [None if point[key] is None else round(float(point[key]), digits) for point in points]


def _along(records: Sequence[Record], key: str, name: str, other: tuple[str, str] | None) -> go.Figure:
    """Four panels along one axis; one line for each value of the other axis."""
    figure = go.Figure()
    positions = list(dict.fromkeys(plain(record.config.get(key)) for record in _by(records, key)))
    groups = (
        list(dict.fromkeys(plain(record.config.get(other[0])) for record in _by(records, other[0]))) if other else [""]
    )
    kills = [record for record in records if fault_of(record.config) != "control"]
    controls = [record for record in records if fault_of(record.config) == "control"]
    for panel in range(len(_PANELS)):
        for index, group in enumerate(groups):
            members = [
                record for record in _by(kills, key) if other is None or plain(record.config.get(other[0])) == group
            ]
            colour = _SERIES[index % len(_SERIES)]
            _panel(figure, panel, members, key, _group_name(other, group), colour, _SYMBOLS[index % len(_SYMBOLS)])
    _controls(figure, controls, key)
    layout: dict[str, Any] = {}
    for panel, title in enumerate(_PANELS):
        left, width, suffix = panel * 0.262, 0.214, "" if panel == 0 else str(panel + 1)
        layout[f"xaxis{suffix}"] = {
            "domain": [left, left + width],
            "anchor": f"y{suffix}",
            "type": "category",
            "categoryorder": "array",
            "categoryarray": positions,
            "range": [-0.5, len(positions) - 0.5],
            "title": {"text": name, "standoff": 6},
            "fixedrange": True,
        }
        layout[f"yaxis{suffix}"] = {
            "anchor": f"x{suffix}",
            "rangemode": "tozero",
            "fixedrange": True,
            "zeroline": False,
        }
        figure.add_annotation(
            text=f"<b>{title}</b>",
            x=left,
            xref="paper",
            xanchor="left",
            y=1.03,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
        )
    figure.update_layout(
        height=270,
        margin={"l": 40, "r": 12, "t": 58, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.16, "yanchor": "bottom"},
        **layout,
    )
    return figure


def _panel(
    figure: go.Figure, panel: int, records: Sequence[Record], key: str, name: str, colour: str, symbol: str
) -> None:
    """One group's values in one panel; a value that was not reached is an open triangle where watching ended."""
    seen = [(record, value) for record in records if (value := _value(record, panel)) is not None]
    single = len({plain(record.config.get(key)) for record, _ in seen}) == len(seen)
    # One legend entry for all panels: the last panel is the one that every record has a value in.
    common = {"xaxis": _axis("x", panel), "yaxis": _axis("y", panel), "legendgroup": name}
    figure.add_scatter(
        x=[plain(record.config.get(key)) for record, _ in seen],
        y=[round(value, 3) for _, value in seen],
        text=[f"{name_of(record)}: {_text(value, panel)}" for record, value in seen],
        name=name,
        mode="lines+markers" if single else "markers",
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "symbol": symbol, "size": 9},
        showlegend=panel == len(_PANELS) - 1,
        hovertemplate="%{text}<extra></extra>",
        **common,
    )
    unseen = [record for record in records if panel == 2 and record.metrics.recovery.censored_at_s is not None]
    if unseen:
        figure.add_scatter(
            x=[plain(record.config.get(key)) for record in unseen],
            y=[round(record.metrics.recovery.censored_at_s or 0.0, 3) for record in unseen],
            text=[f"{name_of(r)}: not recovered within {seconds(r.metrics.recovery.censored_at_s)} s" for r in unseen],
            name="not recovered while watched",
            mode="markers",
            marker={"color": colour, "symbol": "triangle-up-open", "size": 11, "line": {"width": 2}},
            hovertemplate="%{text}<extra></extra>",
            **common,
        )


def _controls(figure: go.Figure, records: Sequence[Record], key: str) -> None:
    """Latency of runs without a fault, for comparison; a line through the panel when there is one such run."""
    seen = [(record, value) for record in records if (value := record.metrics.latency_ms.p99) is not None]
    if not seen:
        return
    figure.add_scatter(
        x=[plain(record.config.get(key)) for record, _ in seen],
        y=[round(value, 3) for _, value in seen],
        text=[f"{name_of(record)}: {milliseconds(value)} ms" for record, value in seen],
        name="control",
        mode="markers",
        marker={"color": _FAINT, "symbol": "diamond-open", "size": 10, "line": {"width": 2}},
        xaxis="x4",
        yaxis="y4",
        hovertemplate="%{text}<extra></extra>",
    )
    if len(seen) == 1:
        line = {"color": _FAINT, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", xref="x4 domain", yref="y4", x0=0, x1=1, y0=seen[0][1], y1=seen[0][1], line=line)


def _by(records: Sequence[Record], key: str) -> list[Record]:
    return sorted(records, key=lambda record: float(record.config.get(key) or 0.0))


def _group_name(other: tuple[str, str] | None, group: str) -> str:
    if other is None:
        return "kill"
    return f"state {group} MB" if other[0] == "state_mb" else f"interval {group} s"


def _value(record: Record, panel: int) -> float | None:
    recovery = record.metrics.recovery
    return (recovery.reload_s, recovery.replay_s, recovery.macro_s, record.metrics.latency_ms.p99)[panel]


def _text(value: float, panel: int) -> str:
    return f"{milliseconds(value)} ms" if panel == 3 else f"{seconds(value, 2)} s"


def _axis(letter: str, panel: int) -> str:
    return letter if panel == 0 else f"{letter}{panel + 1}"
