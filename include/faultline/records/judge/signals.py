"""Signals of one attempt from its raw files: window, schedule, tuples, time bins, and the baseline window.

A time bin is the resolution of throughput, latency and lag. For a micro-batch engine it is one committed batch: it ends
at the commit and spans the time since the previous one, so no figure is interpolated. Engines without batches (method
`rank`) get bins of 1 s.
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
from faultline.records.judge.evidence import RECORD_COLUMNS, Evidence
from faultline.records.judge.steady import Drift, Floats, drifts_of, slope_interval, steady_stretch
from faultline.records.judge.tuples import Tuples, fold_tuples
from faultline.system.measured_window import NS, Window

Ints = npt.NDArray[np.int64]
BIN_COLUMNS = ["lineage", "batch", "start_ns", "end_ns", "span_s", "records", "throughput_rps", "latency_ms", "lag"]
# Two commits of one lineage cannot share an instant; a span below the clock's grain would divide by 0.
SHORTEST_SPAN_NS = 1_000_000


@dataclass(frozen=True)
class Signals:
    """Inputs that figures, recoveries and rules share.

    `reference`: bins of the baseline window. `resolution_s`: length of the bins, 0 without any. `deaths`: by process,
    why it did not finish; None if it did. `growth`: 95 % interval of the lag slope over the baseline, in records/s;
    None for an engine source and with too few bins. `offered_rps`: scheduled rate in that time. `drifts`: of latency
    and lag. `t0_backlog`: preload offsets not committed at T0; `undrained`: input offsets not committed at the end.
    """

    window: Window
    schedule: TopicSchedule
    tuples: Tuples
    bins: pd.DataFrame
    reference: pd.DataFrame
    resolution_s: float
    deaths: Mapping[str, str | None]
    growth: tuple[float, float] | None
    offered_rps: float
    drifts: Mapping[str, Drift | None]
    t0_backlog: int
    undrained: int


def signals_of(evidence: Evidence) -> Signals:
    """Put the raw files together. Raises InfrastructureError when a table cannot be read."""
    config, traces, conductor = evidence.config, evidence.traces, evidence.conductor
    window = Window.of(
        evidence.gate.t0_wall_ns, config.warmup_s, config.duration_s, config.checkpoint_interval_s, conductor.bounds
    )
    by_rank = traces.method == "rank"
    tuples = fold_tuples(evidence.tuples_path, window)
    schedule = TopicSchedule(evidence.records) if config.paced else Numbering(traces.commits)
    bins = bins_of_seconds(tuples, window) if by_rank else bins_of_batches(traces.commits, schedule, tuples, window)
    until = min([window.end_ns, *(fault.t0_ns for fault in conductor.injected if fault.t0_ns is not None)])
    reference = between(bins, window.start_ns, until)
    at_t0 = [commit for commit in traces.commits if commit.committed_ns <= window.t0_ns]
    watched, fewest = reference, 0
    if conductor.adaptive and len(reference):
        # As the fault scheduler does: over as few of the last commits as suffice, perhaps back into the warm-up.
        watched = between(bins, window.t0_ns, int(reference["end_ns"].iloc[-1]))
        each = max(1, round(config.checkpoint_interval_s)) if by_rank else 1
        fewest = baseline_commits(config.checkpoint_interval_s) * each
    interval_s, offered_rps = config.checkpoint_interval_s, offered_rates(schedule, reference)
    course, growing = columns(watched, window), columns(reference, window)
    backlog = schedule.primer_backlog(at_t0[-1] if at_t0 else None)
    ends = evidence.generator.end_offsets
    undrained = uncommitted_count(traces.reached, schedule.end_offsets if ends is None else ends)
    return Signals(
        window=window,
        schedule=schedule,
        tuples=tuples,
        bins=bins,
        reference=reference,
        resolution_s=1.0 if by_rank else median_span_s(reference) or 0.0,
        deaths={
            "generator": evidence.generator.death if config.paced else None,
            "recorder": evidence.recorder_death,
            "conductor": conductor.death,
        },
        growth=slope_interval(*growing[::2]) if config.paced else None,
        offered_rps=offered_rps,
        drifts=steady_stretch(*course, fewest=fewest, checkpoint_interval_s=interval_s, offered_rps=offered_rps)[1]
        if fewest
        else drifts_of(*course, checkpoint_interval_s=interval_s, offered_rps=offered_rps),
        t0_backlog=backlog,
        undrained=undrained,
    )


def offered_rates(schedule: TopicSchedule, bins: pd.DataFrame) -> float:
    """Return the scheduled rate of each bin, in records/s."""
    if bins.empty:
        return 0.0
    begin, end = int(bins["start_ns"].iloc[0]), int(bins["end_ns"].iloc[-1])
    return (schedule.due(end) - schedule.due(begin)) / ((end - begin) / NS)


def columns(bins: pd.DataFrame, window: Window) -> tuple[Floats, Floats, Floats]:
    """Return the ends of bins in s after T0, with latency and lag."""
    latency_ms, lag = (bins[name].to_numpy(dtype=np.float64) for name in ("latency_ms", "lag"))
    return (bins["end_ns"].to_numpy(dtype=np.int64) - window.t0_ns) / NS, latency_ms, lag


class TopicSchedule:
    """The generator's schedule as it lies in the input topic, without the primer.

    Built from the columns partition, offset, timestamp_ms (intended time) and primer.
    """

    def __init__(self, records: pd.DataFrame) -> None:
        primer = records["primer"].astype(bool)
        self._due_ms: Ints = np.sort(records.loc[~primer, "timestamp_ms"].to_numpy(dtype=np.int64))
        self._offsets: dict[str, Ints] = {
            str(partition): np.sort(offsets.to_numpy(dtype=np.int64))
            for partition, offsets in records.loc[~primer].groupby("partition")["offset"]
        }
        self._primer_ends = _ends(records[primer])
        self.end_offsets = _ends(records)

    def due(self, wall_ns: int) -> int:
        """Return records whose intended time is not after `wall_ns`."""
        return int(np.searchsorted(self._due_ms, wall_ns // 1_000_000, side="right"))

    def due_seconds(self, start_ns: int, end_ns: int) -> float:
        """Return ∫ due(t) dt over [start, end] in record·seconds: each record counts from its intended time on."""
        due_ns = self._due_ms[: self.due(end_ns)] * 1_000_000
        return float((end_ns - np.maximum(due_ns, start_ns)).sum(dtype=np.float64) / NS)

    def position(self, commit: Commit | None) -> int:
        """Return records of the schedule below the commit's end offsets."""
        return 0 if commit is None else self.below(commit.ends)

    def below(self, ends: Mapping[str, int]) -> int:
        """Return records of the schedule below these offsets, by partition."""
        return sum(
            int(np.searchsorted(offsets, ends.get(partition, 0))) for partition, offsets in self._offsets.items()
        )

    def lag_area(self, commits: Sequence[Commit], start_ns: int, end_ns: int) -> float:
        """Return ∫ (records due − records committed) dt over [start, end] in record·seconds.

        Both are step functions that are known exactly, so nothing is interpolated.
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
        return self.due_seconds(start_ns, end_ns) - committed

    def primer_backlog(self, commit: Commit | None) -> int:
        """Return offsets up to the primer's end that the commit does not cover."""
        return uncommitted_count({} if commit is None else commit.ends, self._primer_ends)


class Numbering(TopicSchedule):
    """The place of events in time, from the commits: batch by batch, where a schedule would know each record."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        super().__init__(pd.DataFrame({name: pd.Series(dtype="int64") for name in RECORD_COLUMNS}))
        planned = sorted((one.planned_ns or one.committed_ns, one.ends[NUMBERED_PARTITION]) for one in commits)
        self._planned_ns = [instant for instant, _ in planned]
        self._taken = [0, *(end for _, end in planned)]

    def due(self, wall_ns: int) -> int:
        """Return events of the batches that were planned by then."""
        return self._taken[bisect_right(self._planned_ns, wall_ns)]

    def below(self, ends: Mapping[str, int]) -> int:
        """Return events below these numbers."""
        return ends.get(NUMBERED_PARTITION, 0)


def bins_of_batches(commits: Sequence[Commit], schedule: TopicSchedule, tuples: Tuples, window: Window) -> pd.DataFrame:
    """Return one row of BIN_COLUMNS per batch committed after T0, in order of time.

    A batch begins where the commit before it ended, the first one of a new lineage at its start offsets: what
    was skipped in between is in no throughput, and counts as processed in the lag.

    `records` leaves the primer out; `latency_ms` is the p99 of the batch's tuples (NaN without any);
    `lag` counts records due by the commit and not committed.
    """
    latency = tuples.batch_p99.to_dict()
    rows = []
    before: Commit | None = None
    for commit in sorted(commits, key=lambda item: (item.committed_ns, item.epoch, item.number)):
        if commit.committed_ns > window.t0_ns:
            start = window.t0_ns if before is None else max(window.t0_ns, before.committed_ns)
            span_s = max(commit.committed_ns - start, SHORTEST_SPAN_NS) / NS
            position = schedule.position(commit)
            begin = schedule.position(before)
            if commit.starts is not None:
                begin = schedule.below(commit.starts)
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
        before = commit
    return pd.DataFrame(rows, columns=BIN_COLUMNS)


def bins_of_seconds(tuples: Tuples, window: Window) -> pd.DataFrame:
    """Return bins of 1 s from T0 on, for engines without batches: here one tuple is one record.

    `records` are the tuples emitted in the second; `lag` those produced and not yet emitted at its end.
    """
    emitted = tuples.by_second.groupby("second")["n"].sum()
    produced = tuples.produced.set_index("second")["n"]
    last = max([0, *emitted.index.tolist(), *produced.index.tolist()])
    seconds = np.arange(last + 1, dtype=np.int64)
    counts = emitted.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)
    due = produced.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)
    latency = tuples.second_p99.reindex(seconds)
    return pd.DataFrame(
        {
            "lineage": 0,
            "batch": seconds,
            "start_ns": window.t0_ns + seconds * NS,
            "end_ns": window.t0_ns + (seconds + 1) * NS,
            "span_s": 1.0,
            "records": counts,
            "throughput_rps": counts.astype(np.float64),
            "latency_ms": latency.to_numpy(dtype=np.float64),
            "lag": np.cumsum(due) - np.cumsum(counts),
        },
        columns=BIN_COLUMNS,
    )


def between(bins: pd.DataFrame, after_ns: int, until_ns: int) -> pd.DataFrame:
    """Return the bins that end in (after_ns, until_ns]."""
    return bins[(bins["end_ns"] > after_ns) & (bins["end_ns"] <= until_ns)].reset_index(drop=True)


def median_span_s(bins: pd.DataFrame) -> float | None:
    """Return median time between commits in seconds; None without bins."""
    return float(bins["span_s"].median()) if len(bins) else None


def _ends(records: pd.DataFrame) -> dict[str, int]:
    """Return first offset after the given records, by partition."""
    return {
        str(partition): int(offset) + 1 for partition, offset in records.groupby("partition")["offset"].max().items()
    }
