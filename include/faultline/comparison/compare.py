"""Two sides, compared cell by cell and metric by metric."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from faultline.comparison.cells import Axis, Point, axes_of, in_order, points_of
from faultline.comparison.selection import Side, require_apart, side_of
from faultline.comparison.statistics.comparison import Comparison, Verdict, between, compare
from faultline.comparison.statistics.intervals import Interval
from faultline.comparison.statistics.sample import Sample
from faultline.records.catalogue import CENSORED_AT, COMPARABLE, LESS, MACRO, USUAL, Metric, value_of
from faultline.records.format import FAULT_KEYS, NONE, WIDTH
from faultline.records.index import Index
from faultline.records.summary import Entry
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.text import finite, suggest

# Counted from the fault on, so that a record that saw no recovery tells how long it was at least.
_SINCE_FAULT = frozenset({MACRO, "recovery.reload_s"})

_COLUMNS = {
    "Configuration": "cell", "Metric": "metric", "A": "before", "B": "after", "Change": "change", "p": "p",
    "Verdict": "verdict", "": "remark",
}  # fmt: skip
_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.SAME: "", Verdict.CANNOT_TELL: "dim"}


@dataclass(frozen=True)
class Row:
    """One metric of one cell: a configuration that both sides have measured."""

    point: Point
    metric: Metric
    comparison: Comparison


@dataclass(frozen=True)
class Compared:
    """All rows in the order of the axes, the axes, and how many configurations only one side has."""

    rows: tuple[Row, ...]
    axes: tuple[Axis, ...]
    only: tuple[int, int]

    def of(self, verdict: Verdict) -> list[Row]:
        """The rows with this verdict."""
        return [row for row in self.rows if row.comparison.verdict is verdict]


def compare_named(before: str, after: str, metrics: Sequence[str], *, matrix: str | None = None) -> Compared:
    """Compares two sides by their names; `metrics` by their paths, the usual ones when none is given.

    Raises ConfigError when a side has no valid record, when both share one, or when no configuration is on both.
    """
    settings = load_settings()
    chosen = metrics_named(metrics or USUAL)
    index = Index(settings.results, settings.home)
    index.refresh()
    a, b = (side_of(index, name, settings.root, matrix=matrix) for name in (before, after))
    require_apart(a, b)
    compared = compare_sides(a, b, chosen)
    if not compared.rows:
        raise ConfigError(
            f"{after}: no configuration of it was measured by {before} too; give two that share configurations"
        )
    return compared


def metrics_named(names: Sequence[str]) -> list[Metric]:
    """The metrics with these paths. Raises ConfigError for one that is unknown or has no better direction."""
    for name in names:
        if name not in COMPARABLE:
            raise ConfigError(f"--metric {name}: no figure of which less or more is better{suggest(name, COMPARABLE)}")
    return [COMPARABLE[name] for name in names]


def compare_sides(before: Side, after: Side, metrics: Sequence[Metric]) -> Compared:
    """Compares what both sides have measured; each metric is a family of its own, corrected across its cells."""
    sides = [{point.config_id: point for point in points_of(side.entries)} for side in (before, after)]
    both = [point for config_id, point in sides[0].items() if config_id in sides[1]]
    axes = axes_of(both)
    ordered = in_order(both, axes)
    controls = [point for side in sides for point in side.values() if point.control]
    found: dict[tuple[str, str], Comparison] = {}
    for metric in metrics:
        pairs = {
            point.config_id: (a, b)
            for point in ordered
            for a, b in [[sample_of(side[point.config_id].valid, metric.key) for side in sides]]
            if len(a) and len(b)
        }
        floors = {
            key: max(_floor(sides[0][key], controls, metric.key), _between(sides[0][key], metric.key)) for key in pairs
        }
        compared = compare(pairs, lower_is_better=metric.better == LESS, floors=floors)
        found.update({(key, metric.key): one for key, one in compared.items()})
    rows = [
        Row(point, metric, found[point.config_id, metric.key])
        for point in ordered
        for metric in metrics
        if (point.config_id, metric.key) in found
    ]
    return Compared(tuple(rows), tuple(axes), (len(sides[0]) - len(both), len(sides[1]) - len(both)))


def sample_of(entries: Iterable[Entry], key: str) -> Sample:
    """The known values of a figure; a recovery that was not seen to end is censored where the watch ended."""
    values: list[tuple[float, bool]] = []
    for entry in entries:
        value = value_of(entry, key)
        if value is not None:
            values.append((value, False))
        elif key in _SINCE_FAULT and entry.metrics.get("recovery.recovered") is False:
            watched = value_of(entry, CENSORED_AT)
            if watched is not None:
                values.append((watched, True))
    return Sample(tuple(value for value, _ in values), tuple(censored for _, censored in values))


def _floor(point: Point, controls: Sequence[Point], key: str) -> float:
    """By which share runs without a fault differ: of the controls with the same settings, else of all; the largest.

    Nothing for a control itself, whose own repetitions say it, and where no control knows the figure.
    """
    if point.control:
        return 0.0
    own = [control for control in controls if _without_fault(control) == _without_fault(point)]
    spreads = [sample_of(control.valid, key).spread for control in own or controls]
    return max((spread for spread in spreads if spread is not None), default=0.0)


def _between(point: Point, key: str) -> float:
    """By which share its series differ from each other, where it has several: those of a baseline are its nights."""
    by_series: dict[str, list[Entry]] = {}
    for entry in point.valid:
        by_series.setdefault(entry.series, []).append(entry)
    return between([sample_of(entries, key) for entries in by_series.values()])


def _without_fault(point: Point) -> str:
    return json.dumps({name: value for name, value in point.config.items() if name not in FAULT_KEYS}, sort_keys=True)


def texts(row: Row, axes: Sequence[Axis]) -> dict[str, str]:
    """A row as texts: cell, metric, before, after, change, p, verdict, and what else a reader should know."""
    metric, one = row.metric, row.comparison
    change = one.change
    return {
        "cell": ", ".join(axis.said(row.point) for axis in axes) or row.point.config_id,
        "metric": metric.title,
        "before": side_text(metric, one.before),
        "after": side_text(metric, one.after),
        "change": NONE if change is None else f"{change.value:+.1%} [{change.low:+.1%}, {change.high:+.1%}]",
        "p": f"{one.p:.2g}",
        "verdict": str(one.verdict),
        "remark": _remark(one),
    }


def print_comparison(compared: Compared, before: str, after: str) -> None:
    """The table on standard output, 120 columns wide where it is no terminal, and what was left out of it."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, key in _COLUMNS.items():
        table.add_column({"A": before, "B": after}.get(heading, heading), overflow="fold", no_wrap=key == "verdict")
    for row in compared.rows:
        said = texts(row, compared.axes)
        table.add_row(*(Text(said[key]) for key in _COLUMNS.values()), style=_STYLES[row.comparison.verdict])
    console.print(table)
    alone = [f"{n} only in {name}" for n, name in zip(compared.only, (before, after), strict=True) if n]
    if alone:
        console.print(Text(f"Configurations left out: {', '.join(alone)}.", style="dim"))


def side_text(metric: Metric, sample: Sample) -> str:
    """Median and number of repetitions; of censored ones how many."""
    ended = metric.text(sample.median) if sample.median < float("inf") else f"> {metric.text(max(sample.values))}"
    censored = sum(sample.censored)
    return f"{ended} (n={len(sample)}{f', {censored} censored' if censored else ''})"


def _remark(one: Comparison) -> str:
    if one.why:
        return one.why
    if one.verdict is not Verdict.CANNOT_TELL:
        return ""
    if one.detectable is None:
        return "no difference would show with so few repetitions"
    return f"{one.detectable:.0%} or more would have shown"


def as_json(compared: Compared) -> list[dict[str, Any]]:
    """The rows for programs: shares as numbers, an unknown or infinite one null."""
    return [
        {
            "config_id": row.point.config_id,
            "config": dict(row.point.config),
            "metric": row.metric.key,
            "unit": row.metric.unit,
            "before": _side(row.comparison.before),
            "after": _side(row.comparison.after),
            "change": _change(row.comparison.change),
            "p": row.comparison.p,
            "verdict": str(row.comparison.verdict),
            "detectable": row.comparison.detectable,
            "noise_floor": row.comparison.floor,
            "remark": _remark(row.comparison),
        }
        for row in compared.rows
    ]


def _side(sample: Sample) -> dict[str, float | None]:
    return {"median": finite(sample.median), "n": len(sample), "censored": sum(sample.censored)}


def _change(change: Interval | None) -> dict[str, float | None] | None:
    return None if change is None else {name: finite(value) for name, value in asdict(change).items()}
