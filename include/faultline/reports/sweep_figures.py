"""Experiments beside each other: figures along the axes of a matrix, and the parts of each recovery. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import plotly.graph_objects as go

from faultline.records.format import CONTROL, NONE, fault_of, milliseconds, plain, seconds
from faultline.records.record import Record, RecoveryPart
from faultline.reports.table import name_of, ordered, plain_rows
from faultline.reports.time_series import FAINT_COLOUR

SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SERIES_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
# Parts of a recovery in order; the last one ends at t7.
PARTS = (
    ("detection_s", "detection", "#5B4B9A"),
    ("redeploy_s", "redeploy", "#3F72A8"),
    ("load_s", "load", "#2A9D9D"),
    ("replay_s", "replay", "#52B788"),
    ("catchup_s", "catch-up", "#A7C957"),
    ("settling", "until all normal", "#E9C46A"),
)
FAULT = "fault"
# Parameters that a matrix varies, by the name of their axis; of several, the last other one tells the lines apart.
_AXES = {"state_mb": "state (MB)", "checkpoint_interval_s": "checkpoint interval (s)", FAULT: "fault"}
# Panels of the overview: title, and how a record gives its value.
_PANELS = ("Reload (s)", "Replay (s)", "Macro (s)", "Latency p99 (ms)")


def overview_figures(records: Sequence[Record]) -> list[tuple[str, go.Figure]]:
    """For each axis of the matrix: its name, and reload, replay, macro and latency p99 along it.

    Only valid records; empty when no parameter has two values among them.
    """
    valid = [record for record in ordered(records) if record.sound]
    axes = [
        (key, name)
        for key, name in _AXES.items()
        if len({_position(record, key) for record in valid} - ({CONTROL} if key == FAULT else set())) > 1
    ]
    figures = []
    for key, name in axes:
        others = [axis for axis in reversed(axes) if axis[0] != key]
        figures.append((name, _along(valid, key, name, others[0] if others else None)))
    return figures


def _told(row: Mapping[str, str], several: bool) -> list[str]:
    """What an experiment was, as far as it applies: the fault if there are `several`, query, state, interval."""
    known = {**row, "fault": row["fault"] if several else NONE}
    units = {"fault": "", "query": "", "state_mb": " MB", "interval_s": " s"}
    return [f"{known[key]}{unit}" for key, unit in units.items() if known[key] != NONE]


def parts_figure(records: Sequence[Record]) -> go.Figure | None:
    """Where each recovery's time went, as stacked bars; None when no record holds a recovery."""
    several = len({fault_of(record.config) for record in records} - {CONTROL}) > 1
    rows = [
        (f"{row['number']} · {', '.join(_told(row, several))}", record)
        for row, record in zip(plain_rows(records), ordered(records), strict=True)
        if record.sound and record.metrics.recovery.recovered is not None
    ]
    if not rows:
        return None
    labels = [label for label, _ in rows]
    figure = go.Figure()
    lengths = [part_lengths(record.metrics.recovery) for _, record in rows]
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
            name="not seen to recover",
            orientation="h",
            marker={"color": "rgba(128,138,148,0.25)", "pattern": {"shape": "/", "fgcolor": FAINT_COLOUR}},
            hovertemplate="known not to be over for %{x:.1f} s more<extra>%{y}</extra>",
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


def part_lengths(recovery: RecoveryPart) -> dict[str, float]:
    """Length in seconds of each known part of PARTS; `settling` up to t7, or `unseen` up to where watching ended."""
    known = {name: getattr(recovery, name, None) for name, _, _ in PARTS}
    lengths = {name: round(float(value), 3) for name, value in known.items() if value is not None}
    total = sum(lengths.values())
    if recovery.macro_s is not None:
        lengths["settling"] = round(max(0.0, recovery.macro_s - total), 3)
    elif recovery.censored_at_s is not None:
        lengths["unseen"] = round(max(0.0, recovery.censored_at_s - total), 3)
    return lengths


def _along(records: Sequence[Record], key: str, name: str, other: tuple[str, str] | None) -> go.Figure:
    """Four panels along one axis; one line for each value of the other axis."""
    figure = go.Figure()
    kills = [record for record in records if fault_of(record.config) != CONTROL]
    controls = [record for record in records if fault_of(record.config) == CONTROL]
    positions = list(dict.fromkeys(_position(record, key) for record in _by(records, key)))
    groups = list(dict.fromkeys(_position(record, other[0]) for record in _by(kills, other[0]))) if other else [""]
    for panel in range(len(_PANELS)):
        for index, group in enumerate(groups):
            members = [record for record in _by(kills, key) if other is None or _position(record, other[0]) == group]
            colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
            _panel(
                figure,
                panel,
                members,
                key,
                _group_name(other, group),
                colour,
                SERIES_SYMBOLS[index % len(SERIES_SYMBOLS)],
            )
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
            "title": {"text": "" if key == FAULT else name, "standoff": 6},
            "tickangle": -40 if key == FAULT else None,
            "fixedrange": True,
        }
        layout[f"yaxis{suffix}"] = {
            "anchor": f"x{suffix}",
            "rangemode": "tozero",
            "tickformat": ",~g",
            "fixedrange": True,
            "zeroline": False,
        }
        figure.add_annotation(
            text=title,
            font={"weight": "bold"},
            x=left,
            xref="paper",
            xanchor="left",
            y=1.03,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
        )
    bottom = 96 if key == FAULT else 44  # names of faults stand aslant
    figure.update_layout(
        height=218 + bottom,
        margin={"l": 40, "r": 12, "t": 50, "b": bottom},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.15, "yanchor": "bottom"},
        showlegend=True,
        **layout,
    )
    return figure


def _panel(
    figure: go.Figure, panel: int, records: Sequence[Record], key: str, name: str, colour: str, symbol: str
) -> None:
    """One group's values in one panel, each run a point; one that was not seen to end is an open triangle.

    A line joins medians of two repetitions or more, never single runs.
    """
    seen = [(record, value) for record in records if (value := _value(record, panel)) is not None]
    # One legend entry for all panels: the last panel is the one that every record has a value in.
    common = {"xaxis": _axis("x", panel), "yaxis": _axis("y", panel), "legendgroup": name}
    figure.add_scatter(
        x=[_position(record, key) for record, _ in seen],
        y=[round(value, 3) for _, value in seen],
        text=[f"{name_of(record)}: {_text(value, panel)}" for record, value in seen],
        name=name,
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 9},
        showlegend=panel == len(_PANELS) - 1,
        hovertemplate="%{text}<extra></extra>",
        **common,
    )
    medians = _medians(records, panel, key)
    if len(medians) > 1:
        figure.add_scatter(
            x=[position for position, _ in medians],
            y=[round(value, 3) for _, value in medians],
            name=f"median, {name}",
            mode="lines",
            line={"color": colour, "width": 1.4},
            showlegend=False,
            hoverinfo="skip",
            **common,
        )
    unseen = [record for record in records if panel == 2 and record.metrics.recovery.censored_at_s is not None]
    if unseen:
        figure.add_scatter(
            x=[_position(record, key) for record in unseen],
            y=[round(record.metrics.recovery.censored_at_s or 0.0, 3) for record in unseen],
            text=[
                f"{name_of(r)}: known not to be over after {seconds(r.metrics.recovery.censored_at_s)} s"
                for r in unseen
            ],
            name="not seen to recover",
            mode="markers",
            showlegend=False,
            marker={"color": colour, "symbol": "triangle-up-open", "size": 11, "line": {"width": 2}},
            hovertemplate="%{text}<extra></extra>",
            **common,
        )


def _medians(records: Sequence[Record], panel: int, key: str) -> list[tuple[str, float]]:
    """Place and median wherever all of two runs or more know the figure; none along what has no order."""
    places: dict[str, list[float | None]] = {}
    for record in records if key != FAULT else ():
        places.setdefault(_position(record, key), []).append(_value(record, panel))
    known = {place: [value for value in values if value is not None] for place, values in places.items()}
    return [(place, median(kept)) for place, kept in known.items() if len(kept) == len(places[place]) > 1]


def _controls(figure: go.Figure, records: Sequence[Record], key: str) -> None:
    """Latency of runs without a fault, for comparison; a line through the panel when there is one such run."""
    seen = [(record, value) for record in records if (value := record.metrics.latency_ms.p99) is not None]
    if not seen:
        return
    figure.add_scatter(
        x=[_position(record, key) for record, _ in seen],
        y=[round(value, 3) for _, value in seen],
        text=[f"{name_of(record)}: {milliseconds(value)} ms" for record, value in seen],
        name="control",
        mode="markers",
        marker={"color": FAINT_COLOUR, "symbol": "diamond-open", "size": 10, "line": {"width": 2}},
        xaxis="x4",
        yaxis="y4",
        hovertemplate="%{text}<extra></extra>",
    )
    if len(seen) == 1:
        line = {"color": FAINT_COLOUR, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", xref="x4 domain", yref="y4", x0=0, x1=1, y0=seen[0][1], y1=seen[0][1], line=line)


def _position(record: Record, key: str) -> str:
    """Where a record stands on an axis, as text."""
    return fault_of(record.config) if key == FAULT else plain(record.config.get(key))


def _by(records: Sequence[Record], key: str) -> list[Record]:
    """In the order of an axis; controls after the faults."""
    if key == FAULT:
        return sorted(records, key=lambda record: (fault_of(record.config) == CONTROL, fault_of(record.config)))
    return sorted(records, key=lambda record: float(record.config.get(key) or 0.0))


def _group_name(other: tuple[str, str] | None, group: str) -> str:
    if other is None:
        return "fault"
    if other[0] == FAULT:
        return group
    return f"state {group} MB" if other[0] == "state_mb" else f"interval {group} s"


def _value(record: Record, panel: int) -> float | None:
    recovery = record.metrics.recovery
    return (recovery.reload_s, recovery.replay_s, recovery.macro_s, record.metrics.latency_ms.p99)[panel]


def _text(value: float, panel: int) -> str:
    return f"{milliseconds(value)} ms" if panel == 3 else f"{seconds(value, 2)} s"


def _axis(letter: str, panel: int) -> str:
    return letter if panel == 0 else f"{letter}{panel + 1}"
