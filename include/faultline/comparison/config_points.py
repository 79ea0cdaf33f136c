"""Records beside each other: points, each one configuration measured with one build, and the axes they differ in."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from faultline.comparison.statistics.estimate import ValueRange
from faultline.experiment.config import NAMES_OF_NOTHING, Configuration
from faultline.experiment.named_settings import is_setting, split_name, spread
from faultline.experiment.workloads.registry import own_fields
from faultline.records.catalogue import CENSORED_AT, MACRO, bounds_of, value_of
from faultline.records.columns import Metric
from faultline.records.format import CONTROL, NONE, fault_of, plain
from faultline.records.index_entry import IndexEntry
from faultline.records.record import JUDGED
from faultline.system.text import sort_key

FAULT, RELOAD = "fault", "recovery.reload_s"
_DEFAULTS = {name: field.default for name, field in Configuration.model_fields.items()}
_ORDER = {name: number for number, name in enumerate(_DEFAULTS)}
# Told by the fault in words, or following from other parameters.
_IN_FAULT = frozenset({"fault", "fault_action"})
_DERIVED_FROM = {
    "fault_at_s": ("checkpoint_interval_s", "warmup_s", FAULT),
    "duration_s": ("checkpoint_interval_s", FAULT),
}
_OWN = own_fields().keys()
_UNITS = {"_s": "s", "_mb": "MB"}
MAX_LABEL = 60
_MISSING = object()


@dataclass(frozen=True)
class Figure:
    """Repetitions of one figure. `median`, `low`, `high` are None when one of `n` values is unknown.

    `bound`: of some repetitions only a lower bound is known, so the true median is at least `median`.
    """

    n: int
    median: float | None = None
    low: float | None = None
    high: float | None = None
    bound: bool = False

    def text(self, metric: Metric) -> str:
        """The median as text, `> 33.9` or so when it is a bound."""
        return f"> {metric.text(self.median)}" if self.bound else metric.text(self.median)

    def spread(self, metric: Metric) -> str:
        """Least to greatest; empty for a single value."""
        if self.n < 2 or self.low is None or self.high is None:
            return ""
        return f"{metric.text(self.low)} – {metric.text(self.high)}"


@dataclass(frozen=True)
class Point:
    """All records of one configuration and one group (build and series), in order of attempt."""

    config_id: str
    config: Mapping[str, Any]
    entries: tuple[IndexEntry, ...]

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The configuration, each setting of its objects a parameter of its own."""
        return spread(self.config)

    @cached_property
    def valid(self) -> tuple[IndexEntry, ...]:
        """Those that are measured and believed; only they make figures."""
        return tuple(entry for entry in self.entries if entry.sound)

    @cached_property
    def invalid(self) -> tuple[IndexEntry, ...]:
        """Those that have figures which do not count."""
        return tuple(entry for entry in self.entries if not entry.sound and entry.status in JUDGED and entry.metrics)

    @property
    def is_control(self) -> bool:
        """Whether nothing was broken."""
        return fault_of(self.config) == CONTROL

    def figure(self, key: str) -> Figure:
        """Median and range of one figure over the valid repetitions."""
        if key not in self._figures:
            self._figures[key] = _summarise(self.valid, key)
        return self._figures[key]

    def invalid_figure(self, key: str) -> Figure:
        """Median and range of one figure over the invalid repetitions, for a place that has nothing better."""
        return _summarise(self.invalid, key)

    @cached_property
    def _figures(self) -> dict[str, Figure]:
        return {}


def value_or_bound(entry: IndexEntry, key: str) -> tuple[float, bool] | None:
    """One figure of one record, and whether it is a lower bound; None where it is unknown."""
    value = value_of(entry, key)
    if value is None and key == MACRO and entry.metrics.get("recovery.recovered") is False:
        # Watched that long and not seen: the true value lies above, so the true median does, too.
        value = value_of(entry, CENSORED_AT)
        return None if value is None else (value, True)
    return None if value is None else (value, False)


def _summarise(entries: Sequence[IndexEntry], key: str) -> Figure:
    known = [one for entry in entries if (one := value_or_bound(entry, key)) is not None]
    n = len(known)
    if not n or n < len(entries):
        return Figure(n)
    values = [value for value, _ in known]
    return Figure(n, statistics.median(values), min(values), max(values), any(bound for _, bound in known))


def interval_of(entry: IndexEntry, key: str) -> ValueRange | None:
    """A figure of one record, as exactly as it is known: a recovery as the interval that holds it, without an upper end
    where it was not seen to end. None where nothing is known of it."""
    found = bounds_of(entry, key)
    if found is None and key == RELOAD and entry.metrics.get("recovery.recovered") is False:
        watched = value_of(entry, CENSORED_AT)
        found = None if watched is None else (watched, math.inf)
    return None if found is None else ValueRange(*found)


def values_of(entries: Iterable[IndexEntry], key: str) -> tuple[ValueRange, ...]:
    """The known values of a figure."""
    found = (interval_of(entry, key) for entry in entries)
    return tuple(value for value in found if value is not None)


@dataclass(frozen=True)
class Axis:
    """A parameter in which points differ. `numeric`: all its values are numbers."""

    key: str
    numeric: bool
    values: tuple[Any, ...]

    @property
    def noun(self) -> str:
        """Readable name without unit; a setting's own name."""
        if (parts := split_name(self.key)) is not None:
            return parts[1]
        return self.key.removesuffix("_s").removesuffix("_mb").replace("_", " ")

    @property
    def unit(self) -> str:
        """Unit of its values; empty where there is none, and of settings, whose values say it."""
        if is_setting(self.key):
            return ""
        unit = "records/s" if self.key == "rate" else ""
        return next((unit for suffix, unit in _UNITS.items() if self.key.endswith(suffix)), unit)

    @property
    def name(self) -> str:
        """Readable name with unit."""
        return f"{self.noun} ({self.unit})" if self.unit else self.noun

    def of(self, point: Point) -> Any:
        """The point's value on this axis."""
        return _value(point.parameters, self.key)

    def label(self, point: Point) -> str:
        """The point's value on this axis as text."""
        return label(self.of(point))

    def value_text(self, point: Point) -> str:
        """The value as text, with its unit where it is a number: `5 s`."""
        value = self.of(point)
        return f"{label(value)} {self.unit}" if self.unit and is_number(value) else label(value)

    def text_of(self, point: Point) -> str:
        """Name and value: `checkpoint interval 5 s`; a fault needs no name before it."""
        return self.value_text(point) if self.key == FAULT else f"{self.noun} {self.value_text(point)}"


def points_of(entries: Sequence[IndexEntry]) -> list[Point]:
    """One point a configuration. `entries` must be of one group: builds are never mixed in a point."""
    gathered: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        gathered.setdefault(entry.config_id, []).append(entry)
    return [Point(config_id, members[0].config, tuple(members)) for config_id, members in gathered.items()]


def groups_of(entries: Sequence[IndexEntry]) -> list[str]:
    """The groups that entries belong to, the one that was measured last first."""
    newest: dict[str, str] = {}
    for entry in entries:
        group = entry.group
        newest[group] = max(newest.get(group, ""), entry.measured_at)
    return sorted(newest, key=lambda group: newest[group], reverse=True)


def split_controls(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """The points, and the controls among them. Where nothing is broken at all, runs without a fault are the points."""
    breaking = [point for point in points if not point.is_control]
    return (breaking, [point for point in points if point.is_control]) if breaking else (list(points), [])


def axes_of(points: Sequence[Point]) -> list[Axis]:
    """The parameters in which the points differ, numbers first, each in the order of the configuration.

    Controls among faults do not make the fault an axis; they are shown apart.
    """
    breaking, _ = split_controls(points)
    keys = {key for point in breaking for key in point.parameters} | {FAULT}
    axes = []
    for key in keys - (_IN_FAULT - {FAULT}):
        values = {
            sort_key(value): value for point in breaking if (value := _value(point.parameters, key)) is not _MISSING
        }
        if len(values) > 1:
            ordered = tuple(values[place] for place in sorted(values))
            axes.append(Axis(key, all(is_number(value) for value in ordered), ordered))
    axes = [axis for axis in axes if not _is_derived(axis.key, breaking)]
    # The fault in words says it already where each plan has words of its own.
    words = next((axis for axis in axes if axis.key == FAULT), None)
    axes = [axis for axis in axes if axis.key != "fault_plan" or words is None or len(words.values) < len(axis.values)]
    return sorted(axes, key=lambda axis: (not axis.numeric, _ORDER.get(axis.key, len(_ORDER)), axis.key))


def names_of(points: Sequence[Point]) -> dict[str, str]:
    """Each configuration by what tells it from the others, and its fault: `checkpoint interval 5 s, executor kill`."""
    axes = [axis for axis in axes_of(points) if axis.key != FAULT]
    return {
        point.config_id: ", ".join([*(axis.text_of(point) for axis in axes), fault_of(point.config)])
        for point in points
    }


def _is_derived(key: str, points: Sequence[Point]) -> bool:
    """Whether a parameter is derived from others, or is one that only some workloads have, and differs among these
    points only where those do."""
    sources = ("workload",) if key.partition(".")[0] in _OWN else _DERIVED_FROM.get(key)
    if not sources:
        return False
    found: dict[str, set[Any]] = {}
    for point in points:
        place = json.dumps([sort_key(_value(point.parameters, source)) for source in sources])
        found.setdefault(place, set()).add(sort_key(_value(point.parameters, key)))
    return len(found) > 1 and all(len(values) == 1 for values in found.values())


def sort_points(points: Sequence[Point], axes: Sequence[Axis]) -> list[Point]:
    """Along the axes, the last one fastest; controls after the others."""
    return sorted(
        points,
        key=lambda point: (
            point.is_control,
            [sort_key(None if axis.of(point) is _MISSING else axis.of(point)) for axis in axes],
            point.config_id,
        ),
    )


def label(value: Any) -> str:
    """A value of a parameter as text: numbers as the figures beside them, with thousands apart; cut when it is long."""
    if value is None or value is _MISSING:
        return NONE
    if is_number(value):
        return f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list) else plain(value)
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _value(config: Mapping[str, Any], key: str) -> Any:
    """Of a parameter that an older record does not have, the default, which is what it ran with."""
    if key == FAULT:
        return fault_of(config)
    value = config.get(key, _DEFAULTS.get(key, _MISSING))
    return NAMES_OF_NOTHING.get(key) if value is None else value


def is_number(value: Any) -> bool:
    """Whether it is a number that has a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# Neighbours along an axis: two configurations that differ in one parameter, and in nothing else that was chosen.


@dataclass(frozen=True)
class AxisStep:
    """From one value of an axis to the next that was measured with the same values on every other axis."""

    axis: Axis
    before: Point
    after: Point

    @property
    def label(self) -> str:
        """Both values in words, such as `5 instead of 2`."""
        return f"{self.axis.label(self.after)} instead of {self.axis.label(self.before)}"


def axis_steps(points: Sequence[Point], axis: Axis, axes: Sequence[Axis]) -> list[AxisStep]:
    """The steps between neighbours along `axis`, where the other ones of `axes` stay; in the order of those, then of
    this one. Controls among faults are in none."""
    breaking, _ = split_controls(points)
    rest = [other for other in axes if other.key != axis.key]
    rows: dict[tuple[object, ...], list[Point]] = {}
    for point in breaking:
        rows.setdefault(tuple(sort_key(other.of(point)) for other in rest), []).append(point)
    return [
        AxisStep(axis, before, after)
        for place in sorted(rows)
        for before, after in pairwise(sorted(rows[place], key=lambda point: sort_key(axis.of(point))))
        if sort_key(axis.of(before)) != sort_key(axis.of(after))
    ]
