"""Work of the engine in the measured window: throughput, batches, checkpoints, tasks, compute and waiting time, GC."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.protocol import Commit, Traces
from faultline.engines.work import CheckpointReport, Collections, Pause, Totals
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.common_parameters import EXACTLY_ONCE
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import InjectedFault
from faultline.records.judge.signals import SHORTEST_SPAN_NS, Signals, TopicSchedule, median_span_s
from faultline.records.judge.steady import sustained
from faultline.records.judge.tuples import MS, Tuples, nearest_rank
from faultline.records.record import ScheduleLagMs
from faultline.records.work_parts import CheckpointsPart, GarbagePart, MedianAndMax, WorkPart
from faultline.system.journal import Events
from faultline.system.measured_window import NS, Window

DRIVER, EXECUTORS = "driver", "executors"


@dataclass(frozen=True)
class WorkFigures:
    """Fields of `Metrics`."""

    throughput_rps: float | None
    sustained: bool | None
    effective_interval_s: float | None
    source_rps: float
    schedule_lag_ms: ScheduleLagMs
    non_compute_ms: float | None
    work: WorkPart
    gc_s: float | None
    gc: GarbagePart | None
    realtime: bool | None
    data: Mapping[str, Any] | None
    checkpoints: CheckpointsPart | None
    unplanned_exits: int | None
    visible_delay_ms: MedianAndMax | None


def work_of(evidence: Evidence, signals: Signals, *, is_mapping_known: bool) -> WorkFigures:
    """Return the work figures of an attempt. `is_mapping_known`: whether the tuples of each output are known."""
    window, traces, config, tuples = signals.window, evidence.traces, evidence.config, signals.tuples
    # A stage emits the output of a batch at its end, so bins of 1 s would misplace its work.
    batches = last_stage_batches(evidence.stages)
    bins = signals.bins if batches is None else bins_of_work(tuples.emitted, batches)
    throughput = throughput_rps(bins, window) if is_mapping_known else None
    gc = gc_pauses(traces, window)
    return WorkFigures(
        throughput_rps=throughput,
        source_rps=source_rps(signals.schedule, window),
        schedule_lag_ms=evidence.generator.schedule_lag,
        non_compute_ms=non_compute_ms(tuples, traces, window) if is_mapping_known else None,
        work=window_work(traces, window, throughput),
        gc_s=gc_s(traces, gc, window),
        gc=gc,
        realtime=is_real_time(tuples.emissions_ms, window) if COMMIT_MODES[config.commit_mode].real_time else None,
        data=evidence.generator.data,
        checkpoints=checkpoint_figures(traces.checkpoints, window.start_ns, signals.baseline_until_ns),
        unplanned_exits=unplanned_exits(traces, evidence.scheduler.injected, window),
        visible_delay_ms=visible_delay_ms(traces.commits, tuples.emitted, window.start_ns, signals.baseline_until_ns)
        if config.delivery_guarantee == EXACTLY_ONCE
        else None,
        effective_interval_s=median_span_s(signals.baseline_commits),
        sustained=sustained(signals.growth, signals.offered_rps) if config.paced else None,
    )


def window_work(traces: Traces, window: Window, throughput_rps: float | None) -> WorkPart:
    """Return the numbers and times of batches and tasks in the window; None if not reported.

    `throughput_rps`: committed records per second. Task figures are differences of samples, so each edge of the window
    is exact to 1 s.
    """
    times_ms = [batch.duration_ms for batch in traces.batches if window.start_ns < batch.wall_ns <= window.end_ns]
    records = (throughput_rps or 0.0) * window.duration_s
    tasks = task_ms = None
    if traces.totals:
        tasks, task_ms = (
            sum_totals(traces.totals, name, window.end_ns) - sum_totals(traces.totals, name, window.start_ns)
            for name in ("tasks", "task_ms")
        )
    return WorkPart(
        batches=len(times_ms) if traces.batches else None,
        tasks=None if tasks is None else round(tasks),
        batch_s=sum(times_ms) / 1000 if traces.batches else None,
        task_s=None if task_ms is None else task_ms / 1000,
        batch_us_per_record=1000 * sum(times_ms) / records if traces.batches and records else None,
    )


def checkpoint_figures(reports: Sequence[CheckpointReport], after_ns: int, until_ns: int) -> CheckpointsPart | None:
    """Return the figures of the checkpoints completed in (after, until]; None without any report."""
    if not reports:
        return None
    inside = [one for one in reports if after_ns < one.wall_ns <= until_ns]
    figures = {
        name: MedianAndMax(p50=statistics.median(values), max=max(values))
        for name in CheckpointsPart.model_fields
        if name != "count" and (values := [getattr(one, name) for one in inside])
    }
    return CheckpointsPart.model_validate({"count": len(inside), **figures})


def unplanned_exits(traces: Traces, injected: Iterable[InjectedFault], window: Window) -> int | None:
    """Return how many supervised workers ended from T0 to the window's end, without victims; None if not reported."""
    if traces.worker_exits is None:
        return None
    victims = {victim.get("pid") for fault in injected for victim in fault.victims}
    return sum(window.t0_ns <= one.wall_ns <= window.end_ns and one.pid not in victims for one in traces.worker_exits)


def visible_delay_ms(
    commits: Sequence[Commit], emitted: pd.DataFrame, after_ns: int, until_ns: int
) -> MedianAndMax | None:
    """Return how long the tuples emitted in (after, until] waited at most for the end of their transaction, in ms.

    `emitted`: columns emitted_ms and n. The first checkpoint triggered after an output ends its transaction at the
    latest. None if the end of none was observed.
    """
    known = sorted((one.planned_ns, one.committed_ns) for one in commits if one.planned_ns is not None)
    instants = emitted["emitted_ms"].to_numpy(dtype=np.int64) * MS
    index = np.searchsorted(np.array([planned for planned, _ in known], dtype=np.int64), instants)
    chosen = (instants > after_ns) & (instants <= until_ns) & (index < len(known))
    if not chosen.any():
        return None
    ends = np.array([committed for _, committed in known], dtype=np.int64)[index[chosen]]
    delays, weights = ends - instants[chosen], emitted["n"].to_numpy(dtype=np.int64)[chosen]
    return MedianAndMax(p50=(nearest_rank(delays, weights, permille=500) or 0.0) / MS, max=float(delays.max()) / MS)


def throughput_rps(bins: pd.DataFrame, window: Window) -> float:
    """Return the records committed per second of the measured window, including time without commits.

    A bin across an edge of the window counts with the share of its span inside.
    """
    start = bins["start_ns"].clip(lower=window.start_ns)
    end = bins["end_ns"].clip(upper=window.end_ns)
    share = (end - start).clip(lower=0) / (bins["end_ns"] - bins["start_ns"]).clip(lower=SHORTEST_SPAN_NS)
    return float((share * bins["records"]).sum() / window.duration_s)


def bins_of_work(emitted: pd.DataFrame, batches: pd.DataFrame) -> pd.DataFrame:
    """Return one bin per batch of a stage, with the tuples that it emitted: columns start_ns, end_ns and records.

    `emitted`: columns emitted_ms and n. `batches`: columns start_ns and end_ns, sorted by end, possibly with gaps.
    Tuples emitted outside every batch get a bin at their instant, because their batch was stopped or not reported.
    """
    starts = batches["start_ns"].to_numpy(dtype=np.int64)
    ends = batches["end_ns"].to_numpy(dtype=np.int64)
    instants = emitted["emitted_ms"].to_numpy(dtype=np.int64) * 1_000_000
    weights = emitted["n"].to_numpy(dtype=np.int64)
    index = np.searchsorted(ends, instants)
    in_batch = index < len(ends)
    in_batch[in_batch] = instants[in_batch] >= starts[index[in_batch]]
    records = np.zeros(len(ends), dtype=np.int64)
    np.add.at(records, index[in_batch], weights[in_batch])
    outside = instants[~in_batch]
    return pd.DataFrame(
        {
            "start_ns": np.concatenate([starts, outside - SHORTEST_SPAN_NS]),
            "end_ns": np.concatenate([ends, outside]),
            "records": np.concatenate([records, weights[~in_batch]]),
        }
    )


def last_stage_batches(stages: Events) -> pd.DataFrame | None:
    """Return the batches of the last stage, which emits the result; None without stages.

    Columns start_ns and end_ns, sorted by end. The end is the report of the batch, shortly after its commit.
    """
    if not stages:
        return None
    last_stage = "persist" if any("persist" in line["parallelism"] for line in stages["started"]) else "count"
    batches = [
        (int(line["wall_ns"]) - round(float(line["seconds"]) * NS), int(line["wall_ns"]))
        for line in stages["batch"]
        if line["stage"] == last_stage
    ]
    return pd.DataFrame(batches, columns=["start_ns", "end_ns"]).sort_values("end_ns", ignore_index=True)


def non_compute_ms(tuples: Tuples, traces: Traces, window: Window) -> float | None:
    """Return the mean over tuples of latency minus the compute time of their batch, in ms, at least 0 for each tuple.

    Uses the batches committed in the window. None without batches or compute times, and with several state epochs,
    because their batch numbers repeat.
    """
    frame = tuples.by_batch
    if frame.empty or frame["lineage"].nunique() > 1:
        return None
    compute_ms = {batch.number: batch.compute_ms for batch in traces.batches}
    ends_ns = {commit.number: commit.committed_ns for commit in traces.commits}
    inside = [
        batch for batch, end in ends_ns.items() if window.start_ns < end <= window.end_ns and compute_ms.get(batch)
    ]
    rows = frame[frame["batch"].isin(inside)]
    if rows.empty:
        return None
    waiting = (rows["latency_ms"] - rows["batch"].map(compute_ms).astype("float64")).clip(lower=0)
    return float(np.average(waiting, weights=rows["n"]))


def source_rps(schedule: TopicSchedule, window: Window) -> float:
    """Return the offered load in the window, in records/s, by intended send times."""
    return (schedule.due(window.end_ns - 1) - schedule.due(window.start_ns - 1)) / window.duration_s


def is_real_time(emissions_ms: npt.NDArray[np.int64], window: Window) -> bool | None:
    """Return whether the engine emitted outputs while batches still ran; None with fewer than two in the window.

    It did if the gap between outputs, as a median weighted by time, is at most half a commit interval. A plain median
    would not reveal an engine that is silent for seconds and then writes a burst. `emissions_ms`: distinct instants of
    output, sorted.
    """
    inside = emissions_ms[(emissions_ms * 1_000_000 >= window.start_ns) & (emissions_ms * 1_000_000 < window.end_ns)]
    if len(inside) < 2:
        return None
    gaps = np.sort(np.diff(inside))
    cumulative_ms = np.cumsum(gaps)
    median_gap_ms = gaps[np.searchsorted(cumulative_ms, cumulative_ms[-1] / 2)]
    return bool(median_gap_ms <= window.interval_ns / 2_000_000)


# Garbage collection, from the pauses logged by the processes, else from their reported totals.


def gc_pauses(traces: Traces, window: Window) -> GarbagePart | None:
    """Return the GC pauses in the window, from the logs of the processes; None without logs.

    A pause across an edge of the window counts with its part inside. The figure of a role is None if one of its
    processes has no log.
    """
    if not traces.collections:
        return None
    inside = list(_clipped((pause for one in traces.collections for pause in one.pauses), window))
    return GarbagePart(
        driver_s=_pause_seconds(traces.collections, DRIVER, set(), window),
        # Without the log of an executor, the sum would be too small.
        executors_s=_pause_seconds(traces.collections, EXECUTORS, {one.process for one in traces.totals}, window),
        pauses=len(inside),
        longest_ms=max((pause.end_ns - pause.start_ns for pause in inside), default=0) / 1_000_000,
    )


def gc_s(traces: Traces, gc: GarbagePart | None, window: Window) -> float | None:
    """Return the GC time of all worker processes in seconds; None if it is unknown for one of them.

    It comes from their logs if there are any, else from the totals that each process, including dead ones, reported
    last since the start of the window. These totals are updated at the end of a task, and count a pause once for each
    running task.
    """
    if gc is not None:
        return gc.executors_s
    totals = traces.totals
    return (sum_totals(totals, "gc_ms") - sum_totals(totals, "gc_ms", window.start_ns)) / 1000 if totals else None


def _pause_seconds(collections: Sequence[Collections], role: str, processes: set[str], window: Window) -> float | None:
    """Return the total pause of a role; None if one of `processes` has no log."""
    logs = [one for one in collections if one.role == role]
    if not logs or not processes <= {one.process for one in logs}:
        return None
    pauses = _clipped((pause for one in logs for pause in one.pauses), window)
    return sum(pause.end_ns - pause.start_ns for pause in pauses) / NS


def _clipped(pauses: Iterable[Pause], window: Window) -> Iterable[Pause]:
    """Yield the part of each pause inside the window."""
    for pause in pauses:
        start, end = max(pause.start_ns, window.start_ns), min(pause.end_ns, window.end_ns)
        if start < end:
            yield Pause(start, end)


def sum_totals(totals: Sequence[Totals], name: str, until_ns: int | None = None) -> float:
    """Return a total (`gc_ms`, `tasks` or `task_ms`) at `until_ns` (None: at the end), summed over all processes."""
    newest: dict[str, float] = {}
    for sample in totals:
        if until_ns is None or sample.wall_ns <= until_ns:
            newest[sample.process] = getattr(sample, name)
    return sum(newest.values())
