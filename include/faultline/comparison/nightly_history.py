"""Nightly runs of one nightly set: baseline, verdicts, and changes over many runs.

A nightly run is a series of its own: all records with one logical date, whenever they were measured.
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
from faultline.records.judge.steady import level_starts
from faultline.records.sweep_plan import BASELINE

# A level (values between two change points) has at least MIN_RUNS runs, and a change needs a p of at most CERTAIN, so a
# single outlier does not count.
MIN_RUNS, CERTAIN = 3, 0.01
EMPTY_TABLE = ComparisonTable((), (), (0, 0))


@dataclass(frozen=True)
class NightlyRun:
    """All records of one logical date (ISO 8601), in order of attempt."""

    date: str
    entries: tuple[IndexEntry, ...]

    @property
    def day(self) -> str:
        """Date without the time."""
        return self.date[:10]

    @cached_property
    def valid(self) -> tuple[IndexEntry, ...]:
        """Usable entries."""
        return tuple(entry for entry in self.entries if entry.is_usable)

    @property
    def build(self) -> str | None:
        """Build of the newest usable record."""
        return self.valid[-1].build if self.valid else None

    @property
    def surroundings(self) -> Mapping[str, str]:
        """Host, versions and commit of the newest usable record."""
        newest = self.valid[-1] if self.valid else None
        return {} if newest is None else {**newest.surroundings, "commit": newest.commit or "", "build": newest.build}


@dataclass(frozen=True)
class MetricHistory:
    """One metric of one configuration over nightly runs, or over the commits that they measured.

    `positions`: dates of the runs (ISO 8601), or commits. `values`: median with its interval, None without a usable
    record. `changes`: indices at which a level begins.
    """

    config_id: str
    metric: Metric
    positions: tuple[str, ...]
    values: tuple[Interval | None, ...]
    changes: tuple[int, ...]


def nightly_runs_of(entries: Iterable[IndexEntry]) -> list[NightlyRun]:
    """Return the nightly runs of the entries, the oldest first; entries without a logical date are in none."""
    found: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        # A reference build measured in the same run has a series of its own.
        if entry.logical_date and not entry.series.endswith(BASELINE):
            found.setdefault(entry.logical_date, []).append(entry)
    return [NightlyRun(date, tuple(found[date])) for date in sorted(found)]


def baseline_of(run: NightlyRun, runs: Sequence[NightlyRun], window: int) -> list[NightlyRun]:
    """Return the nightly runs that `run` is compared with.

    These are, of the last `window` earlier runs with a usable record, all runs of one build, because builds are never
    averaged: the newest build with enough repetitions of the configurations of `run`, else the newest build. Thus an
    aborted run does not hide a baseline.
    """
    before = [one for one in runs if one.date < run.date and one.valid][-window:] if window > 0 else []
    config_ids = {entry.config_id for entry in run.valid}

    def of(build: str | None) -> list[NightlyRun]:
        return [one for one in before if one.build == build]

    def is_enough(build: str | None) -> bool:
        counts = Counter(entry.config_id for one in of(build) for entry in one.valid if entry.build == build)
        # A configuration without a usable record of this build must not hide the baseline of the others.
        return min((counts[config_id] for config_id in config_ids & counts.keys()), default=0) >= MIN_REPETITIONS

    builds = list(dict.fromkeys(one.build for one in reversed(before)))
    return of(next(filter(is_enough, builds), builds[0])) if builds else []


def judge_nightly_run(
    run: NightlyRun,
    runs: Sequence[NightlyRun],
    metrics: Sequence[Metric],
    window: int,
    promised: SLOReport = NO_SLOS,
) -> NightlyVerdict:
    """Compare a nightly run with its baseline, by configuration and metric."""
    baseline, compared = baseline_of(run, runs, window), EMPTY_TABLE
    if not run.valid:
        problem = f"{run.day}: no usable record"
    elif not baseline:
        problem = f"{run.day}: no earlier run to compare with"
    else:
        compared = _compare_runs(run, baseline, metrics)
        few = sum(min(len(row.comparison.before), len(row.comparison.after)) < MIN_REPETITIONS for row in compared.rows)
        problem = (
            f"{few} of {len(compared.rows)} figures have fewer than {MIN_REPETITIONS} repetitions on a side"
            if few
            else ""
        )
        if not compared.rows:
            problem = f"{run.day}: none of its configurations has an earlier measurement"
    return NightlyVerdict(
        date=run.date, build=run.build, baseline=tuple(one.date for one in baseline),
        summary=_summary(compared, [one.day for one in baseline], len(promised.violations)), problem=problem or None,
        power=_power(compared) or None, reasons=_lines(compared, ComparisonVerdict.WORSE),
        improvements=_lines(compared, ComparisonVerdict.BETTER), comparisons=tuple(rows_of(compared)),
        **promised.as_json(),
    )  # fmt: skip


def _compare_runs(run: NightlyRun, baseline: Sequence[NightlyRun], metrics: Sequence[Metric]) -> ComparisonTable:
    build = baseline[-1].build
    before = [entry for one in baseline for entry in one.valid if entry.build == build]
    after = [entry for entry in run.valid if entry.build == run.build]
    return compare_sides(RecordGroup("baseline", tuple(before)), RecordGroup(run.day, tuple(after)), metrics)


def _lines(compared: ComparisonTable, verdict: ComparisonVerdict) -> tuple[str, ...]:
    """Return one line per metric with this verdict, with change and p."""
    rows = [(row_texts(row, compared.axes), p_text(row.comparison.p)) for row in compared.of(verdict)]
    return tuple(
        f"{one['metric']}: {one['before']} -> {one['after']}, {one['change']}, p {p} ({one['cell']})" for one, p in rows
    )


def history_of(runs: Sequence[NightlyRun], config_id: str, metric: Metric) -> MetricHistory:
    """Return one metric over the nightly runs; runs in which it is unknown or mostly censored belong to no level."""
    own = {run.date: [one for one in run.valid if one.build == run.build] for run in runs}
    return _history(own, config_id, metric)


def commit_history_of(runs: Sequence[NightlyRun], config_id: str, metric: Metric) -> MetricHistory:
    """Return one metric over the commits, in the order of their first measurement.

    A commit that was measured with several builds has one position per build.
    """
    own: dict[tuple[str, str], list[IndexEntry]] = {}
    for run in runs:
        for one in run.valid:
            own.setdefault((one.commit or "unknown", one.build), []).append(one)
    builds = Counter(commit for commit, _ in own)
    named = {
        f"{commit} · {build}" if builds[commit] > 1 else commit: entries for (commit, build), entries in own.items()
    }
    return _history(named, config_id, metric)


def _history(by_position: Mapping[str, Sequence[IndexEntry]], config_id: str, metric: Metric) -> MetricHistory:
    values: list[Interval | None] = []
    for entries in by_position.values():
        found = values_of([one for one in entries if one.config_id == config_id], metric.key)
        interval = median_interval(found)
        if len(found) == 1 and math.isfinite(only := found[0].high):
            interval = Interval(only, only, only)
        values.append(interval)
    known = [index for index, one in enumerate(values) if one is not None and math.isfinite(one.value)]
    edges = change_points([one.value for index in known if (one := values[index]) is not None])
    return MetricHistory(config_id, metric, tuple(by_position), tuple(values), tuple(known[index] for index in edges))


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices of the values with which a new level begins, ascending.

    Candidates come from `level_starts`. The change with the largest p (Student's t between the levels on both sides) is
    removed and its levels merged, until every p is at most CERTAIN.
    """
    edges = [0, *level_starts(np.asarray(values, dtype=np.float64), MIN_RUNS), len(values)]
    while len(edges) > 2:
        p_values = {
            edge: estimate([PairedRow.unpaired(exact_values(values[before:edge]), exact_values(values[edge:after]))]).p
            for before, edge, after in zip(edges, edges[1:], edges[2:], strict=False)
        }
        worst = max(p_values, key=lambda edge: p_values[edge])
        if p_values[worst] <= CERTAIN:
            break
        edges.remove(worst)
    return edges[1:-1]


def environment_changes(runs: Sequence[NightlyRun]) -> dict[str, str]:
    """Return what changed since the previous run, by date: `pyspark 4.1.0 -> 4.2.0, host a -> b`."""
    found: dict[str, str] = {}
    known = [run for run in runs if run.valid]
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
    """Return a line with the number of violated limits, the number of metrics by verdict, and the baseline."""
    before = f"{beyond} beyond a limit; " if beyond else ""
    if not compared.rows:
        return f"{before}nothing to compare"
    return before + verdict_counts({one: len(compared.of(one)) for one in ComparisonVerdict}, days)


def _power(compared: ComparisonTable) -> str:
    """Return a text with each metric's minimum detectable effect, the smallest over the configurations.

    Empty if nothing was compared.
    """
    seen: dict[str, float] = {}
    for row in compared.rows:
        if (least := row.comparison.detectable) is not None:
            seen[row.metric.name] = min(least, seen.get(row.metric.name, math.inf))
    if not seen:
        return ""
    text = ", ".join(f"{name} {100 * change:.0f} %" for name, change in seen.items())
    return f"minimum detectable effect at 80 % power: {text}"


def verdict_counts(counts: Mapping[ComparisonVerdict, int], days: Sequence[str]) -> str:
    """Return the number of metrics by verdict, and the first and last day of the baseline."""
    against = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{', '.join(f'{n} {verdict}' for verdict, n in counts.items() if n)}; against {against}"
