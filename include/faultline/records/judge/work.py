"""Work of the engine in the measured window: throughput, batches, tasks, computing time and waiting time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.protocol import Collections, Pause, Totals, Traces
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.signals import SHORTEST_SPAN_NS, Signals, TopicSchedule, median_span_s
from faultline.records.judge.steady import sustained
from faultline.records.judge.tuples import Tuples
from faultline.records.record import GarbagePart, ScheduleLagMs, WorkPart
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


def work_of(evidence: Evidence, signals: Signals, *, in_step: bool) -> WorkFigures:
    """Return `in_step`: whether it is known which output is of which tuple."""
    window, traces, config, tuples = signals.window, evidence.traces, evidence.config, signals.tuples
    # Stages have batches, too: what one emits as it ends was not all done in that second.
    batches = acknowledging(evidence.stages)
    bins = signals.bins if batches is None else bins_of_work(tuples.emitted, batches)
    throughput = throughput_rps(bins, window) if in_step else None
    garbage = garbage_of(traces, window)
    return WorkFigures(
        throughput_rps=throughput,
        source_rps=source_rps(signals.schedule, window),
        schedule_lag_ms=evidence.generator.schedule_lag,
        non_compute_ms=non_compute_ms(tuples, traces, window) if in_step else None,
        work=work_in(traces, window, throughput),
        gc_s=gc_s(traces, garbage, window),
        gc=garbage,
        realtime=is_real_time(tuples.emissions_ms, window) if COMMIT_MODES[config.commit_mode].real_time else None,
        data=evidence.generator.data,
        effective_interval_s=median_span_s(signals.reference),
        sustained=sustained(signals.growth, signals.offered_rps) if config.paced else None,
    )


def work_in(traces: Traces, window: Window, throughput_rps: float | None) -> WorkPart:
    """Return counts and times over the window; None without a report. `throughput_rps`: committed records per second.

    Tasks come from samples of totals, so they are exact to one sample (1 s) at either edge.
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


def throughput_rps(bins: pd.DataFrame, window: Window) -> float:
    """Return records committed per second over the measured window.

    A bin that straddles an edge counts by the share of its span inside. Time in which nothing was
    committed counts in full, so an engine that stopped shows it.
    """
    start = bins["start_ns"].clip(lower=window.start_ns)
    end = bins["end_ns"].clip(upper=window.end_ns)
    share = (end - start).clip(lower=0) / (bins["end_ns"] - bins["start_ns"]).clip(lower=SHORTEST_SPAN_NS)
    return float((share * bins["records"]).sum() / window.duration_s)


def bins_of_work(emitted: pd.DataFrame, batches: pd.DataFrame) -> pd.DataFrame:
    """Return bins of the batches of a stage, each with the tuples that it emitted. (start_ns, end_ns, records)

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


def acknowledging(stages: Events) -> pd.DataFrame | None:
    """Return batches of the last stage, whose output is the result, in order: start_ns, end_ns. None without stages.

    The end is when the batch was reported, a little after it was committed.
    """
    if not stages:
        return None
    last = "persist" if any("persist" in line["parallelism"] for line in stages["started"]) else "count"
    batches = [
        (int(line["wall_ns"]) - round(float(line["seconds"]) * NS), int(line["wall_ns"]))
        for line in stages["batch"]
        if line["stage"] == last
    ]
    return pd.DataFrame(batches, columns=["start_ns", "end_ns"]).sort_values("end_ns", ignore_index=True)


def non_compute_ms(tuples: Tuples, traces: Traces, window: Window) -> float | None:
    """Return mean over tuples of latency less the time in which their batch was computed, in ms, at least 0.

    Over the batches that were committed in the window. None without batches or reported times, and
    for several state lineages, whose batches have the same numbers.
    """
    frame = tuples.by_batch
    if frame.empty or frame["lineage"].nunique() > 1:
        return None
    computed = {batch.number: batch.compute_ms for batch in traces.batches}
    ends_ns = {commit.number: commit.committed_ns for commit in traces.commits}
    inside = [batch for batch, end in ends_ns.items() if window.start_ns < end <= window.end_ns and computed.get(batch)]
    rows = frame[frame["batch"].isin(inside)]
    if rows.empty:
        return None
    waiting = (rows["latency_ms"] - rows["batch"].map(computed).astype("float64")).clip(lower=0)
    return float(np.average(waiting, weights=rows["n"]))


def source_rps(schedule: TopicSchedule, window: Window) -> float:
    """Return records that the source put out per second of the window, by their intended times."""
    return (schedule.due(window.end_ns - 1) - schedule.due(window.start_ns - 1)) / window.duration_s


def is_real_time(emissions_ms: npt.NDArray[np.int64], window: Window) -> bool | None:
    """Return whether outputs came while batches still ran.

    True if the median spacing of outputs, weighted by time, is at most half a batch. The plain median does not describe
    an engine that is silent for seconds and then writes a burst. `emissions_ms`: distinct instants of output, sorted.
    None with fewer than two in the window.
    """
    inside = emissions_ms[(emissions_ms * 1_000_000 >= window.start_ns) & (emissions_ms * 1_000_000 < window.end_ns)]
    if len(inside) < 2:
        return None
    gaps = np.sort(np.diff(inside))
    reached = np.cumsum(gaps)
    spacing_ms = gaps[np.searchsorted(reached, reached[-1] / 2)]
    return bool(spacing_ms <= window.interval_ns / 2_000_000)


# Time that garbage collection took, by the pauses that the processes logged, or by the totals that they reported.


def garbage_of(traces: Traces, window: Window) -> GarbagePart | None:
    """Return pauses within the window, from the processes' own logs; None without logs.

    A pause that lies across an edge counts with its part inside. None of a role of which a process logged nothing.
    """
    if not traces.collections:
        return None
    inside = list(_clipped((pause for one in traces.collections for pause in one.pauses), window))
    return GarbagePart(
        driver_s=_seconds(traces.collections, DRIVER, set(), window),
        # Every executor that was seen must have a log: a sum that lacks one would be too small.
        executors_s=_seconds(traces.collections, EXECUTORS, {one.process for one in traces.totals}, window),
        pauses=len(inside),
        longest_ms=max((pause.end_ns - pause.start_ns for pause in inside), default=0) / 1_000_000,
    )


def gc_s(traces: Traces, garbage: GarbagePart | None, window: Window) -> float | None:
    """Return garbage collection of all processes that do work, in seconds; None where it is not known of all.

    By their logs where there are any. Otherwise from the engine's last report of each, dead ones included, since the
    window began: brought up to date when a task ends, and one pause counts once for each task that was running.
    """
    if garbage is not None:
        return garbage.executors_s
    totals = traces.totals
    return (sum_totals(totals, "gc_ms") - sum_totals(totals, "gc_ms", window.start_ns)) / 1000 if totals else None


def _seconds(collections: Sequence[Collections], role: str, seen: set[str], window: Window) -> float | None:
    known = [one for one in collections if one.role == role]
    if not known or not seen <= {one.process for one in known}:
        return None
    pauses = _clipped((pause for one in known for pause in one.pauses), window)
    return sum(pause.end_ns - pause.start_ns for pause in pauses) / NS


def _clipped(pauses: Iterable[Pause], window: Window) -> Iterable[Pause]:
    """Return the part of each pause inside the window."""
    for pause in pauses:
        start, end = max(pause.start_ns, window.start_ns), min(pause.end_ns, window.end_ns)
        if start < end:
            yield Pause(start, end)


def sum_totals(totals: Sequence[Totals], name: str, until_ns: int | None = None) -> float:
    """Return the newest total of each process up to an instant, over all of them: `gc_ms`, `tasks` or `task_ms`."""
    newest: dict[str, float] = {}
    for sample in totals:
        if until_ns is None or sample.wall_ns <= until_ns:
            newest[sample.process] = getattr(sample, name)
    return sum(newest.values())
