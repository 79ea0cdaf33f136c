"""Tables of a results page: one row per point of the axes, and the columns that have values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from faultline.comparison.config_points import Axis, Point
from faultline.records.catalogue import BY_KEY, metrics_in, metrics_of
from faultline.records.columns import Metric, Over, Sheet
from faultline.records.format import NONE, cores

# Characters that would start markup or end a cell.
_MARKUP = re.compile(r"([\\`*<|\[\]~$&]|(?<!\w)_|_(?!\w))")


@dataclass(frozen=True)
class MarkdownColumn:
    """Heading, and text of a point; `—` if unknown."""

    heading: str
    text: Callable[[Point], str]


def markdown_column(metric: Metric, sheet: Sheet | None = None) -> MarkdownColumn:
    """Return the column of a metric over the repetitions; `sheet`: table whose heading applies."""
    text = {Over.MEDIAN: _median, Over.TOTAL: _total, Over.HELD: _count_true}[metric.over]
    return MarkdownColumn(
        column_heading(metric, metric.head(sheet) if sheet else metric.name), lambda point: text(metric, point)
    )


def column_heading(metric: Metric, name: str) -> str:
    """Return a name with the unit of its metric; sums and counts have none."""
    return f"{name} ({metric.unit})" if metric.over is Over.MEDIAN and metric.unit not in ("", "share") else name


def _median(metric: Metric, point: Point) -> str:
    one = point.figure(metric.key)
    ends = {metric.text(one.low), metric.text(one.high)}
    # The spread is omitted if the shown digits cannot express it.
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
    """Return `yes` if the executors have more cores than the machine."""
    requested = point.config.get("executors", 1) * point.config.get("executor_cores", 1)
    return "yes" if any(one.cores and requested > one.cores for one in point.entries) else NONE


COUNT_COLUMN = MarkdownColumn("n", lambda point: f"{len(point.valid)} of {len(point.entries)}")
SECTIONS = (Sheet.RECOVERY, Sheet.LATENCY, Sheet.STAGES, Sheet.KEYS, Sheet.RESOURCES, Sheet.AUDIT)
# Prefixes of metrics that are shown elsewhere or do not describe one point.
_EXCLUDED_PREFIXES = ("cpu_by_host.", "rss_mb.", "schedule_lag_ms.")
_EMPTY_TEXTS = {NONE, cores(0)}


def table_sections(matrix: str, points: Sequence[Point]) -> list[tuple[str, list[MarkdownColumn]]]:
    """Return the tables of a matrix by heading, without empty columns.

    Metrics that no table names, such as those of later versions, are listed among the resources.
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
        # Events that the engine generates itself are not stored, so the audit has no figures for them.
        left_out = section is Sheet.KEYS and matrix not in ("skew_x_alignment_mode", "flink_alignment")
        left_out |= section is Sheet.AUDIT and not any("audit.expected" in entry.metrics for entry in entries)
        known = [column for column in columns if not {column.text(point) for point in valid_points} <= _EMPTY_TEXTS]
        if known and not left_out:
            found.append((section.value, known))
    return found


def point_table(points: Sequence[Point], axes: Sequence[Axis], columns: Sequence[MarkdownColumn]) -> list[str]:
    """Return a Markdown table of the axes, the columns and the number of usable records."""
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
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]


def escape_cell(text: str) -> str:
    """Return a text of a record on one line, with markup escaped."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
