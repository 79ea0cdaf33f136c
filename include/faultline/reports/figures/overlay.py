"""Latency, throughput, lag and CPU of two attempts on one time axis, aligned at the fault."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from faultline.reports.figures.attempt import Series
from faultline.reports.figures.style import FAINT_COLOUR, FAULT_COLOUR, ROLE_COLOURS, STRONG_COLOUR, set_layout

# Blue and vermilion of the Okabe-Ito palette have the largest contrast.
COLOURS = (STRONG_COLOUR, FAULT_COLOUR)
_ROWS = ((0.78, 1.0), (0.52, 0.74), (0.26, 0.48), (0.0, 0.22))
_TITLES = ("Latency p99\n(ms)", "Committed\n(records/s)", "Lag (records)", "CPU (cores)")
_SHAPES = ("linear", "vh", "linear", "linear")


@dataclass(frozen=True)
class AttemptCurves:
    """Curves of one attempt: legend name, content of series.json, and recovery in s after t0."""

    name: str
    series: Series
    recovered_s: float | None = None

    @property
    def fault_s(self) -> float | None:
        """First fault in s after T0; None without a fault or if unknown."""
        at = [event["t_s"] for event in self.series["events"] if event["name"] == "t0"]
        return float(at[0]) if at and at[0] is not None and math.isfinite(at[0]) else None


def overlay_figure(courses: Sequence[AttemptCurves]) -> go.Figure:
    """Return both attempts over seconds after their fault; if one has no fault, over seconds after T0.

    Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for invalid series.
    """
    faults = [course.fault_s for course in courses]
    by_fault = all(at is not None for at in faults)
    figure = go.Figure()
    for course, colour, fault_s in zip(courses, COLOURS, faults, strict=True):
        zero_s = fault_s if by_fault and fault_s is not None else 0.0
        _add_curves(figure, course, colour, zero_s)
        if by_fault and course.recovered_s is not None:
            _add_vertical_line(figure, course.recovered_s, {"color": colour, "width": 1.6, "dash": "dash"})
    if by_fault:
        _add_vertical_line(figure, 0.0, {"color": FAINT_COLOUR, "width": 2})
    set_layout(
        figure,
        720,
        (78, 16, 48, 48),
        hovermode="x unified",
        hoversubplots="axis",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        xaxis={
            "anchor": "y4",
            "title": {"text": "Seconds after the fault" if by_fault else "Seconds after T0 (start barrier)"},
            "zeroline": False,
            "hoverformat": ".1f",
        },
        **{
            f"yaxis{number + 1 if number else ''}": {
                "domain": domain,
                "anchor": "x",
                "title": {"text": title, "standoff": 8},
                "rangemode": "tozero",
                "zeroline": False,
                "tickformat": ",~g",
            }
            for number, (domain, title) in enumerate(zip(_ROWS, _TITLES, strict=True))
        },
    )
    return figure


def _add_curves(figure: go.Figure, course: AttemptCurves, colour: str, zero_s: float) -> None:
    rows = (
        [(point["t_s"], point["p99_ms"]) for point in course.series["latency"]],
        [(point["t_s"], point["rps"]) for point in course.series["throughput"]],
        [(point["t_s"], point["records"]) for point in course.series["lag"]],
        [(point["t_s"], _cores(point)) for point in course.series["cpu"]],
    )
    for number, (points, shape) in enumerate(zip(rows, _SHAPES, strict=True)):
        known = [(float(at), value) for at, value in points if at is not None and math.isfinite(at)]
        figure.add_scatter(
            x=[round(at - zero_s, 3) for at, _ in known],
            y=[None if value is None or not math.isfinite(value) else round(float(value), 3) for _, value in known],
            name=course.name,
            mode="lines",
            line={"color": colour, "width": 1.8, "shape": shape},
            yaxis=f"y{number + 1}" if number else "y",
            legendgroup=course.name,
            showlegend=number == 0,
        )


def _cores(point: Mapping[str, Any]) -> float:
    """Return the sum of the cores of all roles in one second."""
    return sum(float(point.get(role) or 0.0) for role in ROLE_COLOURS)


def _add_vertical_line(figure: go.Figure, at_s: float, line: Mapping[str, Any]) -> None:
    """Add a vertical line through all rows."""
    figure.add_shape(type="line", xref="x", yref="paper", x0=at_s, x1=at_s, y0=0, y1=1, line=dict(line), layer="below")
