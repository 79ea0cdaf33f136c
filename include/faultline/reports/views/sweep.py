"""The view of a sweep, or of any records beside each other: points on axes, figures over them, texts and the answer."""

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

# What advice can be asked for: the cost, what the form calls its limit, and its unit.
COST_FIELDS = (
    ("recovery", "Recovery under", "s"), ("latency", "Latency p99 under", "ms"),
    ("latency_p50", "Latency p50 under", "ms"), ("cpu", "CPU under", "cores"),
)  # fmt: skip
# Of more configurations nobody reads an answer, and a page answers within a second.
MAX_CONFIGURATIONS = 100
# Axes along which a report draws.
MAX_AXES = 3


class PageNotFound(LookupError):
    """What was asked for does not exist; its text is one clear line for the reader."""


@dataclass(frozen=True)
class SweepPageQuery:
    """What a reader chose; empty: the default. `x` is the key of the horizontal axis, `view` is `heat` or `curves`.

    `minimise` and `limits` are what advice is asked for.
    """

    metric: str = ""
    group: str = ""
    x: str = ""
    view: str = ""
    page: int = 1
    minimise: str = ""
    # By cost, as it was typed.
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepView:
    """Records of one group, what a reader chose of them, and all that a page shows."""

    entries: Sequence[IndexEntry]
    choice: SweepPageQuery

    @cached_property
    def _chosen_group(self) -> tuple[str, list[str]]:
        return select_group(self.entries, self.choice.group)

    @property
    def group(self) -> str:
        """The build and series that is shown."""
        return self._chosen_group[0]

    @property
    def groups(self) -> list[str]:
        """All that there are to choose from."""
        return self._chosen_group[1]

    @cached_property
    def members(self) -> list[IndexEntry]:
        """The records of the group."""
        return [entry for entry in self.entries if entry.group == self.group]

    @cached_property
    def points(self) -> list[Point]:
        """The configurations in order."""
        points = points_of(self.members)
        return sort_points(points, axes_of(points))

    @cached_property
    def measured(self) -> list[Point]:
        """Those that have figures."""
        return [point for point in self.points if point.valid or point.invalid]

    @cached_property
    def axes(self) -> list[Axis]:
        """The axes of what has figures."""
        return axes_of(self.measured)

    @cached_property
    def cell_axes(self) -> list[Axis]:
        """The columns that tell configurations apart."""
        return [axis for axis in axes_of(self.points) if axis.key != FAULT]

    @cached_property
    def metrics(self) -> list[Metric]:
        """What can be drawn. Where nothing is usable, what is invalid is shown all the same, under its label."""
        return metrics_of(self.members) or metrics_of(self.members, invalid=True)

    @cached_property
    def metric(self) -> Metric | None:
        """What is drawn."""
        return select_metric(self.metrics, self.choice.metric)

    @cached_property
    def columns(self) -> list[Metric]:
        """The columns of the table: the chosen metric first, then the usual ones that the records have. Beside the p99
        what stands for it where there are few batches would say it again."""
        shown = {self.metric.key} if self.metric else set()
        shown |= {TAIL} if DEFAULT in shown else set()
        usual = [one for one in metrics_in(Sheet.CELLS) if one in self.metrics and one.key not in shown]
        return [*([self.metric] if self.metric else []), *usual]

    @cached_property
    def _chosen_view(self) -> tuple[Axis | None, str]:
        return select_view(self.axes, self.choice)

    @property
    def x(self) -> Axis | None:
        """The horizontal axis."""
        return self._chosen_view[0]

    @property
    def view(self) -> str:
        """`heat`, `curves`, or nothing to draw along."""
        return self._chosen_view[1]

    @property
    def views(self) -> list[str]:
        """What there is to choose from."""
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
        """The metric over the axes; None where there are none."""
        return self._drawn[0]

    @property
    def omitted_lines(self) -> int:
        """How many lines it leaves out."""
        return self._drawn[1]

    @property
    def has_limit(self) -> bool:
        """Whether it has the line of a limit."""
        return self.view == "curves" and self.metric is not None and _limit(self.choice, self.metric) is not None

    @property
    def usable(self) -> int:
        """The number of usable runs."""
        return sum(len(point.valid) for point in self.points)

    @property
    def invalid(self) -> int:
        """The number of invalid runs."""
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
        """Whether there are controls among faults."""
        return bool(split_controls(self.measured)[1])

    @property
    def facts(self) -> list[tuple[str, str]]:
        """When and on what; several values of one thing are all named."""
        return _facts(self.entries)

    @property
    def controls(self) -> list[str]:
        """What a heat map has no cell for: runs without a fault among runs with one."""
        return _controls(self.measured, self.cell_axes, self.metric) if self.view == "heat" else []

    def row(self, point: Point) -> dict[str, Any]:
        """The texts of one configuration."""
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
        """The kinds of reasons why experiments are not valid, the commonest first: how many, and the newest example."""
        found: dict[str, list[tuple[IndexEntry, str]]] = {}
        for entry in self.members:
            for reason in explain_reasons(entry.reasons, entry.metrics) if entry.status != "valid" else ():
                found.setdefault(f"{entry.status} {reason.partition(':')[0]}", []).append((entry, reason))
        return [(len(cases), cases[-1][1], cases[-1][0]) for cases in sorted(found.values(), key=len, reverse=True)]

    def summary(self, figures: dict[str, go.Figure]) -> dict[str, Any] | None:
        """What is said on top; adds the front to `figures`. Of a wish that is none it says why."""
        # Statistics take a second to import, and not every page needs them.
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
        """For each axis its name, and a small figure along it of every known figure of an overview."""
        wanted = [metric for metric in metrics_in(Sheet.COMPARED) if metric in self.metrics]
        found = []
        for x in self.axes[:MAX_AXES]:
            others = [axis for axis in self.axes if axis.key != x.key]
            points = sort_points(self.measured, [*others, x])
            drawn = [(one, configurations.curves(points, x, others, one, small=True)[0]) for one in wanted]
            found.append((x.name, [(one, figure) for one, figure in drawn if figure.data]))
        return [(name, figures) for name, figures in found if figures]


def select_metric(metrics: Sequence[Metric], key: str) -> Metric | None:
    """The metric of that key, by default the latency p99 or else the first; None when there is none at all."""
    if not metrics:
        return None
    for metric in metrics:
        if metric.key == (key or DEFAULT):
            return metric
    if key:
        raise PageNotFound(f"No valid record here has the metric {key}.")
    return metrics[0]


def select_group(entries: Sequence[IndexEntry], group: str) -> tuple[str, list[str]]:
    """The group of that name, by default the newest one with a valid record, and all groups.

    Of a night it is the night's own: a baseline that is measured beside it may be measured last.
    """
    groups = groups_of(entries)
    if group and group not in groups:
        raise PageNotFound(f"No record here is of build {group}.")
    own = [entry for entry in entries if not entry.series.endswith(BASELINE)] or entries
    believed = groups_of([entry for entry in own if entry.sound])
    return group or (believed or groups_of(own))[0], groups


def _parse_limit(name: str, text: str) -> float | None:
    """A limit as it was typed; None where nothing was."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: {text} is no number; give one above 0") from None


def _limit(choice: SweepPageQuery, metric: Metric | None) -> float | None:
    """What advice is asked to keep of the figure that is drawn; None where nothing is, or what is no limit."""
    if not any(choice.limits.values()):
        return None
    from faultline.comparison.candidates import COSTS

    asked = next((text for cost, text in choice.limits.items() if metric and COSTS.get(cost) == metric.key), "")
    try:
        limit = _parse_limit("", asked)
    except ConfigError:
        return None
    return limit if limit is not None and math.isfinite(limit) and limit > 0 else None


def select_view(axes: Sequence[Axis], choice: SweepPageQuery) -> tuple[Axis | None, str]:
    """The horizontal axis and the view; a heat map where there are two axes and both are numbers."""
    if choice.view not in ("", "heat", "curves"):
        raise PageNotFound(f"No view is called {choice.view}.")
    if choice.x and choice.x not in [axis.key for axis in axes]:
        raise PageNotFound(f"The valid records here do not differ in {choice.x}.")
    if not axes:
        return None, ""
    x = next((axis for axis in axes if axis.key == choice.x), None) or _best_axis(axes)
    return x, "heat" if _two_numbers(axes) and choice.view != "curves" else "curves"


def _best_axis(axes: Sequence[Axis]) -> Axis:
    """The first axis along which there are no more lines than colours, else the one with the fewest lines."""
    cells = math.prod(len(axis.values) for axis in axes)
    few = (axis for axis in axes if cells <= len(axis.values) * len(SERIES_COLOURS))
    return next(few, max(axes, key=lambda axis: len(axis.values)))


def _two_numbers(axes: Sequence[Axis]) -> bool:
    return len(axes) == 2 and all(axis.numeric for axis in axes)


def _facts(entries: Sequence[IndexEntry]) -> list[tuple[str, str]]:
    """When and on what; several values of one thing are all named."""
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
    """What a heat map has no cell for: runs without a fault among runs with one."""
    texts = []
    for point in split_controls(points)[1]:
        one = point.figure(metric.key) if metric else Figure(0)
        if metric and one.median is not None:
            where = ", ".join(axis.text_of(point) for axis in axes)
            spread = f", {one.spread(metric)}" if one.spread(metric) else ""
            texts.append(f"{where}: {one.text(metric)} {metric.unit}{spread} (n = {one.n})")
    return texts
