"""Bins: the grains of time in which throughput, latency and lag are read.

A bin of a micro-batch engine is one committed batch: it ends at the commit and spans the time since
the commit before it, so no interpolation stands between the engine's own steps and the figures.
Engines without batches (method `rank`) get bins of 1 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.base import Commit
from faultline.records.judge.latency import Tuples, grouped_rank
from faultline.system.window import NS, Window

Ints = npt.NDArray[np.int64]
BIN_COLUMNS = ["lineage", "batch", "start_ns", "end_ns", "span_s", "records", "throughput_rps", "latency_ms", "lag"]
# Two commits of one lineage cannot share an instant; a span below the clock's grain would divide by 0.
SHORTEST_SPAN_NS = 1_000_000


class Schedule:
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
        """Records whose intended time is not after `wall_ns`."""
        return int(np.searchsorted(self._due_ms, wall_ns // 1_000_000, side="right"))

    def due_seconds(self, start_ns: int, end_ns: int) -> float:
        """∫ due(t) dt over [start, end] in record·seconds: each record counts from its intended time on."""
        due_ns = self._due_ms[: self.due(end_ns)] * 1_000_000
        return float((end_ns - np.maximum(due_ns, start_ns)).sum(dtype=np.float64) / NS)

    def position(self, commit: Commit | None) -> int:
        """Records of the schedule below the commit's end offsets."""
        return 0 if commit is None else self.below(commit.ends)

    def below(self, ends: Mapping[str, int]) -> int:
        """Records of the schedule below these offsets, by partition."""
        return sum(
            int(np.searchsorted(offsets, ends.get(partition, 0))) for partition, offsets in self._offsets.items()
        )

    def primer_backlog(self, commit: Commit | None) -> int:
        """Offsets up to the primer's end that the commit does not cover."""
        ends = {} if commit is None else commit.ends
        return sum(max(0, end - ends.get(partition, 0)) for partition, end in self._primer_ends.items())


def bins_of_batches(commits: Sequence[Commit], schedule: Schedule, tuples: Tuples, window: Window) -> pd.DataFrame:
    """One row of BIN_COLUMNS per batch committed after T0, in order of time.

    A batch begins where the commit before it ended, the first one of a new lineage at its start offsets: what
    was skipped in between is in nobody's throughput, and counts as done in the lag.

    `records` leaves the primer out; `latency_ms` is the p99 of the batch's tuples (NaN without any);
    `lag` counts records due by the commit and not committed.
    """
    latency = grouped_rank(tuples.by_batch, ["lineage", "batch"], 990).to_dict()
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
    """Bins of 1 s from T0 on, for engines without batches: here one tuple is one record.

    `records` are the tuples emitted in the second; `lag` those produced and not yet emitted at its end.
    """
    emitted = tuples.by_second.groupby("second")["n"].sum()
    produced = tuples.produced.set_index("second")["n"]
    last = max([0, *emitted.index.tolist(), *produced.index.tolist()])
    seconds = np.arange(last + 1, dtype=np.int64)
    counts = emitted.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)
    due = produced.reindex(seconds, fill_value=0).to_numpy(dtype=np.int64)
    latency = grouped_rank(tuples.by_second, ["second"], 990).reindex(seconds)
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


def bins_of_work(emitted: pd.DataFrame, batches: pd.DataFrame) -> pd.DataFrame:
    """Bins of the batches of a stage, each with the tuples that it emitted. (start_ns, end_ns, records)

    `emitted`: emitted_ms, n. `batches`: start_ns, end_ns, sorted by their ends; they need not touch. What was put out
    during none of them counts at its instant: its batch was stopped, or never reported.
    """
    starts = batches["start_ns"].to_numpy(dtype=np.int64)
    ends = batches["end_ns"].to_numpy(dtype=np.int64)
    instants = emitted["emitted_ms"].to_numpy(dtype=np.int64) * 1_000_000
    weights = emitted["n"].to_numpy(dtype=np.int64)
    number = np.searchsorted(ends, instants)
    known = number < len(ends)
    known[known] = instants[known] >= starts[number[known]]
    records = np.zeros(len(ends), dtype=np.int64)
    np.add.at(records, number[known], weights[known])
    alone = instants[~known]
    return pd.DataFrame(
        {
            "start_ns": np.concatenate([starts, alone - SHORTEST_SPAN_NS]),
            "end_ns": np.concatenate([ends, alone]),
            "records": np.concatenate([records, weights[~known]]),
        }
    )


def between(bins: pd.DataFrame, after_ns: int, until_ns: int) -> pd.DataFrame:
    """The bins that end in (after_ns, until_ns]."""
    return bins[(bins["end_ns"] > after_ns) & (bins["end_ns"] <= until_ns)].reset_index(drop=True)


def throughput_rps(bins: pd.DataFrame, window: Window) -> float:
    """Records committed per second over the measured window.

    A bin that straddles an edge counts by the share of its span inside. Time in which nothing was
    committed counts in full, so an engine that stopped shows it.
    """
    start = bins["start_ns"].clip(lower=window.start_ns)
    end = bins["end_ns"].clip(upper=window.end_ns)
    share = (end - start).clip(lower=0) / (bins["end_ns"] - bins["start_ns"]).clip(lower=SHORTEST_SPAN_NS)
    return float((share * bins["records"]).sum() / window.duration_s)


def median_span_s(bins: pd.DataFrame) -> float | None:
    """Median time between commits in seconds; None without bins."""
    return float(bins["span_s"].median()) if len(bins) else None


def _ends(records: pd.DataFrame) -> dict[str, int]:
    """First offset after the given records, by partition."""
    return {
        str(partition): int(offset) + 1 for partition, offset in records.groupby("partition")["offset"].max().items()
    }
