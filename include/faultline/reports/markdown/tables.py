"""The tables of a page: a row for each point of the axes, and columns as far as something is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from faultline.comparison.config_points import Axis, Point
from faultline.records.catalogue import BY_KEY, metrics_in, metrics_of
from faultline.records.columns import Metric, Over, Sheet
from faultline.records.format import NONE, cores

# A cell is text: nothing in it may begin markup or end the cell.
_MARKUP = re.compile(r"([\\`*<|\[\]~$&]|(?<!\w)_|_(?!\w))")


@dataclass(frozen=True)
class MarkdownColumn:
    """A heading, and the text of a point under it; `—` where nothing is known."""

    heading: str
    text: Callable[[Point], str]


def markdown_column(metric: Metric, sheet: Sheet | None = None) -> MarkdownColumn:
    """The repetitions of a figure in one cell; `sheet`: the table whose heading it has."""
    text = {Over.MEDIAN: _median, Over.TOTAL: _total, Over.HELD: _count_true}[metric.over]
    return MarkdownColumn(
        column_heading(metric, metric.head(sheet) if sheet else metric.name), lambda point: text(metric, point)
    )


def column_heading(metric: Metric, name: str) -> str:
    """A name with the unit of the figure, where its text does not have it; a sum and a count have none."""
    return f"{name} ({metric.unit})" if metric.over is Over.MEDIAN and metric.unit not in ("", "share") else name


def _median(metric: Metric, point: Point) -> str:
    one = point.figure(metric.key)
    ends = {metric.text(one.low), metric.text(one.high)}
    # No spread where it is too small to be written.
    spread = one.spread(metric).replace(" – ", "–") if ends != {metric.text(one.median)} else ""
    return f"{one.text(metric)} ({spread})" if spread else one.text(metric)


def _total(metric: Metric, point: Point) -> str:
    known = _known(metric, point)
    return f"{sum(known):,.0f}" if known else NONE


def _count_true(metric: Metric, point: Point) -> str:
    known = _known(metric, point)
    return f"{sum(known):.0f} of {len(known)}" if known else NONE


def _known(metric: Metric, point: Point) -> list[float]:
    return [value for entry in point.valid if (value := metric.value(entry)) is not None]


def _oversubscribed(point: Point) -> str:
    """Whether the executors together had more cores than the machine."""
    asked = point.config.get("executors", 1) * point.config.get("executor_cores", 1)
    return "yes" if any(one.cores and asked > one.cores for one in point.entries) else NONE


COUNT_COLUMN = MarkdownColumn("n", lambda point: f"{len(point.valid)} of {len(point.entries)}")
SECTIONS = (Sheet.RECOVERY, Sheet.LATENCY, Sheet.STAGES, Sheet.KEYS, Sheet.RESOURCES, Sheet.AUDIT)
# Columns of these keys are shown apart, or are not figures of one point.
_EXCLUDED_PREFIXES = ("cpu_by_host.", "rss_mb.", "schedule_lag_ms.")
_EMPTY_TEXTS = {NONE, cores(0)}


def table_sections(matrix: str, points: Sequence[Point]) -> list[tuple[str, list[MarkdownColumn]]]:
    """The tables of a matrix by heading, without columns in which nothing is known of any point.

    What a record has and no table names, such as a figure of a later version, stands among the resources.
    """
    entries = [entry for point in points for entry in point.entries]
    valid_points = [point for point in points if point.valid]
    found = []
    for section in SECTIONS:
        columns = [markdown_column(metric, section) for metric in metrics_in(section)]
        if section is Sheet.RESOURCES:
            others = [metric for metric in metrics_of(entries) if metric.key not in BY_KEY]
            more = [markdown_column(metric) for metric in others if not metric.key.startswith(_EXCLUDED_PREFIXES)]
            columns = [MarkdownColumn("oversubscribed", _oversubscribed), *columns, *more]
        # Of events that the engine makes itself nothing is kept, so nothing is audited.
        left_out = section is Sheet.KEYS and matrix != "skew_x_alignment_mode"
        left_out |= section is Sheet.AUDIT and not any("audit.expected" in entry.metrics for entry in entries)
        known = [column for column in columns if not {column.text(point) for point in valid_points} <= _EMPTY_TEXTS]
        if known and not left_out:
            found.append((section.value, known))
    return found


def point_table(points: Sequence[Point], axes: Sequence[Axis], columns: Sequence[MarkdownColumn]) -> list[str]:
    """Lines of a Markdown table: the axes, the columns, and how many of the measured are valid."""
    heads = [*(escape_cell(axis.name) for axis in axes), *(column.heading for column in columns), COUNT_COLUMN.heading]
    cells = [
        [
            *(escape_cell(axis.label(point)) for axis in axes),
            *(column.text(point) for column in (*columns, COUNT_COLUMN)),
        ]
        for point in points
    ]
    return markdown_table(heads, cells)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]


def escape_cell(text: str) -> str:
    """A text that comes from a record, as one line without markup."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
