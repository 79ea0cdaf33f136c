"""Nights of one nightly set: the baseline of a night, its verdicts, and what changed over many nights.

A night is a series of its own: all records with one logical date, whenever they were measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from faultline.comparison.compare import ComparisonTable, ComparisonVerdict, compare_sides, row_texts
from faultline.comparison.compare import as_json as rows_of
from faultline.comparison.config_points import values_of
from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.comparison.selection import RecordGroup
from faultline.comparison.slo import NO_SLOS, SLOReport
from faultline.comparison.statistics.estimate import (
    MIN_REPETITIONS,
    Interval,
    PairedRow,
    estimate,
    exact_values,
    median_interval,
    p_text,
)
from faultline.records.columns import Metric
from faultline.records.index_entry import IndexEntry
from faultline.records.judge.steady import level_begins
from faultline.records.sweep_plan import BASELINE

# Nights that a level must last, before a change and after it, and how likely a change may be by chance: a single wild
# night makes none.
LEAST_NIGHTS, CERTAIN = 3, 0.01
EMPTY_TABLE = ComparisonTable((), (), (0, 0))


@dataclass(frozen=True)
class NightlyRun:
    """All records of one logical date (ISO 8601), in order of attempt."""

    date: str
    entries: tuple[IndexEntry, ...]

    @property
    def day(self) -> str:
        """The date without the time."""
        return self.date[:10]

    @cached_property
    def valid(self) -> tuple[IndexEntry, ...]:
        """Those that are measured and believed."""
        return tuple(entry for entry in self.entries if entry.sound)

    @property
    def build(self) -> str | None:
        """The software of the night: that of its newest valid record."""
        return self.valid[-1].build if self.valid else None

    @property
    def surroundings(self) -> Mapping[str, str]:
        """Host, versions and commit of the newest valid record."""
        newest = self.valid[-1] if self.valid else None
        return {} if newest is None else {**newest.surroundings, "commit": newest.commit or "", "build": newest.build}


@dataclass(frozen=True)
class MetricHistory:
    """One figure of one configuration over nights, or over the commits that they measured: a median with its interval
    for each, and where the level changed.

    `places`: dates of nights (ISO 8601), or commits; `values`: None for one without a valid record; `changes`: indices
    of those with which a level begins.
    """

    config_id: str
    metric: Metric
    positions: tuple[str, ...]
    values: tuple[Interval | None, ...]
    changes: tuple[int, ...]


def nightly_runs_of(entries: Iterable[IndexEntry]) -> list[NightlyRun]:
    """The nights that the entries belong to, the oldest first; what has no logical date is in none."""
    found: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        # The night's own: a baseline that was measured beside it has a series of its own.
        if entry.logical_date and not entry.series.endswith(BASELINE):
            found.setdefault(entry.logical_date, []).append(entry)
    return [NightlyRun(date, tuple(found[date])) for date in sorted(found)]


def baseline_of(night: NightlyRun, nights: Sequence[NightlyRun], window: int) -> list[NightlyRun]:
    """The nights that `night` is held against: of the `window` nights with a valid record before it those of one build,
    the newest with enough repetitions of what `night` measured, so that a night which broke off hides no baseline;
    else the newest of all. Builds are never averaged."""
    before = [one for one in nights if one.date < night.date and one.valid][-window:] if window > 0 else []
    wanted = {entry.config_id for entry in night.valid}

    def of(build: str | None) -> list[NightlyRun]:
        return [one for one in before if one.build == build]

    def is_enough(build: str | None) -> bool:
        there = Counter(entry.config_id for one in of(build) for entry in one.valid if entry.build == build)
        # One that never gets a valid record with this build must not hide the others' baseline.
        return min((there[config_id] for config_id in wanted & there.keys()), default=0) >= MIN_REPETITIONS

    builds = list(dict.fromkeys(one.build for one in reversed(before)))
    return of(next(filter(is_enough, builds), builds[0])) if builds else []


def judge_nightly_run(
    night: NightlyRun,
    nights: Sequence[NightlyRun],
    metrics: Sequence[Metric],
    window: int,
    promised: SLOReport = NO_SLOS,
) -> NightlyVerdict:
    """Holds a night against its baseline, cell by cell and metric by metric."""
    baseline, compared = baseline_of(night, nights, window), EMPTY_TABLE
    if not night.valid:
        problem = f"{night.day}: no valid record"
    elif not baseline:
        problem = f"{night.day}: no earlier night to be held against"
    else:
        compared = _compare_runs(night, baseline, metrics)
        few = sum(min(len(row.comparison.before), len(row.comparison.after)) < MIN_REPETITIONS for row in compared.rows)
        problem = (
            f"{few} of {len(compared.rows)} figures have fewer than {MIN_REPETITIONS} repetitions on a side"
            if few
            else ""
        )
        if not compared.rows:
            problem = f"{night.day}: none of its configurations was measured in the nights before"
    return NightlyVerdict(
        date=night.date, build=night.build, baseline=tuple(one.date for one in baseline),
        summary=_summary(compared, [one.day for one in baseline], len(promised.violations)), problem=problem or None,
        power=_power(compared) or None, reasons=_lines(compared, ComparisonVerdict.WORSE),
        improvements=_lines(compared, ComparisonVerdict.BETTER), comparisons=tuple(rows_of(compared)),
        **promised.as_json(),
    )  # fmt: skip


def _compare_runs(night: NightlyRun, baseline: Sequence[NightlyRun], metrics: Sequence[Metric]) -> ComparisonTable:
    build = baseline[-1].build
    before = [entry for one in baseline for entry in one.valid if entry.build == build]
    after = [entry for entry in night.valid if entry.build == night.build]
    return compare_sides(RecordGroup("baseline", tuple(before)), RecordGroup(night.day, tuple(after)), metrics)


def _lines(compared: ComparisonTable, verdict: ComparisonVerdict) -> tuple[str, ...]:
    """A line for each figure with this verdict: which, by how much, and how sure that is."""
    said = [(row_texts(row, compared.axes), p_text(row.comparison.p)) for row in compared.of(verdict)]
    return tuple(
        f"{one['metric']}: {one['before']} -> {one['after']}, {one['change']}, p {p} ({one['cell']})" for one, p in said
    )


def history_of(nights: Sequence[NightlyRun], config_id: str, metric: Metric) -> MetricHistory:
    """One figure over the nights. Nights without it, or with half of it censored, are left out of the levels."""
    own = {night.date: [one for one in night.valid if one.build == night.build] for night in nights}
    return _history(own, config_id, metric)


def commit_history_of(nights: Sequence[NightlyRun], config_id: str, metric: Metric) -> MetricHistory:
    """One figure over the commits of the checkout, in the order in which nights first measured them; of a commit that
    was measured with several builds each is a place of its own."""
    own: dict[tuple[str, str], list[IndexEntry]] = {}
    for night in nights:
        for one in night.valid:
            own.setdefault((one.commit or "unknown", one.build), []).append(one)
    builds = Counter(commit for commit, _ in own)
    named = {
        f"{commit} · {build}" if builds[commit] > 1 else commit: entries for (commit, build), entries in own.items()
    }
    return _history(named, config_id, metric)


def _history(places: Mapping[str, Sequence[IndexEntry]], config_id: str, metric: Metric) -> MetricHistory:
    values: list[Interval | None] = []
    for entries in places.values():
        found = values_of([one for one in entries if one.config_id == config_id], metric.key)
        interval = median_interval(found)
        if len(found) == 1 and math.isfinite(only := found[0].high):
            interval = Interval(only, only, only)
        values.append(interval)
    known = [number for number, one in enumerate(values) if one is not None and math.isfinite(one.value)]
    edges = change_points([one.value for number in known if (one := values[number]) is not None])
    return MetricHistory(config_id, metric, tuple(places), tuple(values), tuple(known[number] for number in edges))


def change_points(values: Sequence[float]) -> list[int]:
    """Indices of the values with which a new level begins, ascending.

    Those of `level_begins`, then only those whose levels differ by Student's t: the least believed goes first, and its
    levels become one.
    """
    edges = [0, *level_begins(np.asarray(values, dtype=np.float64), LEAST_NIGHTS), len(values)]
    while len(edges) > 2:
        doubts = {
            edge: estimate([PairedRow.unpaired(exact_values(values[before:edge]), exact_values(values[edge:after]))]).p
            for before, edge, after in zip(edges, edges[1:], edges[2:], strict=False)
        }
        worst = max(doubts, key=lambda edge: doubts[edge])
        if doubts[worst] <= CERTAIN:
            break
        edges.remove(worst)
    return edges[1:-1]


def environment_changes(nights: Sequence[NightlyRun]) -> dict[str, str]:
    """What was different from the night before, in a few words, by date: `pyspark 4.1.0 -> 4.2.0, host a -> b`."""
    found: dict[str, str] = {}
    known = [night for night in nights if night.valid]
    for before, after in zip(known, known[1:], strict=False):
        old, new = before.surroundings, after.surroundings
        differing = [
            f"{name} {old.get(name) or 'none'} -> {new.get(name) or 'none'}"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
        if differing:
            found[after.date] = ", ".join(differing)
    return found


def _summary(compared: ComparisonTable, days: Sequence[str], beyond: int) -> str:
    """How many figures are `beyond` a limit, became better, worse, stayed the same or cannot be told, and against which
    nights."""
    before = f"{beyond} beyond a limit; " if beyond else ""
    if not compared.rows:
        return f"{before}nothing to compare"
    return before + verdict_counts({one: len(compared.of(one)) for one in ComparisonVerdict}, days)


def _power(compared: ComparisonTable) -> str:
    """How large a change this night would have seen four times in five: of each figure the least that some of its
    configurations would; empty where nothing was compared that could tell."""
    seen: dict[str, float] = {}
    for row in compared.rows:
        if (least := row.comparison.detectable) is not None:
            seen[row.metric.name] = min(least, seen.get(row.metric.name, math.inf))
    if not seen:
        return ""
    told = ", ".join(f"{name} {100 * change:.0f} %" for name, change in seen.items())
    return f"would have been seen four times in five, if nights differed by nothing else: {told}"


def verdict_counts(counts: Mapping[ComparisonVerdict, int], days: Sequence[str]) -> str:
    """How many figures got each verdict, and the days of the baseline, the first and the last of them."""
    against = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{', '.join(f'{n} {verdict}' for verdict, n in counts.items() if n)}; against {against}"
