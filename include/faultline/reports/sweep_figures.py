"""Experiments beside each other: figures along the axes of a matrix. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import plotly.graph_objects as go

from faultline.records.format import CONTROL, fault_of, milliseconds, plain, seconds
from faultline.records.record import JUDGED, Record, RecoveryPart
from faultline.reports.figures.attempt import FAINT_COLOUR
from faultline.reports.views.recoveries import number_of, repeated_parts
from faultline.reports.views.runs import name_of, ordered

SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SERIES_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
FAULT = "fault"
# Parameters that a matrix varies, by the name of their axis; of several, the last other one tells the lines apart.
_AXES = {"state_mb": "state (MB)", "checkpoint_interval_s": "checkpoint interval (s)", FAULT: "fault"}
# Of the width, between two panels.
_GAP = 0.048
# Panels of the overview: title, and how a record gives its value.
_PANELS = ("Reload (s)", "Replay (s)", "Macro (s)", "Latency p99 (ms)")
_MACRO, _LATENCY = 2, 3
# Runs of one place stand beside each other, within so much of the distance between two places.
_SPREAD = 0.6
_UNSOUND = "unsound run, does not count"


@dataclass(frozen=True)
class _Places:
    """Where each record stands on an axis: `names` of its places, and the position of each record by its attempt."""

    key: str
    names: Sequence[str]
    at: Mapping[str, float]


@dataclass(frozen=True)
class _Group:
    """The runs of one line. `name`: in the legend."""

    name: str
    colour: str
    symbol: str
    runs: Sequence[Record]


def overview_figures(records: Sequence[Record]) -> list[tuple[str, go.Figure]]:
    """For each axis of the matrix: its name, and reload, replay, macro and latency p99 along it.

    Records without figures are left out, unsound ones are hollow; empty when no parameter has two values among them.
    """
    judged = [record for record in ordered(records) if record.status in JUDGED]
    axes = [
        (key, name)
        for key, name in _AXES.items()
        if len({_position(record, key) for record in judged} - ({CONTROL} if key == FAULT else set())) > 1
    ]
    figures = []
    for key, name in axes:
        others = [axis for axis in reversed(axes) if axis[0] != key]
        figures.append((name, _along(judged, key, name, others[0] if others else None)))
    return figures


def _along(records: Sequence[Record], key: str, name: str, other: tuple[str, str] | None) -> go.Figure:
    """A panel for each figure that is known, along one axis; one line for each value of the other axis."""
    figure = go.Figure()
    kills = [record for record in records if fault_of(record.config) != CONTROL]
    controls = [record for record in records if fault_of(record.config) == CONTROL]
    groups = list(_groups(kills, key, other))
    places = _places(records, [run for group in groups for run in group.runs] + controls, key)
    panels = [panel for panel in range(len(_PANELS)) if any(_is_known(record, panel) for record in records)]
    first = panels[0] if panels else 0
    for group in groups:
        _legend(figure, first, group.name, {"color": group.colour, "symbol": group.symbol, "size": 9})
        for panel in panels:
            _panel(figure, panel, group, places)
    if any(map(repeated_parts, kills)):
        _legend(figure, first, "one recovery of a run", {"color": FAINT_COLOUR, "symbol": "circle", "size": 5})
    if any(not record.sound for record in records):
        hollow = {"color": FAINT_COLOUR, "symbol": "circle-open", "size": 9, "line": {"width": 1.6}}
        _legend(figure, first, _UNSOUND, hollow)
    _controls(figure, controls, places)
    bottom = 96 if key == FAULT else 44  # names of faults stand aslant
    figure.update_layout(
        height=218 + bottom,
        margin={"l": 40, "r": 12, "t": 50, "b": bottom},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.15, "yanchor": "bottom"},
        showlegend=True,
        **_layout(figure, panels, places, name),
    )
    return figure


def _groups(kills: Sequence[Record], key: str, other: tuple[str, str] | None) -> Iterator[_Group]:
    names = list(dict.fromkeys(_position(record, other[0]) for record in _by(kills, other[0]))) if other else [""]
    for index, group in enumerate(names):
        runs = [record for record in _by(kills, key) if other is None or _position(record, other[0]) == group]
        colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
        yield _Group(_group_name(other, group), colour, SERIES_SYMBOLS[index % len(SERIES_SYMBOLS)], runs)


def _places(records: Sequence[Record], drawn: Sequence[Record], key: str) -> _Places:
    """Runs of one place in the order of `drawn`, beside each other around its middle; a single one stands in it."""
    names = list(dict.fromkeys(_position(record, key) for record in _by(records, key)))
    at: dict[str, float] = {}
    for number, place in enumerate(names):
        here = [record for record in drawn if _position(record, key) == place]
        for index, record in enumerate(here):
            at[record.attempt] = round(number + _SPREAD * ((index + 0.5) / len(here) - 0.5), 4)
    return _Places(key, names, at)


def _layout(figure: go.Figure, panels: Sequence[int], places: _Places, name: str) -> dict[str, Any]:
    """The axes of the panels, beside each other; adds their titles to the figure."""
    layout: dict[str, Any] = {}
    step = (1 + _GAP) / max(1, len(panels))
    for place, panel in enumerate(panels):
        left, width, suffix = place * step, step - _GAP, "" if panel == 0 else str(panel + 1)
        layout[f"xaxis{suffix}"] = {
            "domain": [left, left + width],
            "anchor": f"y{suffix}",
            "tickmode": "array",
            "tickvals": list(range(len(places.names))),
            "ticktext": list(places.names),
            "range": [-0.5, len(places.names) - 0.5],
            "title": {"text": "" if places.key == FAULT else name, "standoff": 6},
            "tickangle": -40 if places.key == FAULT else None,
            "showgrid": False,
            "zeroline": False,
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
            text=_PANELS[panel],
            font={"weight": "bold"},
            x=left,
            xref="paper",
            xanchor="left",
            y=1.03,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
        )
    return layout


def _legend(figure: go.Figure, panel: int, name: str, marker: Mapping[str, Any]) -> None:
    """An entry of the legend for all panels; nothing is drawn, in a panel that there is."""
    axes = {"xaxis": _axis("x", panel), "yaxis": _axis("y", panel)}
    figure.add_scatter(x=[None], y=[None], name=name, legendgroup=name, mode="markers", marker=dict(marker), **axes)


def _panel(figure: go.Figure, panel: int, group: _Group, places: _Places) -> None:
    """One group's values in one panel: each run a point, hollow if unsound, and each of its recoveries a small one.

    One that was not seen to end is an open triangle. A line joins medians of two usable repetitions or more.
    """
    common = {
        "xaxis": _axis("x", panel), "yaxis": _axis("y", panel), "legendgroup": group.name, "name": group.name,
        "showlegend": False, "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    for usable in (False, True):
        runs = [record for record in group.runs if record.sound is usable]
        small = [
            (record, number_of(part, number), value)
            for record in runs
            for number, part in enumerate(repeated_parts(record), start=1)
            if panel != _LATENCY and (value := _part_value(part, panel)) is not None
        ]
        symbol = "circle" if usable else "circle-open"
        _points(figure, [(places.at[one.attempt], value, _told(one, f"recovery {number}, {_text(value, panel)}"))
                         for one, number, value in small],
                {"color": group.colour, "symbol": symbol, "size": 5, "opacity": 0.55}, common)  # fmt: skip
        unended = [
            (
                places.at[record.attempt],
                at,
                _told(record, f"recovery {number_of(part, number)}, not over after {seconds(at)} s"),
            )
            for record in runs
            for number, part in enumerate(repeated_parts(record), start=1)
            if panel == _MACRO and (at := part.censored_at_s) is not None
        ]
        _points(figure, unended, {"color": group.colour, "symbol": "triangle-up-open", "size": 6, "opacity": 0.7},
                common)  # fmt: skip
        seen = [(record, value) for record in runs if (value := _value(record, panel)) is not None]
        width = 0 if usable else 1.6
        _points(figure, [(places.at[one.attempt], value, _told(one, _text(value, panel))) for one, value in seen],
                {"color": group.colour, "symbol": group.symbol if usable else f"{group.symbol}-open", "size": 9,
                 "line": {"width": width, "color": group.colour}}, common)  # fmt: skip
        unseen = [
            (places.at[one.attempt], at, _told(one, f"known not to be over after {seconds(at)} s"))
            for one in runs
            if panel == _MACRO and (at := one.metrics.recovery.censored_at_s) is not None
        ]
        _points(figure, unseen, {"color": group.colour, "symbol": "triangle-up-open", "size": 11,
                                 "line": {"width": 2 if usable else 1}}, common)  # fmt: skip
    medians = _medians(group.runs, panel, places.key)
    if len(medians) > 1:
        figure.add_scatter(
            x=[places.names.index(position) for position, _ in medians],
            y=[round(value, 3) for _, value in medians],
            mode="lines",
            line={"color": group.colour, "width": 1.4},
            hoverinfo="skip",
            **{**common, "name": f"median, {group.name}", "hovertemplate": None},
        )


def _points(
    figure: go.Figure,
    points: Sequence[tuple[float, float, str]],
    marker: Mapping[str, Any],
    common: Mapping[str, Any],
) -> None:
    """Marks at (position, value, words); none where there are no points."""
    if points:
        figure.add_scatter(
            x=[x for x, _, _ in points],
            y=[round(y, 3) for _, y, _ in points],
            text=[text for _, _, text in points],
            mode="markers",
            marker=dict(marker),
            **common,
        )


def _told(record: Record, figure: str) -> str:
    """A run and its figure; of an unsound one also why it does not count."""
    text = f"{name_of(record)}, run {record.repetition + 1}: {figure}"
    return text if record.sound else f"{text}\n{record.status}: {next(iter(record.reasons), 'no reason is known')}"


def _medians(records: Sequence[Record], panel: int, key: str) -> list[tuple[str, float]]:
    """Place and median wherever all of two usable runs or more know the figure; none along what has no order."""
    values: dict[str, list[float | None]] = {}
    for record in records if key != FAULT else ():
        if record.sound:
            values.setdefault(_position(record, key), []).append(_value(record, panel))
    known = {place: [value for value in found if value is not None] for place, found in values.items()}
    return [(place, median(kept)) for place, kept in known.items() if len(kept) == len(values[place]) > 1]


def _controls(figure: go.Figure, records: Sequence[Record], places: _Places) -> None:
    """Latency of runs without a fault, for comparison; a line through the panel when there is one such run."""
    seen = [(record, value) for record in records if (value := record.metrics.latency_ms.p99) is not None]
    if not seen:
        return
    axes = {"xaxis": _axis("x", _LATENCY), "yaxis": _axis("y", _LATENCY)}
    figure.add_scatter(
        x=[places.at[record.attempt] for record, _ in seen],
        y=[round(value, 3) for _, value in seen],
        text=[_told(record, f"{milliseconds(value)} ms") for record, value in seen],
        name="control",
        mode="markers",
        marker={
            "color": FAINT_COLOUR,
            "symbol": "diamond-open",
            "size": 10,
            "line": {"width": 2},
            "opacity": [1.0 if record.sound else 0.5 for record, _ in seen],
        },
        hovertemplate="%{text}<extra></extra>",
        **axes,
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
        return "run"
    if other[0] == FAULT:
        return group
    return f"state {group} MB" if other[0] == "state_mb" else f"interval {group} s"


def _value(record: Record, panel: int) -> float | None:
    return record.metrics.latency_ms.p99 if panel == _LATENCY else _part_value(record.metrics.recovery, panel)


def _part_value(part: RecoveryPart, panel: int) -> float | None:
    return (part.reload_s, part.replay_s, part.macro_s)[panel]


def _is_known(record: Record, panel: int) -> bool:
    return _value(record, panel) is not None or (panel == _MACRO and record.metrics.recovery.censored_at_s is not None)


def _text(value: float, panel: int) -> str:
    return f"{milliseconds(value)} ms" if panel == _LATENCY else f"{seconds(value, 2)} s"


def _axis(letter: str, panel: int) -> str:
    return letter if panel == 0 else f"{letter}{panel + 1}"
