"""Expected values of a script, and the error of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.ground_truth.planted_end import EndWatch, PlantedEnd, planted_end
from faultline.engines.ground_truth.scripted_run import MS, NS, Ints, Outage, RunSpec, ScriptedTimeline, build_timeline
from faultline.experiment.workloads.known_truth_script import Script
from faultline.records.judge.parts import PARTS
from faultline.records.judge.tuples import PERMILLES, nearest_rank
from faultline.records.record import Record, RecoveryPart

# Error in bins of a value that is missing or unexpected.
_MISSING_ERROR = 1e6


@dataclass(frozen=True)
class Planted:
    """Recovery from one kill. `over_ns`: its end after T0; None if it does not end while it is observed."""

    recovered: bool
    over_ns: int | None
    seconds: Mapping[str, float | None]

    def unit_s(self, bin_s: float) -> float:
        """Return the length of a time bin, at least that of the bin in which this recovery ended.

        A bin has tens of tuples, so a single lost tuple may move the end by the whole bin that contains it.
        """
        return max(bin_s, self.seconds["resolution_s"] or 0.0)


@dataclass(frozen=True)
class Truth:
    """Planted values. `resolution_s`: length of a time bin.

    `recoveries`: for each kill, seconds by field of the record's recovery part; None for missing ones. `latency_ms`: by
    field of the record's latency part, over records produced in the measured window. `counts`: integers by field of the
    record's audit part, and `unreflected` of its latency part.
    """

    resolution_s: float
    recoveries: tuple[Planted, ...]
    latency_ms: Mapping[str, float | None]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class TruthError:
    """One planted and measured value. `kind`: `time` (error in bins) or `count` (error as a difference)."""

    name: str
    kind: str
    planted: float | None
    measured: float | None
    error: float


def planted_truth(
    script: Script,
    run: RunSpec,
    *,
    primer: int,
    kills_ns: Sequence[int] | None = None,
    until_ns: int | None = None,
    watch: EndWatch | None = None,
) -> Truth:
    """Return the truth of a run, by the definitions in docs/explanation.

    `primer`: records sent before T0; the audit includes them. `kills_ns`: actual kill times; None: as planned.
    `until_ns`: end of the load; `watch`: measured interval of the fault scheduler; None: as planned. The detection time
    cannot be planted; it counts as 0, because the supervisor waits for its child process.
    """
    if kills_ns is None:
        kills_ns = [] if run.fault_at_ns is None else [run.fault_at_ns]
    return truth_of(script, run, build_timeline(script, run, kills_ns, until_ns), primer=primer, watch=watch)


def truth_of(
    script: Script, run: RunSpec, course: ScriptedTimeline, *, primer: int, watch: EndWatch | None = None
) -> Truth:
    """Return the truth of a timeline."""
    watch = watch or EndWatch(round(run.warmup_s * NS), round(run.end_s * NS))
    produced = (course.due_ns >= watch.start_ns) & (course.due_ns < watch.end_ns)
    emitted = np.ones(len(course.due_ns), dtype=np.bool_)
    lost = [number for number, treatment in course.treatments.items() if not treatment.copies]
    emitted[lost] = False
    counts = {
        "expected": len(course.due_ns) + primer,
        "lost": script.lost,
        "overcounted": script.overcounted,
        "unexpected": 0,
        "reemitted": script.reemitted,
        "unknown": 0,
        "unreflected": int((produced & ~emitted).sum()),
    }
    before = produced
    if course.outages:
        before = produced & (course.due_ns < _hit_from_ns(course, course.outages[0], produced & emitted))
    latency = (course.emit_ns - course.due_ns)[before & emitted] // MS
    bin_s = run.checkpoint_interval_s if script.style == "batch" else 1.0
    found: list[Planted] = []
    for number, outage in enumerate(course.outages):
        later = course.outages[number + 1].t0_ns if number + 1 < len(course.outages) else None
        # The baseline window of a later kill begins at the end of the previous recovery.
        start_ns = found[-1].over_ns if found and found[-1].over_ns is not None else watch.start_ns
        found.append(_recovery(script, run, course, outage, emitted, EndWatch(start_ns, watch.end_ns, later)))
    return Truth(bin_s, tuple(found), _percentiles(latency), counts)


def _recovery(
    script: Script,
    run: RunSpec,
    course: ScriptedTimeline,
    outage: Outage,
    emitted: npt.NDArray[np.bool_],
    watch: EndWatch,
) -> Planted:
    end = planted_end(script, run, course, outage, watch)
    chain, seconds = _chain(outage, end), dict[str, float | None]()
    for part, (begin, after) in PARTS.items():
        first, last = chain[begin], chain[after]
        seconds[part] = None if first is None or last is None else (last - first) / NS
    seconds["durable_s"] = (course.covering(outage).commit_ns - outage.t0_ns) / NS
    watched_ns = watch.end_ns + run.interval_ns
    watched_ns = watched_ns if watch.until_ns is None else min(watched_ns, watch.until_ns)
    seconds["silence_s"] = _silence_s(course.emit_ns[emitted], outage.t0_ns, end.t6_ns or watched_ns)
    seconds["censored_at_s"] = None if end.t7_ns is not None else (end.out_ns - outage.t0_ns) / NS
    seconds["resolution_s"] = None if end.t7_ns is None else (end.t7_ns - end.out_ns) / NS
    return Planted(end.t7_ns is not None, end.t7_ns, seconds)


def compare(truth: Truth, record: Record) -> list[TruthError]:
    """Return every planted value with that of the record, and the error, for a time in bins."""
    metrics = record.metrics
    found = [_truth_error("recoveries", "count", len(truth.recoveries), len(metrics.recoveries))]
    for number, one in enumerate(truth.recoveries, start=1):
        measured = metrics.recoveries[number - 1] if number <= len(metrics.recoveries) else RecoveryPart.empty()
        prefix = f"{number}." if len(truth.recoveries) > 1 else ""
        found.append(_truth_error(f"{prefix}recovered", "count", one.recovered, measured.recovered))
        unit_s = one.unit_s(truth.resolution_s)
        for name, value in one.seconds.items():
            found.append(_truth_error(f"{prefix}{name}", "time", value, getattr(measured, name), unit_s))
    for name, value in truth.latency_ms.items():
        measured_ms = getattr(metrics.latency_ms, name)
        found.append(_truth_error(f"latency_{name}_ms", "time", value, measured_ms, truth.resolution_s * 1000))
    for name, count in truth.counts.items():
        part = metrics.latency_ms if name == "unreflected" else metrics.audit
        found.append(_truth_error(name, "count", count, getattr(part, name)))
    return found


def _truth_error(name: str, kind: str, value: float | None, measured: float | None, unit: float = 1.0) -> TruthError:
    if value is None or measured is None:
        error = 0.0 if value is measured else _MISSING_ERROR if kind == "time" else 1.0
    else:
        error = abs(measured - value) / unit
    return TruthError(name, kind, value, measured, float(error))


def _hit_from_ns(course: ScriptedTimeline, outage: Outage, chosen: npt.NDArray[np.bool_]) -> int:
    """Return the first second of production in which the outage affects the chosen records."""
    own_ns = outage.t0_ns // NS * NS
    waiting = course.due_ns[chosen & (course.due_ns < own_ns) & (course.emit_ns > outage.t0_ns)]
    return int(waiting.min()) // NS * NS if len(waiting) else own_ns


def _chain(outage: Outage, end: PlantedEnd) -> dict[str, int | None]:
    """Return t0 … t7 after T0; None for missing ones."""
    return {
        "t0": outage.t0_ns,
        "t2": outage.t0_ns,
        "t3": outage.launch_ns,
        "t4": outage.loaded_ns,
        "t5": outage.replayed_ns,
        "t6": end.t6_ns,
        "t7": end.t7_ns,
    }


def _silence_s(emit_ns: Ints, t0_ns: int, until_ns: int) -> float:
    """Return the longest time between outputs that overlaps [t0, until]."""
    outputs = np.sort(emit_ns)
    if outputs[-1] < until_ns:
        outputs = np.append(outputs, until_ns)
    begins, ends = outputs[:-1], outputs[1:]
    overlapping = (ends > t0_ns) & (begins < until_ns)
    return float((ends - begins)[overlapping].max()) / NS


def _percentiles(latency_ms: Ints) -> dict[str, float | None]:
    values, weights = np.unique(latency_ms, return_counts=True)
    ranks = {name: nearest_rank(values, weights, permille) for name, permille in PERMILLES.items()}
    if not len(latency_ms):
        return {**ranks, "mean": None, "max": None}
    return {**ranks, "mean": float(latency_ms.mean()), "max": float(latency_ms.max())}
