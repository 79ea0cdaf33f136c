"""View of a sweep or other set of records: points on axes, figures, texts and summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.config_points import (
    FAULT,
    Axis,
    Figure,
    Point,
    axes_of,
    groups_of,
    points_of,
    sort_points,
    split_controls,
)
from faultline.records.catalogue import DEFAULT, TAIL, metrics_in, metrics_of
from faultline.records.columns import Metric, Sheet
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import BASELINE
from faultline.reports.figures import configurations
from faultline.reports.figures.style import SERIES_COLOURS
from faultline.reports.views.run import explain_reasons, period_text
from faultline.system.errors import ConfigError

# Costs of a recommendation: key, label of the limit in the form, unit.
COST_FIELDS = (
    ("recovery", "Recovery under", "s"), ("latency", "Latency p99 under", "ms"),
    ("latency_p50", "Latency p50 under", "ms"), ("cpu", "CPU under", "cores"),
)  # fmt: skip
# A page must respond within a second.
MAX_CONFIGURATIONS = 100
# Axes with figures in a report.
MAX_AXES = 3


class PageNotFound(LookupError):
    """The requested page, record or parameter value does not exist; the message is one line."""


@dataclass(frozen=True)
class SweepPageQuery:
    """Selection of the user; an empty value means the default.

    `x`: key of the horizontal axis; `view`: `heat` or `curves`; `minimise`, `limits`: objective of the recommendation.
    """

    metric: str = ""
    group: str = ""
    x: str = ""
    view: str = ""
    page: int = 1
    minimise: str = ""
    # Limits by cost, as entered.
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepView:
    """Records of one group, the selection of the user, and everything a page shows."""

    entries: Sequence[IndexEntry]
    choice: SweepPageQuery

    @cached_property
    def _chosen_group(self) -> tuple[str, list[str]]:
        return select_group(self.entries, self.choice.group)

    @property
    def group(self) -> str:
        """Selected build and series."""
        return self._chosen_group[0]

    @property
    def groups(self) -> list[str]:
        """All builds and series."""
        return self._chosen_group[1]

    @cached_property
    def members(self) -> list[IndexEntry]:
        """Records of the group."""
        return [entry for entry in self.entries if entry.group == self.group]

    @cached_property
    def points(self) -> list[Point]:
        """Configurations in order of the axes."""
        points = points_of(self.members)
        return sort_points(points, axes_of(points))

    @cached_property
    def measured(self) -> list[Point]:
        """Configurations with figures."""
        return [point for point in self.points if point.valid or point.invalid]

    @cached_property
    def axes(self) -> list[Axis]:
        """Axes of the configurations with figures."""
        return axes_of(self.measured)

    @cached_property
    def cell_axes(self) -> list[Axis]:
        """Table columns that distinguish configurations."""
        return [axis for axis in axes_of(self.points) if axis.key != FAULT]

    @cached_property
    def metrics(self) -> list[Metric]:
        """Metrics of the usable records; without any, those of the invalid records."""
        return metrics_of(self.members) or metrics_of(self.members, invalid=True)

    @cached_property
    def metric(self) -> Metric | None:
        """Metric of the figure."""
        return select_metric(self.metrics, self.choice.metric)

    @cached_property
    def columns(self) -> list[Metric]:
        """Columns of the table: the selected metric first, then the usual ones.

        The substitute for the p99, used for few batches, is omitted if the p99 is a column.
        """
        shown = {self.metric.key} if self.metric else set()
        shown |= {TAIL} if DEFAULT in shown else set()
        usual = [one for one in metrics_in(Sheet.CELLS) if one in self.metrics and one.key not in shown]
        return [*([self.metric] if self.metric else []), *usual]

    @cached_property
    def _chosen_view(self) -> tuple[Axis | None, str]:
        return select_view(self.axes, self.choice)

    @property
    def x(self) -> Axis | None:
        """Horizontal axis."""
        return self._chosen_view[0]

    @property
    def view(self) -> str:
        """`heat`, `curves`, or empty without an axis."""
        return self._chosen_view[1]

    @property
    def views(self) -> list[str]:
        """Available views."""
        return ["heat", "curves"] if _two_numbers(self.axes) else []

    @cached_property
    def _drawn(self) -> tuple[go.Figure | None, int]:
        if self.metric is None or self.x is None:
            return None, 0
        others = [axis for axis in self.axes if axis.key != self.x.key]
        if self.view == "heat":
            return configurations.heat_map(self.measured, self.x, others[0], self.metric), 0
        figure, omitted_lines = configurations.curves(
            sort_points(self.measured, [*others, self.x]), self.x, others, self.metric
        )
        if (limit := _limit(self.choice, self.metric)) is not None:
            drawn = [high for point in self.measured if (high := point.figure(self.metric.key).high) is not None]
            words = f"{self.metric.text(limit)} {self.metric.unit}"
            configurations.add_limit_line(figure, limit, words, drawn)
        return figure, omitted_lines

    @property
    def figure(self) -> go.Figure | None:
        """Metric over the axes; None without axes."""
        return self._drawn[0]

    @property
    def omitted_lines(self) -> int:
        """Number of lines that the figure omits."""
        return self._drawn[1]

    @property
    def has_limit(self) -> bool:
        """Whether the figure shows a limit."""
        return self.view == "curves" and self.metric is not None and _limit(self.choice, self.metric) is not None

    @property
    def usable(self) -> int:
        """Number of usable runs."""
        return sum(len(point.valid) for point in self.points)

    @property
    def invalid(self) -> int:
        """Number of invalid runs."""
        return sum(len(point.invalid) for point in self.points)

    @property
    def is_repeated(self) -> bool:
        """Whether a configuration has several usable runs."""
        return any(len(point.valid) > 1 for point in self.points)

    @property
    def has_bounds(self) -> bool:
        """Whether a median is only a lower bound."""
        return self.metric is not None and any(point.figure(self.metric.key).bound for point in self.measured)

    @property
    def has_controls(self) -> bool:
        """Whether there are control runs among faults."""
        return bool(split_controls(self.measured)[1])

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Dates, workloads and machines of the records."""
        return _facts(self.entries)

    @property
    def controls(self) -> list[str]:
        """Control runs, which have no cell in a heat map."""
        return _controls(self.measured, self.cell_axes, self.metric) if self.view == "heat" else []

    def row(self, point: Point) -> dict[str, Any]:
        """Return the texts of one configuration."""
        usable = bool(point.valid)
        figures = [(one, point.figure(one.key) if usable else point.invalid_figure(one.key)) for one in self.columns]
        return {
            "axes": [axis.label(point) for axis in self.cell_axes],
            "fault": point.entries[0].fault,
            "config_id": point.config_id,
            "n": len(point.valid),
            "invalid": len(point.invalid),
            "why": configurations.reason_text(point.invalid[-1]) if point.invalid else "",
            "figures": [one.text(metric) for metric, one in figures],
            "spread": figures[0][1].spread(figures[0][0]) if figures else "",
        }

    @property
    def problems(self) -> list[tuple[int, str, IndexEntry]]:
        """Reasons of experiments that are not valid, by code, most frequent first: count, example, newest record."""
        found: dict[str, list[tuple[IndexEntry, str]]] = {}
        for entry in self.members:
            for reason in explain_reasons(entry.reasons, entry.metrics) if entry.status != "valid" else ():
                found.setdefault(f"{entry.status} {reason.partition(':')[0]}", []).append((entry, reason))
        return [(len(cases), cases[-1][1], cases[-1][0]) for cases in sorted(found.values(), key=len, reverse=True)]

    def summary(self, figures: dict[str, go.Figure]) -> dict[str, Any] | None:
        """Return the summary section and add the front to `figures`; an invalid objective yields its error text."""
        # Imported here because statistics take a second to import and few pages need them.
        from faultline.comparison.sweep_summary import invalid_runs_of, objective_of, summary_of
        from faultline.reports.figures.front import summary_view

        if len({entry.config_id for entry in self.members}) > MAX_CONFIGURATIONS:
            return None
        problem, objective = "", None
        try:
            limits = {
                cost: (name, _parse_limit(name, self.choice.limits.get(cost, ""))) for cost, name, _ in COST_FIELDS
            }
            objective = objective_of(self.choice.minimise or None, limits)
            found = summary_of(self.members, objective)
        except ConfigError as error:
            problem, found = str(error), summary_of(self.members)
        view = summary_view(found, invalid_runs_of(self.members), figures)
        return None if view is None else {**view, "problem": problem}

    @cached_property
    def panels(self) -> list[tuple[str, list[tuple[Metric, go.Figure]]]]:
        """Name of each axis with a small figure of every known metric along it."""
        wanted = [metric for metric in metrics_in(Sheet.COMPARED) if metric in self.metrics]
        found = []
        for x in self.axes[:MAX_AXES]:
            others = [axis for axis in self.axes if axis.key != x.key]
            points = sort_points(self.measured, [*others, x])
            drawn = [(one, configurations.curves(points, x, others, one, small=True)[0]) for one in wanted]
            found.append((x.name, [(one, figure) for one, figure in drawn if figure.data]))
        return [(name, figures) for name, figures in found if figures]


def select_metric(metrics: Sequence[Metric], key: str) -> Metric | None:
    """Return the metric with that key, by default the latency p99 or else the first; None without metrics."""
    if not metrics:
        return None
    for metric in metrics:
        if metric.key == (key or DEFAULT):
            return metric
    if key:
        raise PageNotFound(f"No usable record has the metric {key}.")
    return metrics[0]


def select_group(entries: Sequence[IndexEntry], group: str) -> tuple[str, list[str]]:
    """Return the group of that name, by default the newest with a usable record, and all groups.

    The default of a nightly run is its own build, even if the reference build was measured last.
    """
    groups = groups_of(entries)
    if group and group not in groups:
        raise PageNotFound(f"No record has the build {group}.")
    own = [entry for entry in entries if not entry.series.endswith(BASELINE)] or entries
    believed = groups_of([entry for entry in own if entry.is_usable])
    return group or (believed or groups_of(own))[0], groups


def _parse_limit(name: str, text: str) -> float | None:
    """Return the number of a limit; None if empty."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: got {text!r}; expected a number above 0") from None


def _limit(choice: SweepPageQuery, metric: Metric | None) -> float | None:
    """Return the limit of the selected metric; None if missing or invalid."""
    if not any(choice.limits.values()):
        return None
    from faultline.comparison.candidates import COSTS

    entered = next((text for cost, text in choice.limits.items() if metric and COSTS.get(cost) == metric.key), "")
    try:
        limit = _parse_limit("", entered)
    except ConfigError:
        return None
    return limit if limit is not None and math.isfinite(limit) and limit > 0 else None


def select_view(axes: Sequence[Axis], choice: SweepPageQuery) -> tuple[Axis | None, str]:
    """Return horizontal axis and view; two numeric axes default to a heat map."""
    if choice.view not in ("", "heat", "curves"):
        raise PageNotFound(f"Unknown view {choice.view}.")
    if choice.x and choice.x not in [axis.key for axis in axes]:
        raise PageNotFound(f"The records do not vary {choice.x}.")
    if not axes:
        return None, ""
    x = next((axis for axis in axes if axis.key == choice.x), None) or _best_axis(axes)
    return x, "heat" if _two_numbers(axes) and choice.view != "curves" else "curves"


def _best_axis(axes: Sequence[Axis]) -> Axis:
    """Return the first axis for which there are enough colours for all lines, else the axis with the fewest lines."""
    cells = math.prod(len(axis.values) for axis in axes)
    few = (axis for axis in axes if cells <= len(axis.values) * len(SERIES_COLOURS))
    return next(few, max(axes, key=lambda axis: len(axis.values)))


def _two_numbers(axes: Sequence[Axis]) -> bool:
    return len(axes) == 2 and all(axis.numeric for axis in axes)


def _facts(entries: Sequence[IndexEntry]) -> list[tuple[str, str]]:
    """Return dates, workloads and machines of the records; where records differ, all values."""
    times = sorted(entry.measured_at for entry in entries)
    workloads = Counter(str(entry.config.get("workload", "unknown")) for entry in entries)
    cores = sorted({entry.cores for entry in entries if entry.cores})
    return [
        ("Measured", f"{period_text(times[0], times[-1])} UTC"),
        ("Workload", ", ".join(workloads)),
        ("Machine", f"{' or '.join(map(str, cores)) or 'unknown number of'} cores"),
        ("Experiments", str(len(entries))),
    ]


def _controls(points: Sequence[Point], axes: Sequence[Axis], metric: Metric | None) -> list[str]:
    """Return the control runs, which have no cell in a heat map."""
    texts = []
    for point in split_controls(points)[1]:
        one = point.figure(metric.key) if metric else Figure(0)
        if metric and one.median is not None:
            where = ", ".join(axis.text_of(point) for axis in axes)
            spread = f", {one.spread(metric)}" if one.spread(metric) else ""
            texts.append(f"{where}: {one.text(metric)} {metric.unit}{spread} (n = {one.n})")
    return texts
