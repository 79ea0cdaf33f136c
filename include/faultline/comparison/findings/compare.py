"""What a few repetitions can tell.

**Differences.** Runs are compared only with runs that differ from them in nothing but the value in question; a *series*
is such a set. Within a series each pair of runs at different values votes: did the figure rise or fall from the lower
value to the higher one? If the values did not matter, every order of the runs' figures would be equally likely. A
rise or a fall is believed when at most one order in twenty (over all series together) has votes so much at one: an
exact rank test, two-sided (Mann and Whitney for two values, Jonckheere and Terpstra for more). Two values need four
repetitions each, and no overlap between them. One run at each of two values never tells. What the votes say the medians
at the ends must say, too. How much it is, is another matter, and stands beside the verdict.

**Sameness.** A figure hardly changes when all runs, four at least at each value, lie within a tenth of their median, or
when, with five, the 95 % interval of the change from the first value to any other lies within a tenth. A difference of
two figures hardly changes when all lie within a tenth of the figure that they begin from. What hardly changes, and of
which neither a rise nor a fall is believed, does not rise, whoever says that it does.

**Limits.** Whether a figure lies beyond a limit is believed when all runs, three at least, lie on one side of it, and
either there are five of them, or the nearest is farther from the limit than the runs are from each other. Figures that
are spread evenly about the limit pass as lying above it one time in 32, with five runs as with three; two runs would
pass one time in eight. A figure lies in a range when it is believed to lie above its lower end and below its upper one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from faultline.comparison.findings.finding import Outcome, Verdict
from faultline.comparison.findings.measures import Measure
from faultline.comparison.statistics.intervals import RESAMPLES, SEED, change_interval
from faultline.comparison.statistics.ranks import orders
from faultline.comparison.statistics.sample import Floats, Sample
from faultline.experiment.config import Configuration
from faultline.records.format import fault_of
from faultline.records.record import Record
from faultline.system.text import sortable

ALPHA = 0.05
# So many runs on one side of a limit are no accident: 1/32 < ALPHA. Fewer must besides keep away from it, and
# with less than FEWEST that happens by accident too often: 1/8 > ALPHA.
UNANIMOUS, FEWEST = 5, 3
# Fewer repetitions say too much: three and three do not overlap in one case of ten by chance alone, and two and two lie
# within a tenth in one of four when the truth is a tenth apart.
DRAWN = 4
# Less than this share of a figure is no noticeable change.
NEGLIGIBLE = 0.1
# More series than this make no line that anybody reads.
MOST_NAMED = 4

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


@dataclass(frozen=True)
class Trend:
    """How likely as many rising, and as many falling, votes were if the value did not matter; over `runs` runs.

    `change`: from the median at the first value to that at the last; of several series the median.
    """

    rising_p: float
    falling_p: float
    runs: int
    change: float

    @property
    def p(self) -> float:
        """How likely votes are that are so much at one, whichever way they go."""
        return min(1.0, 2 * min(self.rising_p, self.falling_p))

    @property
    def rises(self) -> bool:
        """Whether a rise is believed."""
        return self.p <= ALPHA and self.rising_p < self.falling_p and self.change > 0

    @property
    def falls(self) -> bool:
        """Whether a fall is believed."""
        return self.p <= ALPHA and self.falling_p < self.rising_p and self.change < 0


def series_of(
    records: Sequence[Record], by: str, read: Callable[[Record], float | None], among: Sequence[Any] | None = None
) -> list[Series]:
    """The series along the parameter `by`; a series in which one run's figure is unknown proves nothing, and is left
    out. `among`: the values of `by` to look at, in their order; by default all numbers."""
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    for record in records:
        at = record.config.get(by)
        if at in among if among is not None else _is_number(at):
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
        if _is_number(at) and side in values:
            single.setdefault((_rest(record, {by, contrast}), at, record.repetition), {})[side] = read(record)
    gathered: dict[str, dict[Any, list[float | None]]] = {}
    bases: dict[str, list[float]] = {}
    for (rest, at, _), pair in single.items():
        first, second = pair.get(values[0]), pair.get(values[1])
        if first is not None and second is not None:
            gathered.setdefault(rest, {}).setdefault(at, []).append(second - first)
            bases.setdefault(rest, []).append(first)
    return _named(gathered, by, None, {rest: statistics.median(found) for rest, found in bases.items()})


def trend(series: Sequence[Series]) -> Trend:
    """The votes of all series together, at least one. Ties vote for nothing, which can only make a belief rarer."""
    rising = falling = runs = 0
    chances = np.ones(1)
    for one in series:
        values = [level.values for level in one.levels]
        votes = [(a, b) for low, high in combinations(values, 2) for a in low for b in high]
        rising += sum(b > a for a, b in votes)
        falling += sum(b < a for a, b in votes)
        sizes = [len(every) for every in values]
        runs += sum(sizes)
        chances = np.convolve(chances, orders(sizes))
    change = statistics.median(one.change for one in series)
    return Trend(float(chances[rising:].sum()), float(chances[falling:].sum()), runs, change)


def direction(series: Sequence[Series], measure: Measure, *, rises: bool) -> Outcome:
    """Whether the figure rises (or falls) with the value."""
    if not series:
        return nothing()
    found = trend(series)
    said = f"{told(series, measure)} ({_chance(found)})"
    if found.rises == found.falls:
        if hardly_changes(series):
            return Outcome(Verdict.DISAGREES, f"{said}: it hardly changes", 1.0)
        return Outcome(Verdict.CANNOT_TELL, said, found.p)
    return Outcome(Verdict.AGREES if found.rises == rises else Verdict.DISAGREES, said, found.p)


def hardly_changes(series: Sequence[Series]) -> bool | None:
    """By the module's rule for sameness: True. False: a rise or a fall is believed, and it is larger than what counts
    as none. None: neither."""
    if all(_close(one) or _surely_close(one) for one in series):
        return True
    found = trend(series)
    moved = statistics.median(abs(one.change) - NEGLIGIBLE * abs(_begin(one)) for one in series) > 0
    return False if (found.rises or found.falls) and moved else None


def constant(series: Sequence[Series], measure: Measure) -> Outcome:
    """Whether the figure does not noticeably depend on the value."""
    if not series:
        return nothing()
    still, found = hardly_changes(series), trend(series)
    # Sameness rests on how close the runs are: it is one test more on the page, and none that chance could take back.
    return Outcome(verdict(still), f"{told(series, measure)} ({_chance(found)})", 1.0 if still else found.p)


def noticeable(series: Sequence[Series], measure: Measure) -> Outcome:
    """Whether the figure rises with the value by more than what is negligible."""
    if not series:
        return nothing()
    still, found = hardly_changes(series), trend(series)
    said = f"{told(series, measure)} ({_chance(found)})"
    if still is None and not found.falls:
        return Outcome(Verdict.CANNOT_TELL, said, found.p)
    return Outcome(verdict(still is False and found.rises), said, 1.0 if still else found.p)


def drawn_medians(levels: Sequence[Level]) -> dict[tuple[float, ...], Floats]:
    """Medians of samples drawn anew from the runs at each level (bootstrap), by those runs: what two series have in
    common is drawn once."""
    rng = np.random.default_rng(SEED)
    known = {level.values: np.array(level.values) for level in levels}
    return {runs: np.median(rng.choice(values, (RESAMPLES, len(values))), axis=1) for runs, values in known.items()}


def p_not_above(drawn: Floats, runs: int) -> float:
    """How likely it is, two-sided, that what was drawn so is above 0 by chance; never less than so many `runs` in all
    can tell: as two halves without overlap they are one order in many."""
    return min(1.0, max(2 * float(np.mean(drawn <= 0)), 2 / math.comb(runs, runs // 2), 1 / RESAMPLES))


def p_of_contrast(levels: Sequence[Level], weights: Sequence[float]) -> tuple[float, float]:
    """The weighted sum of the levels' means, and how likely one as far from 0 is by chance, two-sided (Welch's t).

    1 where a level has fewer runs than FEWEST, or nothing differs.
    """
    values = [np.array(level.values) for level in levels]
    found = float(sum(weight * each.mean() for weight, each in zip(weights, values, strict=True)))
    if min(map(len, values)) < FEWEST:
        return found, 1.0
    parts = [weight**2 * each.var(ddof=1) / len(each) for weight, each in zip(weights, values, strict=True)]
    spread = float(sum(parts))
    if not spread:
        return found, 0.0 if found else 1.0
    degrees = spread**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, values, strict=True))
    return found, float(2 * stats.t.sf(abs(found) / math.sqrt(spread), degrees))


def beyond(values: Sequence[float], limit: float) -> bool | None:
    """Whether the figure lies above the limit: see the module's rule for limits; None when nobody can tell."""
    if len(values) < FEWEST or min(values) <= limit <= max(values):
        return None
    margin = min(abs(value - limit) for value in values)
    sure = len(values) >= UNANIMOUS or margin > max(values) - min(values)
    return min(values) > limit if sure else None


def between(values: Sequence[float], low: float, high: float) -> bool | None:
    """Whether the figure lies in a range, by the module's rule for limits at both ends; None when nobody can tell."""
    above_low, above_high = beyond(values, low), beyond(values, high)
    if above_low is False or above_high is True:
        return False
    return True if above_low is True and above_high is False else None


def verdict(holds: bool | None) -> Verdict:
    """The verdict that follows when a claim holds, does not, or nobody can tell."""
    return Verdict.CANNOT_TELL if holds is None else Verdict.AGREES if holds else Verdict.DISAGREES


def nothing(why: str = "no valid runs that differ in nothing but this") -> Outcome:
    """Nothing was measured that could answer, though it could be; `why` says what it takes."""
    return Outcome(Verdict.NOT_ASKED, why)


def not_testable(needs: str) -> Outcome:
    """Nothing that can be measured here answers; `needs` says what would."""
    return Outcome(Verdict.NOT_TESTABLE, needs)


def told(series: Sequence[Series], measure: Measure) -> str:
    """Medians at both ends of each series: `mean latency by state_mb: 1,607 ms at 2, 3,120 ms at 5`."""
    parts = []
    for one in series[:MOST_NAMED]:
        first, last = one.levels[0], one.levels[-1]
        ends = ", ".join(f"{measure.text(level.median)} at {_written(level.at)}" for level in (first, last))
        parts.append(f"{ends} ({one.name})" if one.name else ends)
    more = f"; and {len(series) - MOST_NAMED} more" if len(series) > MOST_NAMED else ""
    return f"{measure.name} by {series[0].by}: {'; '.join(parts)}{more}"


def _close(one: Series) -> bool:
    values = [value for level in one.levels for value in level.values]
    repeated = all(len(level.values) >= DRAWN for level in one.levels)
    usual = statistics.median(values) if one.base is None else one.base
    return repeated and max(values) - min(values) <= NEGLIGIBLE * abs(usual)


def _begin(one: Series) -> float:
    return one.levels[0].median if one.base is None else one.base


def _surely_close(one: Series) -> bool:
    if one.base is not None:
        return False
    first, *others = (Sample(level.values) for level in one.levels)
    if min(len(level.values) for level in one.levels) < UNANIMOUS:
        return False
    changes = [change_interval(first, other) for other in others]
    return all(each is not None and max(abs(each.low), abs(each.high)) <= NEGLIGIBLE for each in changes)


def _chance(found: Trend) -> str:
    """What the belief rests on."""
    return f"n = {found.runs}, p = {found.p:.2g}"


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
    for rest in sorted(known, key=lambda rest: [sortable(rests[rest][key]) for key in keys]):
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
    return f"{value:,.10g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
