"""Common style of all figures: colours, symbols, legend and background.

Colours are from the Okabe-Ito palette, which is safe for colour vision deficiencies, and have medium lightness for
white and black backgrounds. The page sets the colours that depend on its theme, such as text and grid.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

CLEAR = "rgba(0,0,0,0)"
FAULT_COLOUR = "#D55E00"
FAINT_COLOUR = "#8D99A5"
STRONG_COLOUR = "#3B7DBD"
LIMIT_COLOUR = "#d64538"
ROLE_COLOURS = {
    "executors": "#0072B2",
    "driver": "#E69F00",
    "kafka": "#009E73",
    "generator": "#CC79A7",
    "python_workers": "#56B4E9",
}
SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SERIES_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
INVALID = "invalid run, does not count"


def set_layout(figure: go.Figure, height: int, margin: tuple[int, int, int, int], **layout: Any) -> go.Figure:
    """Set height, margin (left, right, top, bottom), transparent background and other layout of a figure."""
    return figure.update_layout(
        height=height,
        margin=dict(zip("lrtb", margin, strict=True)),
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        **layout,
    )


def legend_above(y: float = 1.02, **more: Any) -> dict[str, Any]:
    """Return a horizontal legend above the plot."""
    return {"orientation": "h", "x": 0, "y": y, "yanchor": "bottom", **more}
