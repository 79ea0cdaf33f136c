"""Limits that figures have to keep, such as what a team has promised of its recovery: beyond them a night is red,
whatever the nights before it were like."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.comparison.config_points import axes_of, points_of, sort_points, values_of
from faultline.comparison.statistics.estimate import Interval, Values, median_interval, median_of
from faultline.records.catalogue import COMPARABLE
from faultline.records.columns import MORE, Metric
from faultline.records.format import CONTROL
from faultline.records.index_entry import IndexEntry
from faultline.records.renames import renamed_figure
from faultline.system.errors import ConfigError
from faultline.system.text import suggest


@dataclass(frozen=True)
class SLO:
    """The largest that a figure may be, or of one of which more is better the least; in the figure's unit."""

    metric: Metric
    bound: float

    def is_violated_by(self, value: float) -> bool:
        """Whether a value does not keep it."""
        return value < self.bound if self.metric.better == MORE else value > self.bound

    @property
    def text(self) -> str:
        """`at most 30.00 s`."""
        side = "at least" if self.metric.better == MORE else "at most"
        return f"{side} {self.metric.text(self.bound)} {self.metric.unit}".rstrip()


@dataclass(frozen=True)
class SLOResult:
    """A limit against the median of one configuration's `n` sound values.

    `low`, `high`: the ends of the median's 95 % interval, equal to it for a single value. `at_least`: most were not
    seen to end, so the median is known only to be `value` or more.
    """

    limit: SLO
    cell: str
    n: int
    value: float
    low: float
    high: float
    at_least: bool = False

    @property
    def is_violated(self) -> bool:
        """Whether the median does not keep the limit, as far as it is known."""
        return self.limit.is_violated_by(self.value)

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval lies on the same side of the limit as the median."""
        if self.at_least:
            return self.is_violated
        return self.limit.is_violated_by(self.low) == self.limit.is_violated_by(self.high) == self.is_violated

    @property
    def text(self) -> str:
        """What was measured, how sure that is, and what was promised."""
        metric = self.limit.metric
        value = f"{'> ' * self.at_least}{metric.text(self.value)} {metric.unit}".rstrip()
        ends = "" if self.n == 1 or self.at_least else f", {_text(metric, self.low)} … {_text(metric, self.high)}"
        doubt = "" if self.is_certain else ", which may be chance" if self.is_violated else ", which may be beyond"
        where = f" ({self.cell})" if self.cell else ""
        return f"{metric.name}: {value} (n = {self.n}{ends}), limit {self.limit.text}{doubt}{where}"


def parse_slos(given: Mapping[str, Any] | None) -> tuple[SLO, ...]:
    """Limits by the path of their figure in the record. Raises ConfigError naming the key and the remedy."""
    found = []
    for key, bound in ((renamed_figure(str(key)), bound) for key, bound in (given or {}).items()):
        if key not in COMPARABLE:
            raise ConfigError(f"limits.{key}: no figure of which less or more is better{suggest(key, COMPARABLE)}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            unit = COMPARABLE[key].unit
            raise ConfigError(f"limits.{key}: {bound!r} is no number{f'; give one, in {unit}' if unit else ''}")
        found.append(SLO(COMPARABLE[key], float(bound)))
    return tuple(found)


@dataclass(frozen=True)
class SLOReport:
    """What a night says of its limits."""

    limits: tuple[SLO, ...] = ()
    results: tuple[SLOResult, ...] = ()

    @property
    def violations(self) -> list[str]:
        """A line for each that is not kept."""
        return [one.text for one in self.results if one.is_violated]

    @property
    def doubtful(self) -> list[str]:
        """A line for each of which nobody knows whether it is kept."""
        known = {one.limit.metric.key for one in self.results}
        absent = [one.metric.name for one in self.limits if one.metric.key not in known]
        return [f"{name}: no valid record has it, so nobody knows whether its limit is kept" for name in absent] + [
            one.text for one in self.results if not one.is_violated and not one.is_certain
        ]

    def as_json(self) -> dict[str, Any]:
        """As it is kept beside the verdict of the night; nothing where nothing was promised."""
        if not self.limits:
            return {}
        bounds = {one.metric.key: one.bound for one in self.limits}
        return {"limits": bounds, "beyond": self.violations, "doubtful": self.doubtful}


NO_SLOS = SLOReport()


def check_slos(entries: Iterable[IndexEntry], limits: Sequence[SLO]) -> SLOReport:
    """Each limit against each configuration of which a sound record among `entries` knows the figure."""
    points = points_of([one for one in entries if one.sound])
    axes = axes_of(points)
    held = []
    for limit in limits:
        for point in sort_points(points, axes):
            values = values_of(point.valid, limit.metric.key)
            if values:
                cell = [*(axis.text_of(point) for axis in axes), *([CONTROL] * point.is_control)]
                held.append(_check_slo(limit, ", ".join(cell), values))
    return SLOReport(tuple(limits), tuple(held))


def _check_slo(limit: SLO, cell: str, values: Values) -> SLOResult:
    median = median_of(values)
    if math.isinf(median):
        # As though all had ended with the watch: the true median is no less.
        least = statistics.median(value.low for value in values)
        return SLOResult(limit, cell, len(values), least, least, math.inf, at_least=True)
    interval = median_interval(values) or Interval(median, median, median)
    return SLOResult(limit, cell, len(values), median, interval.low, interval.high)


def _text(metric: Metric, value: float) -> str:
    return metric.text(value) if math.isfinite(value) else "unknown"
