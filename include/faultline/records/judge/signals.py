"""Signals of one attempt from its raw files: measured window, schedule, tuples, time bins and baseline window.

Throughput, latency and lag are given per time bin. For a micro-batch engine, a time bin is one committed batch and
spans the time from the previous commit to its own, so no figure is interpolated. For an engine that emits per record, a
bin is 1 s; its commits are then separate (`Signals.commits`).

The raw files name two concepts otherwise: column `lineage` is the state epoch, column `primer` marks the preload, i.e.
the records sent before T0 to warm up and fill state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.protocol import NUMBERED_PARTITION, Commit, uncommitted_count
from faultline.experiment.common_parameters import baseline_commits
from faultline.experiment.workloads.protocol import RECORDS
from faultline.records.judge.evidence import RECORD_COLUMNS, Evidence
from faultline.records.judge.steady import Drift, Floats, drifts_of, slope_interval, steady_stretch
from faultline.records.judge.tuples import Tuples, fold_tuples
from faultline.system.measured_window import NS, Window

Ints = npt.NDArray[np.int64]
BIN_COLUMNS = ["lineage", "batch", "start_ns", "end_ns", "span_s", "records", "throughput_rps", "latency_ms", "lag"]
# Lower bound of a bin's span in ns, against division by 0 if two commits have the same timestamp.
SHORTEST_SPAN_NS = 1_000_000


@dataclass(frozen=True)
class Signals:
    """Inputs shared by figures, recoveries and validity rules.

    `baseline`: bins of the baseline window, between warm-up and first fault. `commits`: times between commits, columns
    end_ns and span_s; the bins themselves for engines with batches. `baseline_commits`: those of the baseline window.
    `baseline_until_ns`: its end. `resolution_s`: length of the bins, 0 without bins. `deaths`: by process, why it did
    not finish; None if it did. `growth`: 95 % interval of the lag slope over the baseline, in records/s; None with too
    few bins, or if the engine generates its input. `offered_rps`: scheduled rate in the baseline. `drifts`: of latency
    and lag. `t0_backlog`: preload offsets not committed at T0; `undrained`: input offsets not committed at the end.
    """

    window: Window
    schedule: TopicSchedule
    tuples: Tuples
    bins: pd.DataFrame
    baseline: pd.DataFrame
    commits: pd.DataFrame
    baseline_commits: pd.DataFrame
    baseline_until_ns: int
    resolution_s: float
    deaths: Mapping[str, str | None]
    growth: tuple[float, float] | None
    offered_rps: float
    drifts: Mapping[str, Drift | None]
    t0_backlog: int
    undrained: int


def signals_of(evidence: Evidence) -> Signals:
    """Return the signals of an attempt. Raises InfrastructureError if a table cannot be read."""
    config, traces, scheduler = evidence.config, evidence.traces, evidence.scheduler
    window = Window.of(
        evidence.barrier.t0_wall_ns, config.warmup_s, config.duration_s, config.checkpoint_interval_s, scheduler.bounds
    )
    per_record = evidence.emits_per_record
    tuples = fold_tuples(evidence.tuples_path, window)
    schedule = TopicSchedule(evidence.records) if config.paced else CommitSchedule(traces.commits)
    if per_record:
        unit = schedule.tuples_per_record(tuples) if config.kind.counts == RECORDS else 1.0
        bins = bins_of_seconds(tuples, window, unit)
    else:
        bins = bins_of_batches(traces.commits, schedule, tuples, window)
    until = min([window.end_ns, *(fault.t0_ns for fault in scheduler.injected if fault.t0_ns is not None)])
    baseline = bins_between(bins, window.start_ns, until)
    # Each stage of a topology commits by itself, and only the first one's commits are known.
    commits = commit_spans(traces.commits, window) if per_record and not evidence.stages else bins
    at_t0 = [commit for commit in traces.commits if commit.committed_ns <= window.t0_ns]
    drift_bins, min_bins = baseline, 0
    if scheduler.adaptive and len(baseline):
        # Like the fault scheduler, use the shortest steady stretch, which may reach back into the warm-up.
        drift_bins = bins_between(bins, window.t0_ns, int(baseline["end_ns"].iloc[-1]))
        bins_per_commit = max(1, round(config.checkpoint_interval_s)) if per_record else 1
        min_bins = baseline_commits(config.checkpoint_interval_s) * bins_per_commit
    interval_s, offered_rps = config.checkpoint_interval_s, offered_rate(schedule, baseline)
    drift_columns = bin_columns(drift_bins, window)
    times_s, _, lag = bin_columns(baseline, window)
    backlog = schedule.preload_backlog(at_t0[-1] if at_t0 else None)
    ends = evidence.generator.end_offsets
    undrained = uncommitted_count(traces.reached, schedule.end_offsets if ends is None else ends)
    return Signals(
        window=window,
        schedule=schedule,
        tuples=tuples,
        bins=bins,
        baseline=baseline,
        commits=commits,
        baseline_commits=bins_between(commits, window.start_ns, until),
        baseline_until_ns=until,
        resolution_s=1.0 if per_record else median_span_s(baseline) or 0.0,
        deaths={
            "generator": evidence.generator.death if config.paced else None,
            "recorder": evidence.recorder_death,
            "conductor": scheduler.death,
        },
        growth=slope_interval(times_s, lag) if config.paced else None,
        offered_rps=offered_rps,
        drifts=steady_stretch(
            *drift_columns, min_commits=min_bins, checkpoint_interval_s=interval_s, offered_rps=offered_rps
        )[1]
        if min_bins
        else drifts_of(*drift_columns, checkpoint_interval_s=interval_s, offered_rps=offered_rps),
        t0_backlog=backlog,
        undrained=undrained,
    )


def offered_rate(schedule: TopicSchedule, bins: pd.DataFrame) -> float:
    """Return the scheduled rate from the start of the first bin to the end of the last, in records/s; 0 if empty."""
    if bins.empty:
        return 0.0
    begin, end = int(bins["start_ns"].iloc[0]), int(bins["end_ns"].iloc[-1])
    return (schedule.due(end) - schedule.due(begin)) / ((end - begin) / NS)


def bin_columns(bins: pd.DataFrame, window: Window) -> tuple[Floats, Floats, Floats]:
    """Return three columns of the bins: end in s after T0, latency in ms, and lag in records."""
    latency_ms, lag = (bins[name].to_numpy(dtype=np.float64) for name in ("latency_ms", "lag"))
    return (bins["end_ns"].to_numpy(dtype=np.int64) - window.t0_ns) / NS, latency_ms, lag


class TopicSchedule:
    """Send schedule as read from the input topic, without the preload.

    `records` has the columns partition, offset, timestamp_ms (intended send time) and primer (part of the preload).
    """

    def __init__(self, records: pd.DataFrame) -> None:
        is_preload = records["primer"].astype(bool)
        self._due_ms: Ints = np.sort(records.loc[~is_preload, "timestamp_ms"].to_numpy(dtype=np.int64))
        self._offsets: dict[str, Ints] = {
            str(partition): np.sort(offsets.to_numpy(dtype=np.int64))
            for partition, offsets in records.loc[~is_preload].groupby("partition")["offset"]
        }
        self._preload_ends = _end_offsets(records[is_preload])
        self.end_offsets = _end_offsets(records)

    def tuples_per_record(self, tuples: Tuples) -> float:
        """Return the mean number of tuples in a scheduled record; 1 without tuples or records."""
        produced = int(tuples.produced["n"].sum())
        return produced / len(self._due_ms) if produced and len(self._due_ms) else 1.0

    def due(self, wall_ns: int) -> int:
        """Return the number of records with an intended send time up to `wall_ns`."""
        return int(np.searchsorted(self._due_ms, wall_ns // 1_000_000, side="right"))

    def due_record_seconds(self, start_ns: int, end_ns: int) -> float:
        """Return ∫ due(t) dt over [start, end] in record·seconds: each record counts from its intended send time."""
        due_ns = self._due_ms[: self.due(end_ns)] * 1_000_000
        return float((end_ns - np.maximum(due_ns, start_ns)).sum(dtype=np.float64) / NS)

    def position(self, commit: Commit | None) -> int:
        """Return the number of scheduled records below the commit's end offsets; 0 without a commit."""
        return 0 if commit is None else self.count_below(commit.ends)

    def count_below(self, ends: Mapping[str, int]) -> int:
        """Return the number of scheduled records below `ends`, the exclusive end offsets by partition."""
        return sum(
            int(np.searchsorted(offsets, ends.get(partition, 0))) for partition, offsets in self._offsets.items()
        )

    def lag_area(self, commits: Sequence[Commit], start_ns: int, end_ns: int) -> float:
        """Return ∫ (records due − records committed) dt over [start, end] in record·seconds.

        Both are known step functions, so the area is exact.
        """
        ordered = sorted(commits, key=lambda item: (item.committed_ns, item.epoch, item.number))
        committed = 0.0
        position, since = 0, start_ns
        for commit in ordered:
            if commit.committed_ns >= end_ns:
                break
            at = max(since, commit.committed_ns)
            committed += position * (at - since) / NS
            position, since = self.position(commit), at
        committed += position * (end_ns - since) / NS
        return self.due_record_seconds(start_ns, end_ns) - committed

    def preload_backlog(self, commit: Commit | None) -> int:
        """Return the number of offsets up to the end of the preload that the commit does not cover."""
        return uncommitted_count({} if commit is None else commit.ends, self._preload_ends)


class CommitSchedule(TopicSchedule):
    """Schedule of events that the engine generates and numbers, derived from its commits.

    All events of a batch are due when the batch is planned.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        super().__init__(pd.DataFrame({name: pd.Series(dtype="int64") for name in RECORD_COLUMNS}))
        planned = sorted((one.planned_ns or one.committed_ns, one.ends[NUMBERED_PARTITION]) for one in commits)
        self._planned_ns = [instant for instant, _ in planned]
        self._event_ends = [0, *(end for _, end in planned)]

    def due(self, wall_ns: int) -> int:
        """Return the number of events in batches planned up to `wall_ns`."""
        return self._event_ends[bisect_right(self._planned_ns, wall_ns)]

    def count_below(self, ends: Mapping[str, int]) -> int:
        """Return the number of events below the end of the single numbered sequence."""
        return ends.get(NUMBERED_PARTITION, 0)


def bins_of_batches(commits: Sequence[Commit], schedule: TopicSchedule, tuples: Tuples, window: Window) -> pd.DataFrame:
    """Return one row of BIN_COLUMNS per batch committed after T0, in chronological order.

    A batch starts at the end offsets of the previous commit. The first batch of a new state epoch starts at its own
    start offsets; the records skipped before it count in no throughput and as processed in the lag.

    `records` excludes the preload. `latency_ms` is the p99 of the batch's tuples, NaN without tuples. `lag` is the
    number of records due by the commit and not committed.
    """
    latency = tuples.batch_p99.to_dict()
    rows = []
    previous: Commit | None = None
    for commit in sorted(commits, key=lambda item: (item.committed_ns, item.epoch, item.number)):
        if commit.committed_ns > window.t0_ns:
            start = window.t0_ns if previous is None else max(window.t0_ns, previous.committed_ns)
            span_s = max(commit.committed_ns - start, SHORTEST_SPAN_NS) / NS
            position = schedule.position(commit)
            begin = schedule.position(previous)
            if commit.starts is not None:
                begin = schedule.count_below(commit.starts)
            records = position - begin
            rows.append(
                (
                    commit.epoch,
                    commit.number,
                    start,
                    commit.committed_ns,
                    span_s,
                    records,
                    records / span_s,
                    float(latency.get((commit.epoch, commit.number), np.nan)),
                    schedule.due(commit.committed_ns) - position,
                )
            )
        previous = commit
    return pd.DataFrame(rows, columns=BIN_COLUMNS)


def bins_of_seconds(tuples: Tuples, window: Window, tuples_per_record: float = 1.0) -> pd.DataFrame:
    """Return bins of 1 s from T0 on, for engines that emit per record.

    `records`: tuples emitted in the second, in units of one record. `lag`: tuples produced and not emitted by its end,
    in the same unit. Both are whole numbers if each record is one tuple.
    """
    emitted = tuples.by_second.groupby("second")["n"].sum()
    produced = tuples.produced.set_index("second")["n"]
    last = max([0, *emitted.index.tolist(), *produced.index.tolist()])
    seconds = np.arange(last + 1, dtype=np.int64)
    counts = emitted.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)
    lag = np.cumsum(produced.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)) - np.cumsum(counts)
    latency = tuples.second_p99.reindex(seconds)
    return pd.DataFrame(
        {
            "lineage": 0,
            "batch": seconds,
            "start_ns": window.t0_ns + seconds * NS,
            "end_ns": window.t0_ns + (seconds + 1) * NS,
            "span_s": 1.0,
            "records": counts if tuples_per_record == 1 else counts / tuples_per_record,
            "throughput_rps": counts / tuples_per_record,
            "latency_ms": latency.to_numpy(dtype=np.float64),
            "lag": lag if tuples_per_record == 1 else lag / tuples_per_record,
        },
        columns=BIN_COLUMNS,
    )


def commit_spans(commits: Sequence[Commit], window: Window) -> pd.DataFrame:
    """Return one row per commit after T0, in chronological order: its instant, and the time since the previous one.

    Columns end_ns and span_s. The first span starts at T0.
    """
    ends = np.sort(np.array([one.committed_ns for one in commits if one.committed_ns > window.t0_ns], dtype=np.int64))
    return pd.DataFrame({"end_ns": ends, "span_s": np.diff(ends, prepend=window.t0_ns) / NS})


def bins_between(bins: pd.DataFrame, after_ns: int, until_ns: int) -> pd.DataFrame:
    """Return the bins that end in (after_ns, until_ns]."""
    return bins[(bins["end_ns"] > after_ns) & (bins["end_ns"] <= until_ns)].reset_index(drop=True)


def median_span_s(bins: pd.DataFrame) -> float | None:
    """Return the median length of bins, or time between commits, in seconds; None without any."""
    return float(bins["span_s"].median()) if len(bins) else None


def _end_offsets(records: pd.DataFrame) -> dict[str, int]:
    """Return the exclusive end offset of the given records, by partition."""
    return {
        str(partition): int(offset) + 1 for partition, offset in records.groupby("partition")["offset"].max().items()
    }
