"""Points and axes: a point holds the records of one configuration and build; axes are the varying parameters."""

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
from faultline.experiment.named_settings import is_setting, split_name, spread_settings
from faultline.experiment.workloads.registry import own_fields
from faultline.records.catalogue import CENSORED_AT, MACRO, bounds_of, value_of
from faultline.records.columns import Metric
from faultline.records.format import CONTROL, NONE, fault_of, plain
from faultline.records.index_entry import IndexEntry
from faultline.records.record import WITH_FIGURES
from faultline.system.text import sort_key

FAULT, RELOAD = "fault", "recovery.reload_s"
_DEFAULTS = {name: field.default for name, field in Configuration.model_fields.items()}
_ORDER = {name: index for index, name in enumerate(_DEFAULTS)}
# Parameters that the text of the fault axis contains.
_IN_FAULT = frozenset({"fault", "fault_action"})
# Parameters that may follow from others.
_DERIVED_FROM = {
    "fault_at_s": ("checkpoint_interval_s", "warmup_s", FAULT),
    "duration_s": ("checkpoint_interval_s", FAULT),
}
_OWN = own_fields().keys()
_UNITS = {"_s": "s", "_mb": "MB"}
MAX_LABEL = 60
_MISSING = object()
# Value of a named setting that a configuration leaves to the engine.
UNSET = "default"


@dataclass(frozen=True)
class Figure:
    """Summary of one metric over `n` repetitions; `median`, `low`, `high` are None if any repetition lacks it.

    `bound`: whether some repetitions are censored, so the true median is at least `median`.
    """

    n: int
    median: float | None = None
    low: float | None = None
    high: float | None = None
    bound: bool = False

    def text(self, metric: Metric) -> str:
        """Return the median as text; `> 33.9` if it is a lower bound."""
        return f"> {metric.text(self.median)}" if self.bound else metric.text(self.median)

    def spread(self, metric: Metric) -> str:
        """Return the range as text; empty for a single value."""
        if self.n < 2 or self.low is None or self.high is None:
            return ""
        return f"{metric.text(self.low)} – {metric.text(self.high)}"


@dataclass(frozen=True)
class Point:
    """All records of one configuration and one group (build and series), by attempt."""

    config_id: str
    config: Mapping[str, Any]
    entries: tuple[IndexEntry, ...]

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the configuration; each named engine setting counts as one."""
        return spread_settings(self.config)

    @cached_property
    def valid(self) -> tuple[IndexEntry, ...]:
        """Usable entries (valid or unmet); only these enter figures."""
        return tuple(entry for entry in self.entries if entry.is_usable)

    @cached_property
    def invalid(self) -> tuple[IndexEntry, ...]:
        """Invalid entries with metrics, which do not count."""
        return tuple(
            entry for entry in self.entries if not entry.is_usable and entry.status in WITH_FIGURES and entry.metrics
        )

    @property
    def is_control(self) -> bool:
        """Whether the configuration has no fault."""
        return fault_of(self.config) == CONTROL

    def figure(self, key: str) -> Figure:
        """Return the summary of one metric over the usable repetitions."""
        if key not in self._figures:
            self._figures[key] = _summarise(self.valid, key)
        return self._figures[key]

    def invalid_figure(self, key: str) -> Figure:
        """Return the summary of one metric over the invalid repetitions."""
        return _summarise(self.invalid, key)

    @cached_property
    def _figures(self) -> dict[str, Figure]:
        return {}


def value_or_bound(entry: IndexEntry, key: str) -> tuple[float, bool] | None:
    """Return a metric of one record and whether it is a lower bound; None if unknown."""
    value = value_of(entry, key)
    if value is None and key == MACRO and entry.metrics.get("recovery.recovered") is False:
        # The end of a censored recovery was not observed; the time observed is a lower bound.
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
    """Return a metric of one record as the range that contains it; None if unknown.

    A censored recovery time has no upper end.
    """
    found = bounds_of(entry, key)
    if found is None and key == RELOAD and entry.metrics.get("recovery.recovered") is False:
        watched = value_of(entry, CENSORED_AT)
        found = None if watched is None else (watched, math.inf)
    return None if found is None else ValueRange(*found)


def values_of(entries: Iterable[IndexEntry], key: str) -> tuple[ValueRange, ...]:
    """Return the known values of a metric."""
    found = (interval_of(entry, key) for entry in entries)
    return tuple(value for value in found if value is not None)


@dataclass(frozen=True)
class Axis:
    """A parameter in which points differ. `numeric`: whether all its values are numbers."""

    key: str
    numeric: bool
    values: tuple[Any, ...]

    @property
    def noun(self) -> str:
        """Readable name without unit; a named setting keeps its name."""
        if (parts := split_name(self.key)) is not None:
            return parts[1]
        return self.key.removesuffix("_s").removesuffix("_mb").replace("_", " ")

    @property
    def unit(self) -> str:
        """Unit of its values; empty if there is none."""
        if is_setting(self.key):
            return ""
        unit = "records/s" if self.key == "rate" else ""
        return next((unit for suffix, unit in _UNITS.items() if self.key.endswith(suffix)), unit)

    @property
    def name(self) -> str:
        """Readable name with unit."""
        return f"{self.noun} ({self.unit})" if self.unit else self.noun

    def of(self, point: Point) -> Any:
        """Return the point's value on this axis."""
        return _value(point.parameters, self.key)

    def label(self, point: Point) -> str:
        """Return the point's value on this axis as text."""
        return label(self.of(point))

    def value_text(self, point: Point) -> str:
        """Return the value as text, with its unit if it is a number: `5 s`."""
        value = self.of(point)
        return f"{label(value)} {self.unit}" if self.unit and is_number(value) else label(value)

    def text_of(self, point: Point) -> str:
        """Return name and value, such as `checkpoint interval 5 s`; for the fault axis the value only."""
        return self.value_text(point) if self.key == FAULT else f"{self.noun} {self.value_text(point)}"


def points_of(entries: Sequence[IndexEntry]) -> list[Point]:
    """Return one point per configuration. `entries` must belong to one group, because builds are never mixed."""
    gathered: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        gathered.setdefault(entry.config_id, []).append(entry)
    return [Point(config_id, members[0].config, tuple(members)) for config_id, members in gathered.items()]


def groups_of(entries: Sequence[IndexEntry]) -> list[str]:
    """Return the groups of the entries, the most recently measured first."""
    newest: dict[str, str] = {}
    for entry in entries:
        group = entry.group
        newest[group] = max(newest.get(group, ""), entry.measured_at)
    return sorted(newest, key=lambda group: newest[group], reverse=True)


def split_controls(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Return (points with a fault, controls); if no point has a fault, (all points, no controls)."""
    breaking = [point for point in points if not point.is_control]
    return (breaking, [point for point in points if point.is_control]) if breaking else (list(points), [])


def axes_of(points: Sequence[Point]) -> list[Axis]:
    """Return the parameters in which the points differ, numeric ones first, each in configuration order.

    Controls are ignored, so a fault and its control alone do not make an axis.
    """
    breaking, _ = split_controls(points)
    keys = {key for point in breaking for key in point.parameters} | {FAULT}
    axes = []
    for key in keys - (_IN_FAULT - {FAULT}):
        values = {
            sort_key(value): value for point in breaking if (value := _value(point.parameters, key)) is not _MISSING
        }
        if len(values) > 1:
            ordered = tuple(values[rank] for rank in sorted(values))
            axes.append(Axis(key, all(is_number(value) for value in ordered), ordered))
    axes.sort(key=lambda axis: (not axis.numeric, _ORDER.get(axis.key, len(_ORDER)), axis.key))
    settings = [axis.key for axis in axes if is_setting(axis.key)]
    axes = [axis for axis in axes if not _is_derived(axis.key, settings, breaking)]
    # The plan itself is an axis only if two different plans have the same text.
    texts = next((axis for axis in axes if axis.key == FAULT), None)
    return [axis for axis in axes if axis.key != "fault_plan" or texts is None or len(texts.values) < len(axis.values)]


def names_of(points: Sequence[Point]) -> dict[str, str]:
    """Return a name by configuration: `checkpoint interval 5 s, executor kill`."""
    axes = [axis for axis in axes_of(points) if axis.key != FAULT]
    return {
        point.config_id: ", ".join([*(axis.text_of(point) for axis in axes), fault_of(point.config)])
        for point in points
    }


def _is_derived(key: str, settings: Sequence[str], points: Sequence[Point]) -> bool:
    """Return whether a parameter follows from other parameters; a setting, also from an earlier one of `settings`.

    A parameter that only some workloads have also counts if it differs only where the workload does.
    """
    sources = ("workload",) if key.partition(".")[0] in _OWN else _DERIVED_FROM.get(key, ())
    earlier = settings[: settings.index(key)] if key in settings else ()
    return _follows(key, sources, points) or any(_follows(key, (other,), points) for other in earlier)


def _follows(key: str, sources: Sequence[str], points: Sequence[Point]) -> bool:
    """Return whether `sources` differ and determine the value of a parameter."""
    found: dict[str, set[Any]] = {}
    for point in points:
        rank = json.dumps([sort_key(_value(point.parameters, source)) for source in sources])
        found.setdefault(rank, set()).add(sort_key(_value(point.parameters, key)))
    return len(found) > 1 and all(len(values) == 1 for values in found.values())


def sort_points(points: Sequence[Point], axes: Sequence[Axis]) -> list[Point]:
    """Return the points sorted along the axes (the last axis varies fastest), controls last."""
    return sorted(
        points,
        key=lambda point: (
            point.is_control,
            [sort_key(None if axis.of(point) is _MISSING else axis.of(point)) for axis in axes],
            point.config_id,
        ),
    )


def label(value: Any) -> str:
    """Return a parameter's value as text: numbers with thousands separators, long values truncated."""
    if value is None or value is _MISSING:
        return NONE
    if is_number(value):
        return f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list) else plain(value)
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _value(config: Mapping[str, Any], key: str) -> Any:
    """Return the parameter's value; the default if an older record lacks it, UNSET for a named setting."""
    if key == FAULT:
        return fault_of(config)
    value = config.get(key, UNSET if is_setting(key) else _DEFAULTS.get(key, _MISSING))
    return NAMES_OF_NOTHING.get(key) if value is None else value


def is_number(value: Any) -> bool:
    """Return whether the value is a number, so that a numeric axis can show it."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# Steps between neighbours along an axis


@dataclass(frozen=True)
class AxisStep:
    """A step from one value of an axis to the next, with equal values on all other axes."""

    axis: Axis
    before: Point
    after: Point

    @property
    def label(self) -> str:
        """Both values as text, such as `5 instead of 2`."""
        return f"{self.axis.label(self.after)} instead of {self.axis.label(self.before)}"


def axis_steps(points: Sequence[Point], axis: Axis, axes: Sequence[Axis]) -> list[AxisStep]:
    """Return the steps between neighbours along `axis`, with the other `axes` fixed.

    Steps are sorted by the other axes, then by this one. If there are points with a fault, controls are ignored.
    """
    breaking, _ = split_controls(points)
    rest = [other for other in axes if other.key != axis.key]
    rows: dict[tuple[object, ...], list[Point]] = {}
    for point in breaking:
        rows.setdefault(tuple(sort_key(other.of(point)) for other in rest), []).append(point)
    return [
        AxisStep(axis, before, after)
        for rank in sorted(rows)
        for before, after in pairwise(sorted(rows[rank], key=lambda point: sort_key(axis.of(point))))
        if sort_key(axis.of(before)) != sort_key(axis.of(after))
    ]
