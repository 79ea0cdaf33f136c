"""Predicates that test a claim with a few repetitions, by Student's t on run values.

A *series* is a set of runs that differ only in the tested parameter. Positive figures are compared as ratios. Each
value has its own variance. A claim needs three runs at each of two values.

- **Moves**: over all series the figure rises (or falls) from the first to the last value of the parameter with
  p ≤ 0.05, the medians move the same way, and no step between neighbours is shown to go the other way.
- **Stays**: two one-sided tests show it within 5 % of its first value (of differences: of their base) at every value.
- **Steepest** (in `shi`), **Lies**: a weighted sum of means is above 0; a mean lies in a range; with p ≤ 0.05.

Error rates and power: `./faultline bench calibration`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from scipy import stats

from faultline.comparison.config_points import is_number
from faultline.comparison.findings.claims import (
    ClaimResult,
    ClaimVerdict,
    Measure,
    not_covered,
    verdict_of,
    without_fault,
)
from faultline.comparison.statistics.estimate import ALPHA, MIN_FREEDOM, NEGLIGIBLE, p_text
from faultline.experiment.config import Configuration
from faultline.records.format import fault_of
from faultline.records.record import Record
from faultline.system.text import sort_key

# Upper bound on the series in a line of evidence.
MAX_NAMED = 4
ALL_FAULTY = "every run has a fault, unlike the paper's; measure the matrix with fault=none as well"
_DEFAULTS = {name: field.default for name, field in Configuration.model_fields.items()}
_DERIVED = frozenset({"fault_at_s", "duration_s"})
_FAULT = ("fault", "fault_action", "fault_plan")


@dataclass(frozen=True)
class Level:
    """Figures of all runs at one value of the parameter."""

    at: Any
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the runs."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Series:
    """Runs that differ only in the parameter `by`, with two or more levels.

    `name`: the other parameters. `base`: if figures are differences, the median that they are relative to; else None.
    """

    by: str
    name: str
    levels: tuple[Level, ...]
    base: float | None = None

    @property
    def change(self) -> float:
        """Median at the last level less median at the first."""
        return self.levels[-1].median - self.levels[0].median

    @property
    def ratio(self) -> bool:
        """Whether figures are compared as ratios: all are positive, and none is a difference."""
        return self.base is None and min(min(level.values) for level in self.levels) > 0

    def margin(self, ratio: bool) -> float:
        """Return the equivalence margin, on the scale of `step`."""
        usual = self.levels[0].median if self.base is None else self.base
        return math.log1p(NEGLIGIBLE) if ratio else NEGLIGIBLE * abs(usual)

    def step(self, before: Level, after: Level, ratio: bool) -> Contrast:
        """Return the change from one level to another, of logarithms if `ratio`."""
        sides = [level.values for level in (before, after)]
        return contrast([[math.log(value) for value in side] for side in sides] if ratio else sides, (-1.0, 1.0))


@dataclass(frozen=True)
class Contrast:
    """A difference with its standard error and degrees of freedom; `spare`: runs beyond one, of the smallest sample."""

    value: float
    error: float
    freedom: float
    spare: int

    @property
    def p(self) -> float:
        """Two-sided p of no difference."""
        return self.p_at(0.0)

    def p_at(self, at: float) -> float:
        """Return the two-sided p of a difference of `at`."""
        return min(1.0, 2 * min(self.tail(at, below=True), self.tail(at, below=False)))

    def p_beyond(self, margin: float) -> float:
        """Return the p of a difference of `margin` or more in either direction."""
        return min(1.0, 2 * max(self.tail(-margin, below=True), self.tail(margin, below=False)))

    def tail(self, at: float, *, below: bool) -> float:
        """Return the one-sided p of a true difference of at most (`below`) or at least `at`; 1 with too few runs."""
        if self.spare < MIN_FREEDOM:
            return 1.0
        distance = self.value - at if below else at - self.value
        return float(stats.t.sf(distance / self.error, self.freedom)) if self.error else float(distance <= 0)


def contrast(samples: Sequence[Sequence[float]], weights: Sequence[float]) -> Contrast:
    """Return a weighted sum of the samples' means, each with its own variance (Welch 1947)."""
    used = [(weight, sample) for weight, sample in zip(weights, samples, strict=True) if weight]
    value = sum(weight * statistics.fmean(sample) for weight, sample in used)
    spare = min(len(sample) for _, sample in used) - 1
    if not spare:
        return Contrast(value, 0.0, 1.0, 0)
    parts = [(weight**2 * statistics.variance(sample) / len(sample), len(sample) - 1) for weight, sample in used]
    return Contrast(value, math.sqrt(sum(part for part, _ in parts)), _freedom(parts), spare)


def mean_of(contrasts: Sequence[Contrast]) -> Contrast:
    """Return the average of contrasts that have no runs in common."""
    n, known = len(contrasts), [(one.error**2, one.freedom) for one in contrasts]
    value = statistics.fmean(one.value for one in contrasts)
    spare = sum(one.spare for one in contrasts) if all(one.spare for one in contrasts) else 0
    return Contrast(value, math.sqrt(sum(part for part, _ in known)) / n, _freedom(known), spare)


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances (Satterthwaite 1946)."""
    squares = sum(part**2 / freedom for part, freedom in parts)
    return sum(part for part, _ in parts) ** 2 / squares if squares else sum(freedom for _, freedom in parts)


@dataclass(frozen=True)
class Trend:
    """Change from the first value to the last over all series.

    `moves`: 1 for an accepted rise, -1 for a fall, else 0.
    """

    step: Contrast
    runs: int
    moves: int

    @property
    def text(self) -> str:
        """Number of runs and p."""
        return f"n = {self.runs}, p {p_text(self.step.p)}"


def trend(series: Sequence[Series]) -> Trend:
    """Return the change along one or more series; it does not count if a step between neighbours reverses it."""
    ratio = all(one.ratio for one in series)
    step = mean_of([one.step(one.levels[0], one.levels[-1], ratio) for one in series])
    inner = [one.step(*levels, ratio) for one in series if len(one.levels) > 2 for levels in pairwise(one.levels)]
    reverses = any(part.value * step.value < 0 and part.p <= ALPHA for part in inner)
    runs = sum(len(level.values) for one in series for level in one.levels)
    accepted = step.p <= ALPHA and not reverses and step.value * statistics.median(one.change for one in series) > 0
    return Trend(step, runs, int(math.copysign(accepted, step.value)))


def is_stable(series: Sequence[Series]) -> bool | None:
    """Return whether the figure is shown to stay; False if a larger change is accepted, None if undecided."""
    ratio = all(one.ratio for one in series)
    steps = [(one.step(one.levels[0], level, ratio), one.margin(ratio)) for one in series for level in one.levels[1:]]
    if all(step.p_beyond(margin) <= ALPHA for step, margin in steps):
        return True
    found = trend(series)
    moved = abs(found.step.value) > statistics.fmean(one.margin(ratio) for one in series)
    return False if found.moves and moved else None


@dataclass(frozen=True)
class SeriesClaim:
    """Claim about a figure along the parameter `by`; `runs` selects the records.

    `among`: values of `by` in order; None: all numbers. `repeated`: number of values that need several runs each; if it
    is above 0, other values are dropped. `part`: slice of the remaining values. `remark`: text added to the evidence.
    """

    measure: Measure
    by: str
    runs: Callable[[Sequence[Record]], Sequence[Record]] = without_fault
    among: Sequence[Any] | None = None
    repeated: int = 0
    part: tuple[int | None, int | None] = (None, None)
    remark: Callable[[Sequence[Record]], str] = lambda _: ""

    def series(self, records: Sequence[Record]) -> list[Series]:
        """Return the series of these records that the claim is about."""
        found = series_of(self.runs(records), self.by, self.measure.read, self.among)
        if self.repeated:
            kept = [replace(one, levels=tuple(each for each in one.levels if len(each.values) > 1)) for one in found]
            found = [
                replace(one, levels=one.levels[slice(*self.part)]) for one in kept if len(one.levels) >= self.repeated
            ]
        return found

    def __call__(self, records: Sequence[Record]) -> ClaimResult:
        series = self.series(records)
        found = self.judge(series) if series else self._nothing(records)
        return found._replace(evidence=found.evidence + self.remark(records))

    def judge(self, series: Sequence[Series]) -> ClaimResult:
        """Return the result for at least one series."""
        raise NotImplementedError

    def _nothing(self, records: Sequence[Record]) -> ClaimResult:
        if self.repeated:
            return not_covered(f"requires {self.repeated} values of {self.by}, each measured more than once")
        broken = self.runs is without_fault and any(one.is_usable for one in records) and not without_fault(records)
        return not_covered(ALL_FAULTY) if broken else not_covered()


@dataclass(frozen=True)
class Moves(SeriesClaim):
    """Whether the figure rises (or falls) with the value."""

    rises: bool = True

    def judge(self, series: Sequence[Series]) -> ClaimResult:
        """Return the direction of the figure; disagree if it is shown to stay."""
        return direction(series, self.measure, rises=self.rises)


@dataclass(frozen=True)
class Stays(SeriesClaim):
    """Whether the figure stays within the margin; with `rises`, whether it rises beyond it."""

    rises: bool = False

    def judge(self, series: Sequence[Series]) -> ClaimResult:
        """Return whether the figure stays within the margin or rises beyond it."""
        stays, found = is_stable(series), trend(series)
        holds = stays
        if self.rises:
            holds = None if stays is None and found.moves >= 0 else stays is False and found.moves > 0
        # Equivalence was tested on its own; with p = 1 no correction of the page's tests overturns it.
        return ClaimResult(
            verdict_of(holds), f"{medians_text(series, self.measure)} ({found.text})", 1.0 if stays else found.step.p
        )


@dataclass(frozen=True)
class Lies:
    """Whether a figure lies between `low` and `high`.

    `sample`: returns the figure's values and a text about them; no values if not measured.
    """

    sample: Callable[[Sequence[Record]], tuple[Sequence[float], str]]
    low: float = -math.inf
    high: float = math.inf

    def __call__(self, records: Sequence[Record]) -> ClaimResult:
        values, text = self.sample(records)
        if not values:
            return not_covered(text)
        holds, p = between(contrast([values], (1.0,)), self.low, self.high)
        return ClaimResult(verdict_of(holds), f"{text} (n = {len(values)})", p)


def direction(series: Sequence[Series], measure: Measure, *, rises: bool) -> ClaimResult:
    """Return whether the figure rises (or falls) along the series."""
    if not series:
        return not_covered()
    found = trend(series)
    text = f"{medians_text(series, measure)} ({found.text})"
    if not found.moves:
        if is_stable(series):
            return ClaimResult(ClaimVerdict.DISAGREES, f"{text}: it hardly changes", 1.0)
        return ClaimResult(ClaimVerdict.INCONCLUSIVE, text, found.step.p)
    return ClaimResult(verdict_of((found.moves > 0) is rises), text, found.step.p)


class PredicateResult(NamedTuple):
    """Whether a statement holds (None: undecided), and its p."""

    holds: bool | None
    p: float


def between(found: Contrast, low: float, high: float) -> PredicateResult:
    """Return whether the figure is in a range; it must differ significantly from both limits, or the violated one."""
    outside = [limit for limit, beyond in ((low, found.value < low), (high, found.value > high)) if beyond]
    p = max(found.p_at(limit) for limit in outside or (low, high))
    return PredicateResult(not outside if p <= ALPHA else None, p)


def series_of(
    records: Sequence[Record], by: str, read: Callable[[Record], float | None], among: Sequence[Any] | None = None
) -> list[Series]:
    """Return the series along `by`, except those in which a run lacks the figure.

    `among`: values of `by`; None: all numbers.
    """
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    for record in records:
        at = record.config.get(by)
        if at in among if among is not None else is_number(at):
            gathered.setdefault(_common_settings(record, {by}), {}).setdefault(at, []).append(read(record))
    return _build_series(gathered, by, among)


def differences_of(
    records: Sequence[Record], by: str, contrast: str, values: tuple[Any, Any], read: Callable[[Record], float | None]
) -> list[Series]:
    """Return series of differences: second less first of two `values` of `contrast`, within one repetition."""
    single: dict[tuple[str, Any, int], dict[Any, float | None]] = {}
    for record in records:
        at, side = record.config.get(by), record.config.get(contrast)
        if is_number(at) and side in values:
            single.setdefault((_common_settings(record, {by, contrast}), at, record.repetition), {})[side] = read(
                record
            )
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    bases: dict[str, list[float]] = {}
    for (rest, at, _), pair in single.items():
        first, second = pair.get(values[0]), pair.get(values[1])
        if first is not None and second is not None:
            gathered.setdefault(rest, {}).setdefault(at, []).append(second - first)
            bases.setdefault(rest, []).append(first)
    return _build_series(gathered, by, None, {rest: statistics.median(found) for rest, found in bases.items()})


def unanimous(answers: Sequence[bool]) -> bool | None:
    """Return the common answer of several runs; None if they disagree or there is only one."""
    return answers[0] if len(answers) > 1 and len(set(answers)) == 1 else None


def medians_text(series: Sequence[Series], measure: Measure) -> str:
    """Return the medians at both ends of each series: `mean latency by state_mb: 1,607 ms at 2, 3,120 ms at 5`."""
    parts = []
    for one in series[:MAX_NAMED]:
        first, last = one.levels[0], one.levels[-1]
        ends = ", ".join(f"{measure.text(level.median)} at {_written(level.at)}" for level in (first, last))
        parts.append(f"{ends} ({one.name})" if one.name else ends)
    more = f"; and {len(series) - MAX_NAMED} more" if len(series) > MAX_NAMED else ""
    return f"{measure.name} by {series[0].by}: {'; '.join(parts)}{more}"


def _common_settings(record: Record, without: Collection[str]) -> str:
    """Return as text what the runs of one series have in common, including the machine."""
    config = {**_DEFAULTS, **record.config}
    # Fault time and duration follow from the interval.
    kept = {key: value for key, value in config.items() if key not in without and key not in _DERIVED}
    kept["machine"] = f"{record.environment.host} ({record.environment.cores} cores)"
    return json.dumps(kept, sort_keys=True)


def _build_series(
    gathered: Mapping[str, Mapping[Any, Sequence[float | None]]],
    by: str,
    among: Sequence[Any] | None,
    bases: Mapping[str, float] = MappingProxyType({}),
) -> list[Series]:
    """Return series of two levels or more, in order. `bases`: by the common settings, as in `gathered`."""
    known = {
        rest: {at: tuple(value for value in values if value is not None) for at, values in levels.items()}
        for rest, levels in gathered.items()
        if len(levels) > 1 and not any(value is None for values in levels.values() for value in values)
    }
    rests = {rest: json.loads(rest) for rest in known}
    first: Mapping[str, Any] = next(iter(rests.values()), {})
    keys = [key for key in first if len({json.dumps(each[key]) for each in rests.values()}) > 1]
    found = []
    for rest in sorted(known, key=lambda rest: [sort_key(rests[rest][key]) for key in keys]):
        levels = known[rest]
        order = sorted(levels) if among is None else [at for at in among if at in levels]
        found.append(
            Series(by, _name(rests[rest], keys), tuple(Level(at, levels[at]) for at in order), bases.get(rest))
        )
    return found


def _name(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the parameters `keys` with their values; a fault by its text."""
    words = [fault_of(config)] if set(keys) & set(_FAULT) else []
    return ", ".join([*words, *(f"{key} {_written(config[key])}" for key in keys if key not in _FAULT)])


def _written(value: Any) -> str:
    return f"{value:,.10g}" if is_number(value) else str(value)
