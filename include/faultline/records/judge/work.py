"""What the engine did in the measured window: batches, tasks, time spent computing, and time spent waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from faultline.engines.base import Totals, Traces
from faultline.records.judge.bins import Schedule
from faultline.records.judge.latency import Tuples
from faultline.records.judge.resources.cpu import summed
from faultline.system.window import Window


@dataclass(frozen=True)
class Work:
    """Batches that ended in the window and tasks that ended in it, with the seconds each kind took in all; of batches
    also the microseconds for each record that was committed."""

    batches: int | None
    tasks: int | None
    batch_s: float | None
    task_s: float | None
    batch_us_per_record: float | None


def work_of(traces: Traces, window: Window, throughput_rps: float | None) -> Work:
    """Counts and times over the window; None where nobody reported. `throughput_rps`: records committed, per second.

    Tasks come from samples of totals, so they are exact to one sample (1 s) at either edge.
    """
    times_ms = [batch.took_ms for batch in traces.work if window.start_ns < batch.wall_ns <= window.end_ns]
    records = (throughput_rps or 0.0) * window.duration_s
    tasks, task_ms = (_growth(traces.totals, name, window) for name in ("tasks", "task_ms"))
    return Work(
        batches=len(times_ms) if traces.work else None,
        tasks=None if tasks is None else round(tasks),
        batch_s=sum(times_ms) / 1000 if traces.work else None,
        task_s=None if task_ms is None else task_ms / 1000,
        batch_us_per_record=1000 * sum(times_ms) / records if traces.work and records else None,
    )


def _growth(totals: Sequence[Totals], name: str, window: Window) -> float | None:
    """By how much a total of all processes, dead ones included, grew in the window."""
    return summed(totals, name, window.end_ns) - summed(totals, name, window.start_ns) if totals else None


def non_compute_ms(tuples: Tuples, traces: Traces, window: Window) -> float | None:
    """Mean over tuples of latency less the time in which their batch was computed, in ms, at least 0.

    Over the batches that were committed in the window. None without batches, or when nobody told of such times, and
    for several state lineages, whose batches have the same numbers.
    """
    frame = tuples.by_batch
    if frame.empty or frame["lineage"].nunique() > 1:
        return None
    computed = {batch.number: batch.computed_ms for batch in traces.work}
    ends_ns = {commit.number: commit.committed_ns for commit in traces.commits}
    inside = [batch for batch, end in ends_ns.items() if window.start_ns < end <= window.end_ns and computed.get(batch)]
    rows = frame[frame["batch"].isin(inside)]
    if rows.empty:
        return None
    waiting = (rows["latency_ms"] - rows["batch"].map(computed).astype("float64")).clip(lower=0)
    return float(np.average(waiting, weights=rows["n"]))


def source_rps(schedule: Schedule, window: Window) -> float:
    """Records that the source put out per second of the window, by their intended times."""
    return (schedule.due(window.end_ns - 1) - schedule.due(window.start_ns - 1)) / window.duration_s


def is_real_time(emissions_ms: npt.NDArray[np.int64], window: Window) -> bool | None:
    """Whether outputs came while batches still ran: whoever looks at a random moment sees two outputs around it that
    lie no more than half a batch apart, as likely as not.

    That is the median spacing weighted by time: the plain one says nothing of an engine that is silent for seconds
    and then writes a burst. `emissions_ms`: distinct instants of output, sorted. None with fewer than two of
    them in the window.
    """
    inside = emissions_ms[(emissions_ms * 1_000_000 >= window.start_ns) & (emissions_ms * 1_000_000 < window.end_ns)]
    if len(inside) < 2:
        return None
    gaps = np.sort(np.diff(inside))
    reached = np.cumsum(gaps)
    spacing_ms = gaps[np.searchsorted(reached, reached[-1] / 2)]
    return bool(spacing_ms <= window.interval_ns / 2_000_000)
