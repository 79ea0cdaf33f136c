"""SLOs: limits on metrics that a nightly run must meet, independent of earlier runs."""

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
    """Upper bound of a metric, or lower bound if more is better; in the metric's unit."""

    metric: Metric
    bound: float

    def is_violated_by(self, value: float) -> bool:
        """Return whether a value violates the SLO."""
        return value < self.bound if self.metric.better == MORE else value > self.bound

    @property
    def text(self) -> str:
        """The limit as text: `at most 30.00 s`."""
        side = "at least" if self.metric.better == MORE else "at most"
        return f"{side} {self.metric.text(self.bound)} {self.metric.unit}".rstrip()


@dataclass(frozen=True)
class SLOResult:
    """Median of one configuration's `n` usable values, compared with an SLO.

    `low`, `high`: 95 % interval of the median; both are the value itself if there is only one. `at_least`: whether the
    median is censored, so `value` is a lower bound.
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
        """Whether the median violates the SLO."""
        return self.limit.is_violated_by(self.value)

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval lies on the same side of the limit as the median."""
        if self.at_least:
            return self.is_violated
        return self.limit.is_violated_by(self.low) == self.limit.is_violated_by(self.high) == self.is_violated

    @property
    def text(self) -> str:
        """Measured value, its interval, and the limit, in one line."""
        metric = self.limit.metric
        value = f"{'> ' * self.at_least}{metric.text(self.value)} {metric.unit}".rstrip()
        ends = "" if self.n == 1 or self.at_least else f", {_text(metric, self.low)} … {_text(metric, self.high)}"
        doubt = "" if self.is_certain else ", within uncertainty"
        where = f" ({self.cell})" if self.cell else ""
        return f"{metric.name}: {value} (n = {self.n}{ends}), limit {self.limit.text}{doubt}{where}"


def parse_slos(given: Mapping[str, Any] | None) -> tuple[SLO, ...]:
    """Parse SLOs, given as limits by metric key. Raises ConfigError naming the key and the fix."""
    found = []
    for key, bound in ((renamed_figure(str(key)), bound) for key, bound in (given or {}).items()):
        if key not in COMPARABLE:
            raise ConfigError(f"limits.{key}: unknown; expected a comparable metric{suggest(key, COMPARABLE)}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            unit = COMPARABLE[key].unit
            raise ConfigError(f"limits.{key}: got {bound!r}; expected a number{f' of {unit}' if unit else ''}")
        found.append(SLO(COMPARABLE[key], float(bound)))
    return tuple(found)


@dataclass(frozen=True)
class SLOReport:
    """SLOs of a nightly run, with their results."""

    limits: tuple[SLO, ...] = ()
    results: tuple[SLOResult, ...] = ()

    @property
    def violations(self) -> list[str]:
        """One line for each violated SLO."""
        return [one.text for one in self.results if one.is_violated]

    @property
    def doubtful(self) -> list[str]:
        """One line for each SLO whose result is unknown or uncertain."""
        known = {one.limit.metric.key for one in self.results}
        absent = [one.metric.name for one in self.limits if one.metric.key not in known]
        return [f"{name}: unknown, because no usable record has it" for name in absent] + [
            one.text for one in self.results if not one.is_violated and not one.is_certain
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the report as part of the verdict; empty without SLOs."""
        if not self.limits:
            return {}
        bounds = {one.metric.key: one.bound for one in self.limits}
        return {"limits": bounds, "beyond": self.violations, "doubtful": self.doubtful}


NO_SLOS = SLOReport()


def check_slos(entries: Iterable[IndexEntry], limits: Sequence[SLO]) -> SLOReport:
    """Check each SLO for each configuration with a usable record that has the metric."""
    points = points_of([one for one in entries if one.is_usable])
    axes = axes_of(points)
    results = []
    for limit in limits:
        for point in sort_points(points, axes):
            values = values_of(point.valid, limit.metric.key)
            if values:
                cell = [*(axis.text_of(point) for axis in axes), *([CONTROL] * point.is_control)]
                results.append(_check_slo(limit, ", ".join(cell), values))
    return SLOReport(tuple(limits), tuple(results))


def _check_slo(limit: SLO, cell: str, values: Values) -> SLOResult:
    median = median_of(values)
    if math.isinf(median):
        # A censored value counts with the time for which it was observed; the true median is at least the result.
        least = statistics.median(value.low for value in values)
        return SLOResult(limit, cell, len(values), least, least, math.inf, at_least=True)
    interval = median_interval(values) or Interval(median, median, median)
    return SLOResult(limit, cell, len(values), median, interval.low, interval.high)


def _text(metric: Metric, value: float) -> str:
    return metric.text(value) if math.isfinite(value) else "unknown"
