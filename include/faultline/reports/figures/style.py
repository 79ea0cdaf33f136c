"""What all figures have in common: colours, symbols, legend and background.

Colours are from the Okabe-Ito palette, which people with a colour vision deficiency can tell apart, and of middling
lightness, so that they hold on white and on black. What depends on the theme (text, grid) is left to the page.
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
    """The figure with its height, its margin (left, right, top, bottom), no background, and the rest of its layout."""
    return figure.update_layout(
        height=height,
        margin=dict(zip("lrtb", margin, strict=True)),
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        **layout,
    )


def legend_above(y: float = 1.02, **more: Any) -> dict[str, Any]:
    """A legend in a row above the plot."""
    return {"orientation": "h", "x": 0, "y": y, "yanchor": "bottom", **more}
