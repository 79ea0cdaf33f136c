"""How hard a fault hit: the deepest dip of throughput, the longest silence, the area under the lag."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.base import Commit
from faultline.records.judge.bins import Schedule
from faultline.records.judge.levels import LEAST, level_begins
from faultline.system.journal import Line, events
from faultline.system.window import NS

# An engine that commits nothing for so long, and for so many bins, has stopped.
HELD_S = 10.0
HELD_BINS = 3


def dip_depth(bins: pd.DataFrame, median_rps: float, resolution_s: float, t0_ns: int, until_ns: int) -> float | None:
    """1 − lowest throughput of the bins that end in (t0, until] ÷ the baseline's median, within [0, 1].

    A bin ends with a commit, so an engine that stays silent makes none: time without a commit up to `until`
    counts as a bin without records once it is as long as `held` (10 s and three bins). None when the
    baseline has no throughput, or when nothing can be said yet.
    """
    if not median_rps > 0:
        return None
    ends = bins["end_ns"].to_numpy(dtype=np.int64)
    inside = (ends > t0_ns) & (ends <= until_ns)
    rates = bins["throughput_rps"].to_numpy(dtype=np.float64)[inside].tolist()
    earlier = ends[ends <= until_ns]
    silent_s = (until_ns - (int(earlier.max()) if len(earlier) else t0_ns)) / NS
    if silent_s >= max(HELD_S, HELD_BINS * resolution_s):
        rates.append(0.0)
    return min(1.0, max(0.0, 1 - min(rates) / median_rps)) if rates else None


def settled_ns(bins: pd.DataFrame, t0_ns: int, until_ns: int) -> int | None:
    """When the last level of the latency began: the end of the first of its bins in (t0, until].

    Of the p99 of each bin, as a logarithm, since an outage is many times what is usual. t0 itself when the latency
    stayed on one level; None with too few bins to tell.
    """
    watched = bins[(bins["end_ns"] > t0_ns) & (bins["end_ns"] <= until_ns) & (bins["latency_ms"] > 0)]
    if len(watched) < 2 * LEAST:
        return None
    begins = level_begins(np.log(watched["latency_ms"].to_numpy(dtype=np.float64)))
    return int(watched["end_ns"].iloc[begins[-1]]) if begins else t0_ns


def phase_at(bins: pd.DataFrame, t0_ns: int, checkpoint_interval_s: float) -> float | None:
    """The share of a checkpoint cycle that was over at t0, at most 1; None before the first commit."""
    before = bins.loc[bins["end_ns"] <= t0_ns, "end_ns"]
    return min(1.0, (t0_ns - int(before.max())) / NS / checkpoint_interval_s) if len(before) else None


def largest_lateness_ms(generator: Sequence[Line], begin_ns: int, end_ns: int) -> float | None:
    """The generator's largest lateness in [begin, end], by what it said each second; None when it said nothing of it.

    A line tells of the second before it.
    """
    told = [
        float(line["latest_ms"])
        for line in events(generator, "progress")
        if "latest_ms" in line and begin_ns < int(line["wall_ns"]) <= end_ns + NS
    ]
    return max(told, default=None)


def longest_silence(emissions_ms: npt.NDArray[np.int64], t0_ns: int, until_ns: int) -> tuple[int, int] | None:
    """(begin, end) in ns of the longest gap between outputs that overlaps [t0, until]; None without any output.

    A gap that is still open at `until` ends there.
    """
    outputs = emissions_ms * 1_000_000
    if len(outputs) and outputs[-1] < until_ns:
        outputs = np.append(outputs, until_ns)
    begins, ends = outputs[:-1], outputs[1:]
    overlapping = (ends > t0_ns) & (begins < until_ns)
    if not overlapping.any():
        return None
    index = int(np.argmax(np.where(overlapping, ends - begins, -1)))
    return int(begins[index]), int(ends[index])


def lag_area(schedule: Schedule, commits: Sequence[Commit], start_ns: int, end_ns: int) -> float:
    """∫ (records due − records committed) dt over [start, end] in record·seconds.

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
        position, since = schedule.position(commit), at
    committed += position * (end_ns - since) / NS
    return schedule.due_seconds(start_ns, end_ns) - committed


def lag_area_of_bins(bins: pd.DataFrame, start_ns: int, end_ns: int) -> float | None:
    """The area under the lag in record·seconds, for engines without commits: linear between the ends of bins.

    None without bins.
    """
    if bins.empty:
        return None
    times = (bins["end_ns"].to_numpy(dtype=np.int64) - start_ns) / NS
    lag = bins["lag"].to_numpy(dtype=np.float64)
    last = (end_ns - start_ns) / NS
    inner = times[(times > 0) & (times < last)]
    grid = np.concatenate([[0.0], inner, [last]])
    return float(np.trapezoid(np.interp(grid, times, lag), grid))
