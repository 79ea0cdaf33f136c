"""Page of a running experiment: throughput, lag, CPU and faults of the last minutes, from its journals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.lifecycle.progress import phase_of
from faultline.records.format import title_of
from faultline.records.judge.cpu import cores_by_second
from faultline.records.judge.samples import processes_of
from faultline.records.sweep_plan import SweepPlans
from faultline.reports.figures.style import (
    FAINT_COLOUR,
    FAULT_COLOUR,
    ROLE_COLOURS,
    STRONG_COLOUR,
    legend_above,
    set_layout,
)
from faultline.reports.pages.overview import sweep_progress
from faultline.reports.pages.site import PageNotFound, ResultsSite, render
from faultline.system.errors import FaultlineError
from faultline.system.measured_window import NS
from faultline.system.process_tags import ENGINE

# Number of seconds shown, and of bytes read per journal; a recorder writes about 5 kB/s.
WINDOW_S = 300
READ_BYTES = 1_600_000
_ROWS = ((0.71, 1.0), (0.37, 0.64), (0.0, 0.29))
_TITLES = ("Records/s", "Lag (records)", "CPU (cores)")
_FROM_ZERO = {"rangemode": "tozero", "zeroline": False, "tickformat": ",~r"}

Line = dict[str, Any]


@dataclass(frozen=True)
class LiveSeries:
    """Series of a running experiment, over s after T0 (or after the first sample)."""

    began_ns: int
    is_started: bool
    produced: tuple[tuple[float, float], ...]
    committed: tuple[tuple[float, float], ...]
    cores: tuple[Mapping[str, float], ...]
    faults: tuple[tuple[float, str], ...]


def live_page(site: ResultsSite, attempt_id: str) -> str:
    """Return the page of a running attempt; a finished one links to its record. Raises PageNotFound if unknown."""
    folder = site.results / "attempts" / attempt_id
    if "/" in attempt_id or attempt_id.startswith(".") or not (folder / "attempt.json").is_file():
        raise PageNotFound(f"No attempt {attempt_id}.")
    attempt = Attempt(folder)
    try:
        order, phase = read_plan(attempt).order, phase_of(attempt)
        series = read_live_series(attempt)
    except (FaultlineError, OSError, KeyError, ValueError) as error:
        raise PageNotFound(f"{attempt_id}: reading its files failed: {error}; fix: reload the page") from None
    sweep = order.sweep_id
    plan = SweepPlans(site.results).read(sweep) if sweep else None
    site.index.refresh()
    is_closed = attempt.over is not None
    figure, title = live_figure(series) if series else None, title_of(order.config)
    return render(
        site,
        "live",
        title=title[:1].upper() + title[1:],
        attempt=attempt_id,
        is_closed=is_closed,
        record=site.link("experiments", attempt_id) if site.index.of_attempt(attempt_id) else None,
        phase=phase.name,
        detail=phase.detail,
        sweep=sweep if plan else None,
        sweep_href=site.link("sweeps", str(sweep)) if plan and site.index.has_sweep(str(sweep)) else None,
        progress=sweep_progress(site, plan) if plan else "",
        facts=current_figures(series) if series else [],
        figures={"live": figure} if figure else {},
    )


def read_live_series(attempt: Attempt) -> LiveSeries | None:
    """Return the series of the journals; None before the first sample."""
    recorder = _last_lines(attempt.recorder_journal)
    samples = [line for line in recorder if line.get("kind") == "offsets" and line.get("topic") == "input"]
    if not recorder:
        return None
    scheduler = _last_lines(attempt.conductor_journal)
    barrier = next((line for line in scheduler if line.get("event") == "gate"), None)
    newest_ns = int(recorder[-1]["wall_ns"])
    began_ns = int(barrier["t0_wall_ns"]) if barrier else int(recorder[0]["wall_ns"])
    # Only a part of the journal is read; CPU that was used before that part must not count.
    from_ns = max(began_ns, newest_ns - WINDOW_S * NS, int(recorder[0]["wall_ns"]))
    produced = [((int(line["wall_ns"]) - began_ns) / NS, float(sum(line["end"].values()))) for line in samples]
    progressed = [line for line in _last_lines(attempt.listener_journal) if line.get("event") == "progress"]
    committed = [
        ((int(line["wall_ns"]) - began_ns) / NS, float(sum(line["end_offsets"].values())))
        for line in progressed
        if line.get("end_offsets") and line.get("wall_ns")
    ]
    first_s = (from_ns - began_ns) / NS
    cores = cores_by_second(processes_of(tuple(recorder)), from_ns, newest_ns) if newest_ns > from_ns else []
    return LiveSeries(
        began_ns,
        barrier is not None,
        tuple(one for one in produced if one[0] >= first_s - 1),
        tuple(one for one in committed if one[0] >= first_s - 60),
        tuple({**one, "t_s": one["t_s"] + first_s} for one in cores),
        tuple(
            ((int(line["wall_ns"]) - began_ns) / NS, str(line.get("action") or line["event"]))
            for line in scheduler
            if line.get("event") in ("delivered", "undone")
        ),
    )


def lag_of(series: LiveSeries) -> list[tuple[float, float]]:
    """Return the consumer lag at each sample of the input topic, from the first commit on."""
    if not series.committed or not series.produced:
        return []
    times, ends = (np.array(column) for column in zip(*series.committed, strict=True))
    found = []
    for at_s, end in series.produced:
        newest = int(np.searchsorted(times, at_s, side="right"))
        if newest:
            found.append((at_s, max(0.0, end - float(ends[newest - 1]))))
    return found


def rates(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the rate of a count between consecutive samples, placed at the later sample."""
    return [
        (after[0], max(0.0, (after[1] - before[1]) / (after[0] - before[0])))
        for before, after in zip(points, points[1:], strict=False)
        if after[0] > before[0]
    ]


def current_figures(series: LiveSeries) -> list[tuple[str, str]]:
    """Return the newest figures by name."""
    produced, lag = rates(series.produced), lag_of(series)
    since = series.produced[-1][0] if series.produced else 0.0
    found = [("since T0" if series.is_started else "since the first sample", f"{since:,.0f} s")]
    found += [("input", f"{produced[-1][1]:,.0f} records/s")] if produced else []
    found += [("lag", f"{lag[-1][1]:,.0f} records")] if lag else []
    if series.cores:
        used = sum(series.cores[-1].get(role, 0.0) for role in ENGINE)
        found.append(("engine", f"{used:.2f} cores"))
    return found


def live_figure(series: LiveSeries) -> go.Figure:
    """Return throughput, lag and CPU on one time axis."""
    figure = go.Figure()
    for name, colour, points, axis, shape in (
        ("input", FAINT_COLOUR, rates(series.produced), "y", "linear"),
        ("committed", STRONG_COLOUR, rates(series.committed), "y", "vh"),
        ("lag", STRONG_COLOUR, lag_of(series), "y2", "linear"),
    ):
        figure.add_scatter(
            x=[round(at, 2) for at, _ in points], y=[round(value, 1) for _, value in points], name=name, yaxis=axis,
            mode="lines", line={"color": colour, "width": 1.6, "shape": shape}, showlegend=axis == "y",
        )  # fmt: skip
    for role, colour in ROLE_COLOURS.items():
        values = [one.get(role, 0.0) for one in series.cores]
        if any(values):
            figure.add_scatter(
                x=[round(one["t_s"], 2) for one in series.cores], y=values, name=role.replace("_", " "), yaxis="y3",
                mode="lines", line={"color": colour, "width": 1.6},
            )  # fmt: skip
    axes: dict[str, Any] = {}
    for number, (span, title) in enumerate(zip(_ROWS, _TITLES, strict=True), start=1):
        name = "yaxis" if number == 1 else f"yaxis{number}"
        axes[name] = {"domain": list(span), "title": {"text": title}, **_FROM_ZERO}
    set_layout(figure, 460, (64, 16, 28, 40),
        hovermode="x unified",
        legend=legend_above(1.03),
        xaxis={"title": {"text": "s after T0" if series.is_started else "s"}, "anchor": "y3", "zeroline": False},
        shapes=[
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": FAULT_COLOUR, "width": 1.5, "dash": "dot"}}
            for at, _ in series.faults
        ],
        annotations=[
            {"x": at, "y": 1.0, "yref": "paper", "text": name, "showarrow": False, "xanchor": "left", "yanchor": "top",
             "font": {"color": FAULT_COLOUR}}
            for at, name in series.faults
        ],
        **axes,
    )  # fmt: skip
    return figure


def _last_lines(path: Path) -> list[Line]:
    """Return the last complete lines of a journal; empty if missing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - READ_BYTES))
            content = file.read()
    except OSError:
        return []
    lines = content.split(b"\n")
    # The first line may begin before the offset, and the last one may not be completely written.
    complete = lines[1:-1] if size > READ_BYTES else lines[:-1]
    found = []
    for line in complete:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in found if isinstance(line, dict) and "wall_ns" in line]
