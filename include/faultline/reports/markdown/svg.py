"""Small SVG charts: panels side by side, lines of medians, bars from minimum to maximum.

Plotly's export needs a browser, and its files are large and not reproducible. Charts have a background of their own
and follow the reader's colour scheme, so they are readable on any page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PLOT_HEIGHT = 960, 210
_LEFT, _RIGHT, _TITLE, _GAP, _EDGE = 58, 8, 26, 14, 14
# Rough width of a character, and heights of a line of text.
_CHARACTER, _LINE = 6.4, 20
# A panel has a logarithmic axis if maximum ÷ minimum reaches this.
LOG_FACTOR = 50
# Smaller values count as zero.
_ZERO = 1e-9
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Horizontal offset between lines at one position, as a share of the distance to the next position.
_LINE_SHIFT, _LINE_SHIFT_UNJOINED, _MAX_SHIFT = 0.06, 0.16, 0.7
# Colours with sufficient contrast on white and near black, safe for red-green colour blindness.
_LIGHT = ("#0072b2", "#c4500a", "#00805a", "#a6488b", "#8f6400", "#56606b", "#4059ad", "#8a1c3c")
_DARK = ("#58a9e8", "#f28f55", "#3cc492", "#e394c6", "#e8b23f", "#a3adb8", "#94a6f0", "#f27d9b")
_SHAPES = ("circle", "square", "diamond", "triangle")
_STYLE = """\
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4; stroke-width: 1 }
.line { fill: none; stroke-width: 1.8 }
.bar { fill: none; stroke-width: 1.4 }
.mark { stroke-width: 1.6 }
"""
_STYLE_INVALID = ".invalid { fill: none; stroke-width: 1.2; stroke-dasharray: 2.4 1.6 }\n"
_STYLE_DARK = """\
text { fill: #d6dde4 }
.card { fill: #0d1117; stroke: #30363d }
.grid { stroke: #2b323a }
"""


@dataclass(frozen=True)
class ChartPoint:
    """Median, minimum and maximum at position `x` (0, 1, 2, …).

    `bound`: whether the median is a lower bound. `n`: number of repetitions; a point with n = 1 is not joined.
    """

    x: int
    median: float
    low: float
    high: float
    bound: bool = False
    n: int = 2


@dataclass(frozen=True)
class ChartLine:
    """One series. `joined`: positions are numbers, so a line may connect them.

    `invalid`: position, value and reason of each run that does not count.
    """

    name: str
    points: tuple[ChartPoint, ...]
    joined: bool = True
    invalid: tuple[tuple[int, float, str], ...] = ()


@dataclass(frozen=True)
class Panel:
    """One metric over the positions; all panels of a chart have the same lines."""

    title: str
    lines: tuple[ChartLine, ...]


@dataclass(frozen=True)
class _Frame:
    """Coordinates of a panel: left edge, top and width in pixels, and its scale."""

    left: float
    top: float
    width: float
    places: int
    ticks: tuple[float, ...]
    log: bool

    def x(self, place: float) -> float:
        return self.left + self.width * (place + 0.5) / self.places

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.top + PLOT_HEIGHT * (1 - (value - low) / (high - low))


def draw_chart(panels: Sequence[Panel], places: Sequence[str], x_title: str, title: str) -> str:
    """Return the chart as SVG text. `places`: labels of the x axis; `title`: alternative text."""
    names = [line.name for line in panels[0].lines if line.name]
    top = _EDGE + (_LINE * _legend_rows(names) + 8 if names else 0) + _TITLE
    width = (WIDTH - 2 * _EDGE - _GAP * (len(panels) - 1)) / len(panels)
    inner = width - _LEFT - _RIGHT
    tilted = max(map(len, places)) * _CHARACTER > inner / len(places) - 4
    below = 24 + (0.6 * max(map(len, places)) * _CHARACTER if tilted else 0)
    height = top + PLOT_HEIGHT + below + _LINE + _EDGE
    parts = _legend(names)
    for number, panel in enumerate(panels):
        left = _EDGE + number * (width + _GAP) + _LEFT
        values = [value for line in panel.lines for mark in line.points for value in (mark.low, mark.high)]
        values += [value for line in panel.lines for _, value, _ in line.invalid]
        log, ticks = _scale(values)
        frame = _Frame(left, top, inner, len(places), ticks, log)
        parts += _axes(frame, panel.title + (", log" if log else ""), places, tilted)
        parts.append(_text_element(x_title, frame.left + inner / 2, top + PLOT_HEIGHT + below + _LINE - 6, "middle"))
        for order, line in enumerate(panel.lines):
            apart = min(_LINE_SHIFT if line.joined else _LINE_SHIFT_UNJOINED, _MAX_SHIFT / len(panel.lines))
            shift = (order - (len(panel.lines) - 1) / 2) * apart
            parts += _series(frame, line, order, shift)
    extra_style = _STYLE_INVALID if any(line.invalid for panel in panels for line in panel.lines) else ""
    return "\n".join([*_head(height, title, extra_style), *parts, "</svg>", ""])


def _scale(values: Sequence[float]) -> tuple[bool, tuple[float, ...]]:
    """Return whether the axis is logarithmic, and the grid values, which enclose all values."""
    low, high = min(values), max(values)
    if low > _ZERO and high / low >= LOG_FACTOR:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return True, tuple(10.0**power for power in range(first, last + 1))
    span = max(high, 0.0) - min(low, 0.0)
    span = span if span > _ZERO else 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if span / (step * power) <= 5)
    first, last = math.floor(min(low, 0.0) / step), math.ceil(max(high, 0.0) / step)
    return False, tuple(round(step * number, 12) for number in range(first, max(last, first + 1) + 1))


def _head(height: float, title: str, extra_style: str) -> list[str]:
    light, dark = ("".join(_colour(order, shade) for order, shade in enumerate(shades)) for shades in (_LIGHT, _DARK))
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{_escaped(title)}">',
        f"<title>{_escaped(title)}</title>",
        f"<style>\n{_STYLE}{extra_style}{light}@media (prefers-color-scheme: dark) {{\n{_STYLE_DARK}{dark}}}\n</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>',
    ]


def _colour(order: int, shade: str) -> str:
    return f".s{order} {{ stroke: {shade} }} .f{order} {{ fill: {shade} }}\n"


def _legend_rows(names: Sequence[str]) -> int:
    return _legend_places(names)[-1][1] + 1


def _legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Return left edge and row of each legend entry."""
    found, left, row = [], float(_EDGE), 0
    for name in names:
        wide = 46 + len(name) * _CHARACTER
        if left + wide > WIDTH - _EDGE and left > _EDGE:
            left, row = float(_EDGE), row + 1
        found.append((left, row))
        left += wide
    return found


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for order, (name, (left, row)) in enumerate(zip(names, _legend_places(names), strict=True)):
        y = _EDGE + _LINE * row + 10
        parts += [_symbol(order, left + 8, y, hollow=False), _text_element(name, left + 20, y + 4)]
    return parts


def _axes(frame: _Frame, title: str, places: Sequence[str], tilted: bool) -> list[str]:
    parts = [_text_element(title, frame.left - _LEFT + 4, frame.top - 12, css="title")]
    for tick in frame.ticks:
        y = frame.y(tick)
        parts.append(f'<path class="grid" d="M{frame.left:.1f} {y:.1f}h{frame.width:.1f}"/>')
        parts.append(_text_element(f"{tick:,.12g}", frame.left - 6, y + 4, "end"))
    # Omit labels that would touch: at a tilt of 38°, the distance of two lines is 0.6 of that of their positions.
    every = math.ceil(12 * len(places) / (0.6 * frame.width)) if tilted else 1
    for place, name in list(enumerate(places))[::every]:
        x, y = frame.x(place), frame.top + PLOT_HEIGHT + 16
        parts.append(
            _text_element(name, x + 4, y - 2, "end", turn=-38) if tilted else _text_element(name, x, y, "middle")
        )
    return parts


def _series(frame: _Frame, line: ChartLine, order: int, shift: float) -> list[str]:
    order %= len(_LIGHT)
    parts, ends = [], []
    for mark in line.points:
        x = frame.x(mark.x + shift)
        low, middle, high = (frame.y(value) for value in (mark.low, mark.median, mark.high))
        if mark.high > mark.low:
            bar = f"M{x - 4:.1f} {low:.1f}h8M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {high:.1f}h8"
            parts.append(f'<path class="bar s{order}" d="{bar}"/>')
        parts.append(_symbol(order, x, middle, hollow=mark.bound))
        if mark.n > 1:
            ends.append(f"{x:.1f} {middle:.1f}")
    for place, value, why in line.invalid:
        x, y = frame.x(place + shift) + 7, frame.y(value)
        circle = f'<circle class="invalid s{order}" cx="{x:.1f}" cy="{y:.1f}" r="3.4">'
        parts.append(f"{circle}<title>{_escaped(why)}</title></circle>")
    if line.joined and len(ends) > 1:
        parts.insert(0, f'<path class="line s{order}" d="M{"L".join(ends)}"/>')
    return parts


def _symbol(order: int, x: float, y: float, *, hollow: bool) -> str:
    """Return the symbol of a series; hollow for lower bounds."""
    css = f'class="mark s{order}" fill="none"' if hollow else f'class="mark s{order} f{order}"'
    match _SHAPES[order % len(_SHAPES)]:
        case "square":
            path = f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z"
        case "diamond":
            path = f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
        case "triangle":
            path = f"M{x:.1f} {y - 5:.1f}l5 9h-10z"
        case _:
            return f'<circle {css} cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>'
    return f'<path {css} d="{path}"/>'


def _text_element(text: str, x: float, y: float, anchor: str = "start", css: str = "", turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    named = f' class="{css}"' if css else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Return the text escaped for XML, without control characters that XML cannot represent."""
    return escape(_NO_XML.sub("\ufffd", text))
