"""Charts of a results page: metrics of each matrix and their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.comparison.config_points import FAULT, Axis, Point, label, sort_points, value_or_bound
from faultline.records.catalogue import BY_KEY
from faultline.reports.markdown.svg import ChartLine, ChartPoint, Panel, draw_chart

# Limits: more charts would clutter the page, and more lines would be indistinguishable.
MAX_CHARTS, MAX_LINES = 2, 8


@dataclass(frozen=True)
class Chart:
    """Panels side by side; `name` is part of the file name, `title` the alternative text.

    `x`: key of the horizontal axis (default: the first that varies). `pooled`: keys of axes whose values share a point.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    x: str | None = None
    pooled: tuple[str, ...] = ()


_LATENCY = Chart("latency", "Latency", ("latency_ms.mean", "latency_ms.p50", "latency_ms.p99"))
_RECOVERY = Chart("recovery", "Recovery", ("recovery.reload_s", "recovery.replay_s", "recovery.macro_s"))
_RESOURCES = Chart("resources", "GC, CPU and tasks", ("gc_s", "cpu_cores.executors", "work.task_s"))
_NON_COMPUTE = Chart("latency", "Latency", ("non_compute_ms", "latency_ms.p50", "latency_ms.p99"))
_LOAD = Chart("resources", "Throughput, GC and CPU", ("throughput_rps", "gc_s", "cpu_cores.executors"))
_EVENTS = Chart("throughput", "Throughput and CPU", ("rps_per_core", "throughput_rps", "cpu_cores.executors"))
_SPEED = Chart(
    "throughput", "Throughput, latency and queues", ("throughput_rps", "latency_ms.mean", "stages.most_queued")
)
_RECOVERY_OF_BOTH = Chart("recovery", "Recovery, states pooled", _RECOVERY.keys, FAULT, ("state_mb",))
_LATENCY_OF_BOTH = Chart("latency", "Latency, states pooled", _LATENCY.keys, FAULT, ("state_mb",))
# Charts in order of importance; the first MAX_CHARTS that have data are drawn.
CHARTS: Mapping[str, tuple[Chart, ...]] = {
    "state_size_x_checkpoint_interval": (_LATENCY, _RECOVERY, _RESOURCES),
    "skew_x_alignment_mode": (_LATENCY, _RESOURCES),
    "compute_x_checkpoint_interval": (_LATENCY, _RESOURCES),
    "input_rate": (_NON_COMPUTE, _LOAD),
    "executor_cores": (_NON_COMPUTE, _LOAD),
    "recovery": (_RECOVERY, _LATENCY),
    "spark_and_flink_recovery": (_RECOVERY_OF_BOTH, _LATENCY_OF_BOTH),
    "flink_alignment": (_LATENCY, _RESOURCES),
    "network_faults": (_RECOVERY, _LATENCY),
    "nexmark": (_EVENTS, _LATENCY),
    "topology_optimisation": (_SPEED, _LATENCY, _RESOURCES),
    "sweep": (_LATENCY, _RECOVERY, _RESOURCES),
}


def draw_charts(matrix: str, points: Sequence[Point], axes: Sequence[Axis]) -> list[tuple[Chart, str]]:
    """Return each chart with data as SVG."""
    measured = [point for point in points if point.valid or point.invalid]
    varied = [axis for axis in axes if len(axis.values) > 1]
    drawn = []
    for chart in CHARTS[matrix]:
        wanted = [axis for axis in varied if axis.key == chart.x]
        x = next(iter(wanted or varied), axes[0])
        others = [axis for axis in varied if axis != x and axis.key not in chart.pooled]
        lines: dict[str, list[Point]] = {}
        for point in _pool(sort_points(measured, others), (x, *others)):
            lines.setdefault(", ".join(_named(axis, point) for axis in others), []).append(point)
        ticks = [label(value) for value in x.values]
        panels = [_panel(key, _most_measured(lines), x, ticks) for key in chart.keys]
        kept = [panel for panel in panels if any(line.points or line.invalid for line in panel.lines)]
        if kept:
            drawn.append((chart, draw_chart(kept, ticks, x.name, f"{chart.title} by {x.name}")))
    return drawn[:MAX_CHARTS]


def _pool(points: Sequence[Point], kept: Sequence[Axis]) -> list[Point]:
    """Return one point, with all entries, for the points that do not differ on the axes `kept`."""
    gathered: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        gathered.setdefault(tuple(axis.label(point) for axis in kept), []).append(point)
    return [
        replace(alike[0], entries=tuple(entry for point in alike for entry in point.entries))
        for alike in gathered.values()
    ]


def _most_measured(lines: Mapping[str, Sequence[Point]]) -> list[tuple[str, Sequence[Point]]]:
    """Return the MAX_LINES lines with the most records, in the given order."""
    ranked = sorted(lines, key=lambda name: -sum(len(point.entries) for point in lines[name]))
    return [(name, points) for name, points in lines.items() if name in ranked[:MAX_LINES]]


def _named(axis: Axis, point: Point) -> str:
    """Return `state (MB) 8`; a fault is given without the name of its axis."""
    return axis.label(point) if axis.key == FAULT else f"{axis.name} {axis.label(point)}"


def _panel(key: str, lines: Sequence[tuple[str, Sequence[Point]]], x: Axis, ticks: Sequence[str]) -> Panel:
    return Panel(
        BY_KEY[key].title,
        tuple(
            ChartLine(
                name,
                tuple(_points(key, points, x, ticks)),
                joined=x.numeric,
                invalid=tuple(_invalid(key, points, x, ticks)),
            )
            for name, points in lines
        ),
    )


def _invalid(key: str, points: Sequence[Point], x: Axis, ticks: Sequence[str]) -> Iterator[tuple[int, float, str]]:
    """Yield position, value and reason of each invalid run."""
    for point in points:
        for entry in point.invalid if x.label(point) in ticks else ():
            if (seen := value_or_bound(entry, key)) is not None:
                why = f"{entry.status}: {next(iter(entry.reasons), 'unknown reason')}"
                yield list(ticks).index(x.label(point)), seen[0], why


def _points(key: str, points: Sequence[Point], x: Axis, ticks: Sequence[str]) -> Iterator[ChartPoint]:
    """Yield points in order of the axis, without those that lack a position or a value."""
    for index, tick in enumerate(ticks):
        for point in points:
            one = point.figure(key)
            if x.label(point) == tick and one.median is not None and one.low is not None and one.high is not None:
                yield ChartPoint(index, one.median, one.low, one.high, one.bound, one.n)
