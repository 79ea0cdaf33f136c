"""End of a scripted recovery by definition 2, computed independently over all records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from faultline.engines.ground_truth.scripted_run import MS, NS, Ints, Outage, RunSpec, ScriptedTimeline
from faultline.experiment.common_parameters import RECOVERED_WITHIN
from faultline.experiment.workloads.known_truth_script import Script
from faultline.records.judge.tuples import nearest_rank


@dataclass(frozen=True)
class PlantedEnd:
    """End of a recovery, in ns after T0; None if it cannot be observed. `out_ns`: time of the last violation."""

    t6_ns: int | None
    t7_ns: int | None
    out_ns: int


@dataclass(frozen=True)
class _Bins:
    begins: Ints
    ends: Ints
    lag: Ints


@dataclass(frozen=True)
class EndWatch:
    """Measured interval in ns after T0.

    For one recovery, from the start of its baseline window to the end of its observation; `until_ns`: next fault.
    """

    start_ns: int
    end_ns: int
    until_ns: int | None = None


def planted_end(script: Script, run: RunSpec, course: ScriptedTimeline, outage: Outage, watch: EndWatch) -> PlantedEnd:
    """Return the end of the recovery from `outage` that the judge must find."""
    lost = np.isin(np.arange(len(course.due_ns)), [n for n, one in course.treatments.items() if not one.copies])
    latency_ms = course.emit_ns // MS - course.due_ns // MS
    start, end, until = watch.start_ns, watch.end_ns, watch.until_ns
    bins = _bins(script, run, course, lost)
    cell = course.due_ns // NS * NS
    normal = ~lost & (cell >= start) & (cell < outage.t0_ns) & (course.emit_ns <= outage.t0_ns)
    values, weights = np.unique(latency_ms[normal], return_counts=True)
    p99 = nearest_rank(values, weights, 990)
    lags = bins.lag[(bins.ends > start) & (bins.ends <= outage.t0_ns)]
    if p99 is None or not len(lags):
        return PlantedEnd(None, None, outage.t0_ns)
    tenth_s = run.checkpoint_interval_s / 10
    limit_ms = max((1 + RECOVERED_WITHIN) * p99, p99 + 1000 * tenth_s)
    most = max((1 + RECOVERED_WITHIN) * lags.max(), lags.max() + tenth_s * run.rate)
    hold_ns = round(max(10, 3 * run.checkpoint_interval_s, 3 / run.rate) * NS)
    late = lost | (latency_ms > limit_ms)
    seen = end + run.interval_ns if until is None else min(end + run.interval_ns, until)
    # Records that the next fault may delay prove nothing.
    end = end if until is None else min(end, until - round(limit_ms * MS))
    t6 = _lag_recovered_at(bins, most, hold_ns, outage.replayed_ns, seen)
    begun = bins.ends[(bins.ends > outage.t0_ns) & (bins.ends < (t6 or 0))]
    from_ns = max([outage.t0_ns, *begun.tolist()])
    cells = cell if run.rate >= 10 else course.due_ns // MS * MS
    found = None if t6 is None else _first_on_time(cells, course.emit_ns, late, from_ns, hold_ns, end)
    t7 = None if found is None or t6 is None else max(t6, found[1])
    judged = cells < (end if found is None else found[0])
    known = np.where(lost, course.due_ns + round(limit_ms * MS), course.emit_ns)
    watched = bins.ends <= seen
    out = [*known[judged & late], *bins.ends[watched & ((bins.lag > most) | (bins.ends < outage.replayed_ns))]]
    if t7 is None:
        out.append(outage.replayed_ns)
    last = until if t7 is None else t7
    return PlantedEnd(t6, t7, max([outage.t0_ns, *(int(at) for at in out if last is None or at < last)]))


def _bins(script: Script, run: RunSpec, course: ScriptedTimeline, lost: np.ndarray) -> _Bins:
    """Return commits, or seconds in the style `record`, with the lag at their ends."""
    if script.style == "batch":
        ends = np.array([row.commit_ns for row in course.rows])
        lag = np.array([course.due(row.commit_ns) - row.record_end for row in course.rows])
        return _Bins(np.concatenate([[0], ends[:-1]]), ends, lag)
    last = int(max(course.emit_ns.max(), course.due_ns.max()) // NS)
    ends = np.arange(1, last + 2) * NS
    emitted = np.sort(course.emit_ns[~lost])
    lag = np.searchsorted(course.due_ns, ends) - np.searchsorted(emitted, ends)
    return _Bins(ends - NS, ends, lag)


def _lag_recovered_at(bins: _Bins, most: float, hold_ns: int, from_ns: int, until_ns: int) -> int | None:
    for end, lag in zip(bins.ends.tolist(), bins.lag.tolist(), strict=True):
        if end < from_ns or lag > most or end + hold_ns > until_ns:
            continue
        inside = sum(
            max(0, min(b, end + hold_ns) - max(a, end))
            for a, b, one in zip(bins.begins.tolist(), bins.ends.tolist(), bins.lag.tolist(), strict=True)
            if one <= most
        )
        if inside >= 0.95 * hold_ns:
            return int(end)
    return None


def _first_on_time(
    cells: Ints, emit_ns: Ints, late: np.ndarray, from_ns: int, hold_ns: int, until_ns: int
) -> tuple[int, int] | None:
    """Return the first cell on time that begins a stability window, and when its first record on time is emitted."""
    for cell in np.unique(cells).tolist():
        if cell + hold_ns > until_ns:
            return None
        own, inside = cells == cell, (cells >= cell) & (cells < cell + hold_ns)
        good = emit_ns[own & ~late]
        if late[own].mean() <= 0.05 and late[inside].mean() <= 0.05 and good.min() >= from_ns:
            return cell, int(good.min())
    return None
