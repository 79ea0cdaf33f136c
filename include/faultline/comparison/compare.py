"""Comparison of two groups of records, by configuration and metric."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy import stats

from faultline.comparison.config_points import Axis, Point, axes_of, points_of, sort_points, values_of
from faultline.comparison.selection import RecordGroup, require_disjoint, select_group
from faultline.comparison.statistics.estimate import (
    ALPHA,
    MIN_REPETITIONS,
    NEGLIGIBLE,
    EffectEstimate,
    Interval,
    PairedRow,
    ValueRange,
    Values,
    detectable_effect,
    equivalence_p,
    estimate,
    holm,
    median_of,
    p_text,
    share_of,
    spread_of,
)
from faultline.records.catalogue import COMPARABLE, USUAL
from faultline.records.columns import LESS, Metric
from faultline.records.format import FAULT_KEYS, NONE, WIDTH
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.renames import renamed_figure
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.text import finite_or_none, suggest

_COLUMNS = {
    "Configuration": "cell", "Metric": "metric", "A": "before", "B": "after", "Change": "change", "p": "p",
    "Verdict": "verdict", "": "remark",
}  # fmt: skip
# A series is a group of runs that may be averaged; fewer series do not show how much series vary.
MIN_SERIES = 3
Key = TypeVar("Key", bound=Hashable)


class ComparisonVerdict(StrEnum):
    """Verdict on one compared metric."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


_STYLES = {
    ComparisonVerdict.BETTER: "green",
    ComparisonVerdict.WORSE: "red",
    ComparisonVerdict.EQUIVALENT: "",
    ComparisonVerdict.INCONCLUSIVE: "dim",
}


@dataclass(frozen=True)
class Comparison:
    """Comparison of one metric between two sides.

    `p`: corrected for the other comparisons of the metric. `change`: relative change from before to after, with its
    95 % interval. `detectable`: minimum detectable relative change at 80 % power; None if the variation is unknown.
    `floor`: noise floor (variation without any change), as a share. `why`: what prevents a verdict.
    """

    before: Values
    after: Values
    verdict: ComparisonVerdict
    p: float
    change: Interval | None
    detectable: float | None
    floor: float
    why: str = ""


@dataclass(frozen=True)
class ComparisonLine:
    """One metric of one configuration that both sides have measured."""

    point: Point
    metric: Metric
    comparison: Comparison


@dataclass(frozen=True)
class ComparisonTable:
    """All rows in the order of the axes. `unmatched`: configurations on side A only, on side B only."""

    rows: tuple[ComparisonLine, ...]
    axes: tuple[Axis, ...]
    unmatched: tuple[int, int]

    def of(self, verdict: ComparisonVerdict) -> list[ComparisonLine]:
        """Return the rows with this verdict."""
        return [row for row in self.rows if row.comparison.verdict is verdict]


def compare_named(before: str, after: str, metrics: Sequence[str], *, matrix: str | None = None) -> ComparisonTable:
    """Compare two sides by name.

    `metrics`: keys of the metrics; empty: the default ones. Raises ConfigError if a side has no usable record, if a
    record is on both sides, or if no configuration is.
    """
    settings = load_settings()
    chosen = metrics_named(metrics or USUAL)
    index = Index(settings.results, settings.home)
    index.refresh()
    a, b = (select_group(index, name, settings.root, matrix=matrix) for name in (before, after))
    require_disjoint(a, b)
    compared = compare_sides(a, b, chosen)
    if not compared.rows:
        raise ConfigError(
            f"{after}: no configuration in common with {before}; expected two sides that share configurations"
        )
    return compared


def metrics_named(names: Sequence[str]) -> list[Metric]:
    """Return the metrics with these keys. Raises ConfigError if one is unknown or not comparable."""
    names = [renamed_figure(name) for name in names]
    for name in names:
        if name not in COMPARABLE:
            raise ConfigError(f"--metric: got {name}; expected a comparable metric{suggest(name, COMPARABLE)}")
    return [COMPARABLE[name] for name in names]


def compare_sides(before: RecordGroup, after: RecordGroup, metrics: Sequence[Metric]) -> ComparisonTable:
    """Compare the configurations that both sides have; p values are corrected per metric, across configurations."""
    sides = [{point.config_id: point for point in points_of(side.entries)} for side in (before, after)]
    both = [point for config_id, point in sides[0].items() if config_id in sides[1]]
    axes = axes_of(both)
    ordered = sort_points(both, axes)
    controls = [point for side in sides for point in side.values() if point.is_control]
    found: dict[tuple[str, str], Comparison] = {}
    for metric in metrics:
        pairs = {
            point.config_id: (a, b)
            for point in ordered
            for a, b in [[values_of(side[point.config_id].valid, metric.key) for side in sides]]
            if len(a) and len(b)
        }
        floors = {
            key: max(
                _noise_floor(sides[0][key], controls, metric.key), _noise_between_series(sides[0][key], metric.key)
            )
            for key in pairs
        }
        compared = compare(pairs, lower_is_better=metric.better == LESS, floors=floors)
        found.update({(key, metric.key): one for key, one in compared.items()})
    rows = [
        ComparisonLine(point, metric, found[point.config_id, metric.key])
        for point in ordered
        for metric in metrics
        if (point.config_id, metric.key) in found
    ]
    return ComparisonTable(tuple(rows), tuple(axes), (len(sides[0]) - len(both), len(sides[1]) - len(both)))


def compare(
    pairs: Mapping[Key, tuple[Values, Values]], *, lower_is_better: bool, floors: Mapping[Key, float] | None = None
) -> dict[Key, Comparison]:
    """Compare one metric in several configurations; `pairs`: values (before, after) by configuration.

    `floors`: noise floor by configuration, as a share. A difference counts if its corrected p is at most 0.05 and its
    size exceeds both the floor and 5 %. Two sides are equivalent if the difference is shown to be below 5 %.
    """
    drafts = {key: _Draft.of(*pair) for key, pair in pairs.items() if min(map(len, pair)) >= MIN_REPETITIONS}
    differ = holm({key: draft.found.p for key, draft in drafts.items()})
    close = holm({key: draft.p_same for key, draft in drafts.items()})
    found = {}
    for key, (before, after) in pairs.items():
        floor = (floors or {}).get(key, 0.0)
        if key not in drafts:
            change = _Draft.of(before, after).change if min(len(before), len(after)) > 1 else None
            why = f"{min(len(before), len(after))} of {MIN_REPETITIONS} repetitions"
            found[key] = Comparison(before, after, ComparisonVerdict.INCONCLUSIVE, 1.0, change, None, floor, why)
        else:
            draft, p = drafts[key], differ[key]
            verdict = draft.verdict(p, close[key], lower_is_better, floor)
            why = draft.why(p, floor) if verdict is ComparisonVerdict.INCONCLUSIVE else ""
            seen = draft.detectable(ALPHA / len(drafts))
            # An effect within the noise floor is not reported as a difference, so it is not detectable.
            seen = None if seen is None else max(seen, floor, NEGLIGIBLE)
            found[key] = Comparison(before, after, verdict, p, draft.change, seen, floor, why)
    return found


@dataclass(frozen=True)
class _Draft:
    """Comparison before p is corrected. `ratio`: whether `found` estimates logarithms instead of the metric's unit."""

    before: Values
    after: Values
    ratio: bool
    found: EffectEstimate
    p_same: float

    @classmethod
    def of(cls, before: Values, after: Values) -> _Draft:
        ratio = all(value.low > 0 for value in (*before, *after))
        sides = [[_logarithm(value) if ratio else value for value in side] for side in (before, after)]
        rows = [PairedRow.unpaired(*sides)]
        # A relative change needs a finite baseline other than 0.
        usual = abs(median_of(before))
        margin = math.log1p(NEGLIGIBLE) if ratio else NEGLIGIBLE * usual if math.isfinite(usual) else 0.0
        return cls(before, after, ratio, estimate(rows), equivalence_p(rows, margin))

    @property
    def change(self) -> Interval | None:
        median, found = median_of(self.before), self.found.change
        if not median or not math.isfinite(median):
            return None
        shares = [share_of(one) if self.ratio else one / abs(median) for one in (found.value, found.low, found.high)]
        if math.isinf(median_of(self.after)):
            shares[0] = shares[2] = math.inf
        return Interval(*shares)

    def verdict(self, p: float, p_same: float, lower_is_better: bool, floor: float) -> ComparisonVerdict:
        values = {(value.low, value.high) for value in (*self.before, *self.after)}
        if len(values) == 1 and math.isfinite(next(iter(values))[1]):
            return ComparisonVerdict.EQUIVALENT
        # The noise floor does not matter here: if it hides a difference, the sides are not equivalent.
        if p_same <= ALPHA:
            return ComparisonVerdict.EQUIVALENT
        change, direction = self.change, self.found.direction
        if p > ALPHA or not direction or (change is not None and abs(change.value) <= max(NEGLIGIBLE, floor)):
            return ComparisonVerdict.INCONCLUSIVE
        return ComparisonVerdict.BETTER if (direction < 0) == lower_is_better else ComparisonVerdict.WORSE

    def why(self, p: float, floor: float) -> str:
        """Return what other than noise prevents a verdict; empty if nothing does."""
        median = median_of(self.before)
        if p <= ALPHA and floor > NEGLIGIBLE:
            return f"within the noise floor of {floor:.0%}"
        if not median or not math.isfinite(median):
            return "the baseline is 0" if not median else "half of the baseline is censored"
        return ""

    def detectable(self, alpha: float) -> float | None:
        """Return the minimum detectable relative change at 80 % power."""
        median, error = median_of(self.before), self.found.error
        if error is None or not median or not math.isfinite(median):
            return None
        seen = detectable_effect(error, 1.0, self.found.error_freedom, alpha)
        return share_of(seen) if self.ratio else seen / abs(median)


def series_noise(series: Sequence[Values]) -> float:
    """Return by how much a further series may differ from these without any change, as a share of their mean.

    This is the half-width of the 95 % prediction interval for the next median. A disturbance of an hour shifts all
    repetitions of a nightly run together, so repetitions within one run do not show it. Returns 0 for fewer than
    MIN_SERIES known medians.
    """
    medians = [median for one in series if math.isfinite(median := median_of(one))]
    if len(medians) < MIN_SERIES or not (mean := statistics.fmean(medians)):
        return 0.0
    quantile = stats.t.ppf(1 - ALPHA / 2, len(medians) - 1)
    return float(quantile * statistics.stdev(medians) * math.sqrt(1 + 1 / len(medians)) / abs(mean))


def _logarithm(value: ValueRange) -> ValueRange:
    return ValueRange(math.log(value.low), math.log(value.high))


def _noise_floor(point: Point, controls: Sequence[Point], key: str) -> float:
    """Return the largest relative variation of runs without a fault: controls with equal settings, else all controls.

    Returns 0 for a control, because its own repetitions show the variation, and if no control has the metric.
    """
    if point.is_control:
        return 0.0
    own = [control for control in controls if _without_fault(control) == _without_fault(point)]
    spreads = [spread_of(values_of(control.valid, key)) for control in own or controls]
    return max((spread for spread in spreads if spread is not None), default=0.0)


def _noise_between_series(point: Point, key: str) -> float:
    """Return the variation between the series of a point, for example between nightly runs of a baseline."""
    by_series: dict[str, list[IndexEntry]] = {}
    for entry in point.valid:
        by_series.setdefault(entry.series, []).append(entry)
    return series_noise([values_of(entries, key) for entries in by_series.values()])


def _without_fault(point: Point) -> str:
    return json.dumps({name: value for name, value in point.config.items() if name not in FAULT_KEYS}, sort_keys=True)


def row_texts(row: ComparisonLine, axes: Sequence[Axis]) -> dict[str, str]:
    """Return the cells of a row as text, by column."""
    metric, one = row.metric, row.comparison
    change = one.change
    return {
        "cell": ", ".join(axis.text_of(row.point) for axis in axes) or row.point.config_id,
        "metric": metric.title,
        "before": side_text(metric, one.before),
        "after": side_text(metric, one.after),
        "change": NONE if change is None else f"{change.value:+.1%} [{change.low:+.1%}, {change.high:+.1%}]",
        "p": p_text(one.p).removeprefix("= "),
        "verdict": str(one.verdict),
        "remark": _remark(one),
    }


def print_comparison(compared: ComparisonTable, before: str, after: str) -> None:
    """Print the table on standard output, and the number of unmatched configurations."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, key in _COLUMNS.items():
        table.add_column({"A": before, "B": after}.get(heading, heading), overflow="fold", no_wrap=key == "verdict")
    for row in compared.rows:
        cells = row_texts(row, compared.axes)
        table.add_row(*(Text(cells[key]) for key in _COLUMNS.values()), style=_STYLES[row.comparison.verdict])
    console.print(table)
    alone = [f"{n} only in {name}" for n, name in zip(compared.unmatched, (before, after), strict=True) if n]
    if alone:
        console.print(Text(f"Configurations omitted: {', '.join(alone)}.", style="dim"))


def side_text(metric: Metric, values: Values) -> str:
    """Return median, number of repetitions and number of censored ones as text."""
    median, censored = median_of(values), sum(math.isinf(value.high) for value in values)
    text = metric.text(median) if math.isfinite(median) else f"> {metric.text(max(value.low for value in values))}"
    return f"{text} (n={len(values)}{f', {censored} censored' if censored else ''})"


def _remark(one: Comparison) -> str:
    if one.why or one.verdict is not ComparisonVerdict.INCONCLUSIVE or one.detectable is None:
        return one.why
    return f"minimum detectable effect {one.detectable:.0%}"


def as_json(compared: ComparisonTable) -> list[dict[str, Any]]:
    """Return the rows as JSON values: shares as numbers, unknown or infinite ones as null."""
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


def _side(values: Values) -> dict[str, float | None]:
    censored = sum(math.isinf(value.high) for value in values)
    return {"median": finite_or_none(median_of(values)), "n": len(values), "censored": censored}


def _change(change: Interval | None) -> dict[str, float | None] | None:
    return None if change is None else {name: finite_or_none(value) for name, value in asdict(change).items()}
