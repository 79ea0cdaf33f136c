"""What a few repetitions can tell of a claim: four predicates, all of run values by Student's t.

Runs are compared only with runs that differ from them in nothing but the value in question; a *series* is such a set.
Figures above 0 are compared as ratios. Each value keeps its own scatter, and a claim takes as many degrees of freedom
as three runs at each of two values have; one run at each never tells.

- **Moves**: from the first value to the last the figure rises (or falls) with p ≤ 0.05, averaged over all series, the
  medians say the same, and no step between neighbours is shown to go the other way.
- **Stays**: it is shown (two one-sided tests) that at no value the figure is off by 5 % of what it is at the first; a
  difference of two figures by 5 % of the figure that it begins from. What stays does not rise, whoever says it does.
- **Exceeds**: a weighted sum of means, such as one effect less another, is above 0 with p ≤ 0.05.
- **Lies**: the mean is above (or below) a limit, or within a range, with p ≤ 0.05.

How often these err, and what they see: `./faultline bench calibration`.
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
from faultline.comparison.findings.claims import ClaimResult, ClaimVerdict, Measure, faultless, nothing, verdict
from faultline.comparison.statistics.estimate import ALPHA, LEAST_FREEDOM, NEGLIGIBLE, p_text
from faultline.experiment.config import Configuration
from faultline.records.format import fault_of
from faultline.records.record import Record
from faultline.system.text import sort_key

# More series than this make no line that anybody reads.
MOST_NAMED = 4

BROKEN = "every run here has a fault, the paper's had none; measure the matrix with fault=none as well"
_NUMBERS = {2: "two", 3: "three", 4: "four"}
_DEFAULTS = {name: field.default for name, field in Configuration.model_fields.items()}
_DERIVED = frozenset({"fault_at_s", "duration_s"})
_FAULT = ("fault", "fault_action", "fault_plan")


@dataclass(frozen=True)
class Level:
    """The figures of all runs at one value."""

    at: Any
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Series:
    """Runs that differ only in `by`: its levels in order, two at least. `name`: what tells them from other series.
    `base`: of differences, the figure that they begin from."""

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
        """Whether its figures are compared as ratios: all are above 0, and no differences."""
        return self.base is None and min(min(level.values) for level in self.levels) > 0

    def margin(self, ratio: bool) -> float:
        """A change below it is none that matters, as `step` tells it."""
        usual = self.levels[0].median if self.base is None else self.base
        return math.log1p(NEGLIGIBLE) if ratio else NEGLIGIBLE * abs(usual)

    def step(self, before: Level, after: Level, ratio: bool) -> Contrast:
        """From one level to another: of logarithms where it is a `ratio`."""
        sides = [level.values for level in (before, after)]
        return contrast([[math.log(value) for value in side] for side in sides] if ratio else sides, (-1.0, 1.0))


@dataclass(frozen=True)
class Contrast:
    """A difference with its standard error, its degrees of freedom, and `spare` runs beyond the first of each value."""

    value: float
    error: float
    freedom: float
    spare: int

    @property
    def p(self) -> float:
        """Two-sided, of no difference."""
        return self.p_at(0.0)

    def p_at(self, at: float) -> float:
        """Two-sided, of a difference of `at`."""
        return min(1.0, 2 * min(self.tail(at, below=True), self.tail(at, below=False)))

    def p_beyond(self, margin: float) -> float:
        """Of a difference of `margin` or more either way."""
        return min(1.0, 2 * max(self.tail(-margin, below=True), self.tail(margin, below=False)))

    def tail(self, at: float, *, below: bool) -> float:
        """One-sided p of the true difference being `at` or less (`below`), or `at` or more; 1 of too few runs."""
        if self.spare < LEAST_FREEDOM:
            return 1.0
        away = self.value - at if below else at - self.value
        return float(stats.t.sf(away / self.error, self.freedom)) if self.error else float(away <= 0)


def contrast(samples: Sequence[Sequence[float]], weights: Sequence[float]) -> Contrast:
    """A weighted sum of the samples' means, each with its own scatter (Welch 1947)."""
    used = [(weight, sample) for weight, sample in zip(weights, samples, strict=True) if weight]
    value = sum(weight * statistics.fmean(sample) for weight, sample in used)
    spare = min(len(sample) for _, sample in used) - 1
    if not spare:
        return Contrast(value, 0.0, 1.0, 0)
    parts = [(weight**2 * statistics.variance(sample) / len(sample), len(sample) - 1) for weight, sample in used]
    return Contrast(value, math.sqrt(sum(part for part, _ in parts)), _freedom(parts), spare)


def mean_of(contrasts: Sequence[Contrast]) -> Contrast:
    """The average of several that have no runs in common."""
    n, known = len(contrasts), [(one.error**2, one.freedom) for one in contrasts]
    value = statistics.fmean(one.value for one in contrasts)
    spare = sum(one.spare for one in contrasts) if all(one.spare for one in contrasts) else 0
    return Contrast(value, math.sqrt(sum(part for part, _ in known)) / n, _freedom(known), spare)


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Of a sum of variances (Satterthwaite 1946)."""
    squares = sum(part**2 / freedom for part, freedom in parts)
    return sum(part for part, _ in parts) ** 2 / squares if squares else sum(freedom for _, freedom in parts)


@dataclass(frozen=True)
class Trend:
    """The change from the first value to the last over all series, of so many `runs`. `moves`: 1 where a rise is
    believed, -1 where a fall is, else 0."""

    step: Contrast
    runs: int
    moves: int

    @property
    def text(self) -> str:
        """What a belief rests on."""
        return f"n = {self.runs}, p {p_text(self.step.p)}"


def trend(series: Sequence[Series]) -> Trend:
    """The change along all series, at least one: believed where the medians agree, and no step between neighbours is
    shown to go the other way."""
    ratio = all(one.ratio for one in series)
    step = mean_of([one.step(one.levels[0], one.levels[-1], ratio) for one in series])
    inner = [one.step(*levels, ratio) for one in series if len(one.levels) > 2 for levels in pairwise(one.levels)]
    turns = any(part.value * step.value < 0 and part.p <= ALPHA for part in inner)
    runs = sum(len(level.values) for one in series for level in one.levels)
    believed = step.p <= ALPHA and not turns and step.value * statistics.median(one.change for one in series) > 0
    return Trend(step, runs, int(math.copysign(believed, step.value)))


def hardly_changes(series: Sequence[Series]) -> bool | None:
    """True: it is shown to stay. False: a rise or a fall is believed, and it is larger than what counts as none. None:
    neither."""
    ratio = all(one.ratio for one in series)
    steps = [(one.step(one.levels[0], level, ratio), one.margin(ratio)) for one in series for level in one.levels[1:]]
    if all(step.p_beyond(margin) <= ALPHA for step, margin in steps):
        return True
    found = trend(series)
    moved = abs(found.step.value) > statistics.fmean(one.margin(ratio) for one in series)
    return False if found.moves and moved else None


@dataclass(frozen=True)
class Along:
    """A figure over `runs`, along the parameter `by`. `among`: the values to look at, in their order; by default all
    numbers. `repeated`: so many values, each measured more than once, are needed, and no others count; `part`: which of
    them are asked about. `remark`: what is said besides."""

    measure: Measure
    by: str
    runs: Callable[[Sequence[Record]], Sequence[Record]] = faultless
    among: Sequence[Any] | None = None
    repeated: int = 0
    part: tuple[int | None, int | None] = (None, None)
    remark: Callable[[Sequence[Record]], str] = lambda _: ""

    def series(self, records: Sequence[Record]) -> list[Series]:
        """The series of these records that the claim is about."""
        found = series_of(self.runs(records), self.by, self.measure.read, self.among)
        if self.repeated:
            kept = [replace(one, levels=tuple(each for each in one.levels if len(each.values) > 1)) for one in found]
            found = [
                replace(one, levels=one.levels[slice(*self.part)]) for one in kept if len(one.levels) >= self.repeated
            ]
        return found

    def __call__(self, records: Sequence[Record]) -> ClaimResult:
        series = self.series(records)
        found = self.judged(series) if series else self._nothing(records)
        return found._replace(evidence=found.evidence + self.remark(records))

    def judged(self, series: Sequence[Series]) -> ClaimResult:
        """What the series say, at least one."""
        raise NotImplementedError

    def _nothing(self, records: Sequence[Record]) -> ClaimResult:
        if self.repeated:
            return nothing(f"takes {_NUMBERS[self.repeated]} {self.by}s, each measured more than once")
        broken = self.runs is faultless and any(one.sound for one in records) and not faultless(records)
        return nothing(BROKEN) if broken else nothing()


@dataclass(frozen=True)
class Moves(Along):
    """Whether the figure rises (or falls) with the value."""

    rises: bool = True

    def judged(self, series: Sequence[Series]) -> ClaimResult:
        """Not where it is shown to stay."""
        return direction(series, self.measure, rises=self.rises)


@dataclass(frozen=True)
class Stays(Along):
    """Whether the figure does not noticeably depend on the value; with `rises` whether it noticeably rises with it."""

    rises: bool = False

    def judged(self, series: Sequence[Series]) -> ClaimResult:
        """By more than what is negligible, or less."""
        still, found = hardly_changes(series), trend(series)
        holds = still
        if self.rises:
            holds = None if still is None and found.moves >= 0 else still is False and found.moves > 0
        # Sameness rests on how close the runs are: it is one test more on the page, and none that chance could take
        # back.
        return ClaimResult(
            verdict(holds), f"{told(series, self.measure)} ({found.text})", 1.0 if still else found.step.p
        )


@dataclass(frozen=True)
class Lies:
    """Whether a figure lies above `low` and below `high`. `sample`: its values, and what they are in words; no values
    where nothing was measured."""

    sample: Callable[[Sequence[Record]], tuple[Sequence[float], str]]
    low: float = -math.inf
    high: float = math.inf

    def __call__(self, records: Sequence[Record]) -> ClaimResult:
        values, said = self.sample(records)
        if not values:
            return nothing(said)
        holds, p = between(contrast([values], (1.0,)), self.low, self.high)
        return ClaimResult(verdict(holds), f"{said} (n = {len(values)})", p)


def direction(series: Sequence[Series], measure: Measure, *, rises: bool) -> ClaimResult:
    """Whether the figure rises (or falls) along the series."""
    if not series:
        return nothing()
    found = trend(series)
    said = f"{told(series, measure)} ({found.text})"
    if not found.moves:
        if hardly_changes(series):
            return ClaimResult(ClaimVerdict.DISAGREES, f"{said}: it hardly changes", 1.0)
        return ClaimResult(ClaimVerdict.INCONCLUSIVE, said, found.step.p)
    return ClaimResult(verdict((found.moves > 0) is rises), said, found.step.p)


class PredicateResult(NamedTuple):
    """Whether something holds, None when nobody can tell, and the p that this rests on: an answer is at most 0.05."""

    holds: bool | None
    p: float


def between(found: Contrast, low: float, high: float) -> PredicateResult:
    """Whether it lies in a range: both limits must be told from it, or the one that it is beyond."""
    outside = [limit for limit, beyond in ((low, found.value < low), (high, found.value > high)) if beyond]
    p = max(found.p_at(limit) for limit in outside or (low, high))
    return PredicateResult(not outside if p <= ALPHA else None, p)


def series_of(
    records: Sequence[Record], by: str, read: Callable[[Record], float | None], among: Sequence[Any] | None = None
) -> list[Series]:
    """The series along the parameter `by`; a series in which one run's figure is unknown proves nothing, and is left
    out. `among`: the values of `by` to look at, in their order; by default all numbers."""
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    for record in records:
        at = record.config.get(by)
        if at in among if among is not None else is_number(at):
            gathered.setdefault(_rest(record, {by}), {}).setdefault(at, []).append(read(record))
    return _named(gathered, by, among)


def differences_of(
    records: Sequence[Record], by: str, contrast: str, values: tuple[Any, Any], read: Callable[[Record], float | None]
) -> list[Series]:
    """The same of differences: figure where `contrast` has the second value less figure where it has the first.

    Pairs are runs of the same repetition, which have the same data; of several the latest counts.
    """
    single: dict[tuple[str, Any, int], dict[Any, float | None]] = {}
    for record in records:
        at, side = record.config.get(by), record.config.get(contrast)
        if is_number(at) and side in values:
            single.setdefault((_rest(record, {by, contrast}), at, record.repetition), {})[side] = read(record)
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    bases: dict[str, list[float]] = {}
    for (rest, at, _), pair in single.items():
        first, second = pair.get(values[0]), pair.get(values[1])
        if first is not None and second is not None:
            gathered.setdefault(rest, {}).setdefault(at, []).append(second - first)
            bases.setdefault(rest, []).append(first)
    return _named(gathered, by, None, {rest: statistics.median(found) for rest, found in bases.items()})


def every(answers: Sequence[bool]) -> bool | None:
    """What all runs answer, where there are several and they are at one; None when nobody can tell."""
    return answers[0] if len(answers) > 1 and len(set(answers)) == 1 else None


def told(series: Sequence[Series], measure: Measure) -> str:
    """Medians at both ends of each series: `mean latency by state_mb: 1,607 ms at 2, 3,120 ms at 5`."""
    parts = []
    for one in series[:MOST_NAMED]:
        first, last = one.levels[0], one.levels[-1]
        ends = ", ".join(f"{measure.text(level.median)} at {_written(level.at)}" for level in (first, last))
        parts.append(f"{ends} ({one.name})" if one.name else ends)
    more = f"; and {len(series) - MOST_NAMED} more" if len(series) > MOST_NAMED else ""
    return f"{measure.name} by {series[0].by}: {'; '.join(parts)}{more}"


def _rest(record: Record, without: Collection[str]) -> str:
    """Everything that the runs of one series must have in common, as text; machines are not mixed either."""
    config = {**_DEFAULTS, **record.config}
    # The instant of the fault and the length of the window follow from the interval.
    kept = {key: value for key, value in config.items() if key not in without and key not in _DERIVED}
    kept["machine"] = f"{record.environment.host} ({record.environment.cores} cores)"
    return json.dumps(kept, sort_keys=True)


def _named(
    gathered: Mapping[str, Mapping[Any, Sequence[float | None]]],
    by: str,
    among: Sequence[Any] | None,
    bases: Mapping[str, float] = MappingProxyType({}),
) -> list[Series]:
    """Series of two levels or more, each named by what tells it from the others, in order of that; `bases` by what
    they have in common, as `gathered`."""
    known = {
        rest: {at: tuple(value for value in values if value is not None) for at, values in levels.items()}
        for rest, levels in gathered.items()
        if len(levels) > 1 and not any(value is None for values in levels.values() for value in values)
    }
    rests = {rest: json.loads(rest) for rest in known}
    keys = [
        key for key in next(iter(rests.values()), {}) if len({json.dumps(each[key]) for each in rests.values()}) > 1
    ]
    found = []
    for rest in sorted(known, key=lambda rest: [sort_key(rests[rest][key]) for key in keys]):
        levels = known[rest]
        order = sorted(levels) if among is None else [at for at in among if at in levels]
        found.append(
            Series(by, _name(rests[rest], keys), tuple(Level(at, levels[at]) for at in order), bases.get(rest))
        )
    return found


def _name(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The parameters `keys` with their values; a fault in its own words."""
    words = [fault_of(config)] if set(keys) & set(_FAULT) else []
    return ", ".join([*words, *(f"{key} {_written(config[key])}" for key in keys if key not in _FAULT)])


def _written(value: Any) -> str:
    return f"{value:,.10g}" if is_number(value) else str(value)
