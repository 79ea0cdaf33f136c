"""What the engine did in the measured window: batches, tasks, time spent computing, and time spent waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.analysis.bins import Schedule
from faultline.analysis.latency import Tuples
from faultline.base.journal import Line, events
from faultline.base.window import Window


@dataclass(frozen=True)
class Work:
    """Batches that ended in the window and tasks that ended in it, with the seconds each kind took in all."""

    batches: int | None
    tasks: int | None
    batch_s: float | None
    task_s: float | None


def work_of(listener: Sequence[Line], executors: pd.DataFrame, window: Window) -> Work:
    """Counts and times over the window; None where nobody reported: an engine without listener, no REST samples.

    Tasks come from samples of the executors' totals, so they are exact to one sample (1 s) at either edge.
    """
    reported = _reported(listener)
    inside = [line for line in reported if window.start_ns < int(line["wall_ns"]) <= window.end_ns]
    times_ms = [float(line["duration_ms"].get("triggerExecution", 0)) for line in inside]
    tasks, task_ms = (_growth(executors, name, window) for name in ("tasks", "task_ms"))
    return Work(
        batches=len(inside) if reported else None,
        tasks=None if tasks is None else round(tasks),
        batch_s=sum(times_ms) / 1000 if reported else None,
        task_s=None if task_ms is None else task_ms / 1000,
    )


def _reported(listener: Sequence[Line]) -> list[Line]:
    """Progress of batches with the times they took; `known_truth` reports batches without."""
    return [line for line in events(listener, "progress") if line.get("duration_ms")]


def _growth(executors: pd.DataFrame, column: str, window: Window) -> float | None:
    """By how much a total of all executors, dead ones included, grew in the window."""
    samples = executors[executors["id"] != "driver"].sort_values("wall_ns")
    if samples.empty:
        return None
    at_end, at_start = (
        samples[samples["wall_ns"] <= instant].groupby(["app_id", "id"])[column].last().sum()
        for instant in (window.end_ns, window.start_ns)
    )
    return float(at_end - at_start)


def non_compute_ms(
    tuples: Tuples, listener: Sequence[Line], ends_ns: Mapping[int, int], window: Window
) -> float | None:
    """Mean over tuples of latency less the time in which their batch was computed (`addBatch`), in ms, at least 0.

    Over the batches that `ends_ns` (batch -> commit) places in the window. None without batches or listener, and
    for several state lineages, whose batches have the same numbers.
    """
    frame = tuples.by_batch
    if frame.empty or frame["lineage"].nunique() > 1:
        return None
    computed = {int(line["batch"]): line["duration_ms"].get("addBatch") for line in _reported(listener)}
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
