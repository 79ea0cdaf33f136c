"""Timeline of a fault: the instants t0 … t7, each with its evidence (the file and line it is read from).

t0: signal delivered. t1: last output before the silence. t2: loss detected. t3: task launched. t4: its state loaded.
t5: all input that preceded the fault processed. t6: lag normal. t7: tuples on time, the end of the recovery.

The engine determines t2, because detection depends on the victim's role. Module `end` determines t6 and t7. The other
instants come from the engine's traces between t0 and the next fault's t0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from fault.identity import KAFKA
from faultline.engines.protocol import (
    Commit,
    EngineEvent,
    EvidenceReader,
    FaultInterval,
    ProcessRun,
    StateEpoch,
    Traces,
    VictimGroup,
)
from faultline.records.judge.end import end_of, production_cells
from faultline.records.judge.steady import Limits
from faultline.system.journal import Line
from faultline.system.measured_window import CLOCK_RESOLUTION_NS, Window

CHAIN = ("t0", "t2", "t3", "t4", "t5", "t6", "t7")


@dataclass(frozen=True)
class EvidenceEvent:
    """Named instant with its evidence, the file and line it is read from."""

    name: str
    wall_ns: int
    source: str


@dataclass(frozen=True)
class FaultEvidence:
    """Inputs of the timeline of one fault.

    `engine`: reader of the `traces`. `victim`: planned role, used if the lines of `victims` name none. `victims`: lines
    on the processes hit, from the fault scheduler's journal (conductor.jsonl). `end_offsets`: of the broker, read just
    before the signal. `emits_at_once`: whether outputs do not wait for a batch. `emitted_ns`: last first output of the
    tuples due at t0, of such an engine; None if some were never processed. `production`: tuples by production cell (see
    `tuples`). `limits`: recovery thresholds; None without a baseline. `services`: lines on started services.
    `undo_lines`: the journal's lines on the undo of this fault; empty if it has no undo. `until_ns`: t0 of the next
    fault, where observation of this one ends; None for the last fault.
    """

    engine: EvidenceReader
    traces: Traces
    t0_ns: int
    victim: str
    victims: Sequence[Line]
    end_offsets: Mapping[str, int]
    bins: pd.DataFrame
    production: pd.DataFrame
    limits: Limits | None
    emissions_ms: npt.NDArray[np.int64]
    window: Window
    emits_at_once: bool = False
    emitted_ns: int | None = None
    services: Sequence[Line] = ()
    undo_lines: Sequence[Line] = ()
    until_ns: int | None = None

    @property
    def span(self) -> FaultInterval:
        """Time from this fault to the next one."""
        return FaultInterval(self.t0_ns, self.until_ns)

    @property
    def watched_until_ns(self) -> int:
        """Latest end of a time bin that counts: the next fault, or one commit interval after the measured window."""
        end = self.window.watched_until_ns
        return end if self.until_ns is None else min(end, self.until_ns)

    @property
    def produced_until_ns(self) -> int:
        """End of the production that this recovery includes.

        It is the end of the load, or L* before the next fault, because that fault may delay later tuples.
        """
        end = self.window.end_ns
        if self.until_ns is None or self.limits is None or self.limits.latency_ms is None:
            return end
        return min(end, self.until_ns - round(self.limits.latency_ms * 1_000_000))

    def engine_events(self, kind: str) -> list[EngineEvent]:
        """Return the engine events of a kind between this fault and the next one."""
        return [one for one in self.traces.events_of(kind) if self.span.contains(one.wall_ns)]

    def started_services(self) -> list[Line]:
        """Return the lines on services started between this fault and the next one."""
        return [line for line in self.services if self.span.contains(int(line["wall_ns"]))]

    def new_process_runs(self) -> list[ProcessRun]:
        """Return the process runs that the workload supervisor started between this fault and the next one."""
        return [run for run in self.traces.process_runs if self.span.contains(run.began_ns)]

    def new_epochs(self) -> list[StateEpoch]:
        """Return the state epochs started between this fault and the next one (commit mode `none`)."""
        return [epoch for epoch in self.traces.epochs if self.span.contains(epoch.began_ns)]

    def ordered_commits(self) -> Iterator[Commit]:
        """Yield the commits between this fault and the next one, in chronological order."""
        for commit in sorted(self.traces.commits, key=lambda item: item.committed_ns):
            wall_ns = commit.committed_ns
            if wall_ns >= self.t0_ns and (self.until_ns is None or wall_ns < self.until_ns):
                yield commit


Timeline = Mapping[str, EvidenceEvent]


def read_timeline(evidence: FaultEvidence) -> dict[str, EvidenceEvent]:
    """Return the observed events by name; events that were not observed are missing."""
    found: dict[str, EvidenceEvent] = {"t0": EvidenceEvent("t0", evidence.t0_ns, "conductor.jsonl: signal delivered")}
    t2 = detect(evidence)
    _add_if_found(found, t2)
    # The engine may commit, or emit at once, until it loses a process; this does not end its replay.
    goes_on = evidence.emits_at_once or undo_event(evidence) is not None
    from_ns = t2.wall_ns if goes_on and t2 is not None else evidence.t0_ns
    covered = _covering_commit(evidence, from_ns)
    t5 = _last_waiting_output(evidence, from_ns) if evidence.emits_at_once else covered
    if t2 is not None:
        for event in _redeploy_and_load(evidence, t2, t5, covered):
            _add_if_found(found, event)
    if evidence.emits_at_once:
        _add_if_found(found, covered and replace(covered, name="durable"))
        t5 = t5 and _not_before(t5, found.get("t4"))
    _add_if_found(found, t5)
    for event in _end_of_recovery(evidence, found.get("t5")):
        _add_if_found(found, event)
    _add_if_found(found, _last_output(evidence, found.get("t6")))
    _add_if_found(found, _replacement_process(evidence))
    _add_if_found(found, _last_snapshot(evidence))
    return found


def other_events(evidence: FaultEvidence) -> list[EvidenceEvent]:
    """Return the events outside the chain, in chronological order; a name may repeat.

    Names: `driver_restarted`, `state_epoch`, `service_up` and `fault_undone`.
    """
    found = [
        EvidenceEvent("driver_restarted", run.began_ns, f"supervisor.jsonl: start of incarnation {run.incarnation}")
        for run in evidence.new_process_runs()
        if run.began_ns is not None
    ]
    found += [
        EvidenceEvent("state_epoch", epoch.began_ns, f"supervisor.jsonl: lineage {epoch.number}: {epoch.reason}")
        for epoch in evidence.new_epochs()
    ]
    found += [
        EvidenceEvent(
            "service_up", int(line["wall_ns"]), f"services.jsonl: {line['service']} started (pid {line.get('pid')})"
        )
        for line in evidence.started_services()
    ]
    found = [event for event in found if event.wall_ns <= evidence.watched_until_ns]
    found += [
        EvidenceEvent("fault_undone", int(line["wall_ns"]), f"conductor.jsonl: {line.get('undo')} undone")
        for line in evidence.undo_lines
    ]
    return sorted(found, key=lambda event: event.wall_ns)


def first_loads(loads: Sequence[EngineEvent], after_ns: int, until_ns: int | None) -> list[EngineEvent]:
    """Return the first load of each state store in [after, until]: the stores reopened because of the fault.

    Later loads of a store are moves between executors, not recovery.
    """
    first: dict[str | None, EngineEvent] = {}
    for load in loads:
        if load.wall_ns >= after_ns and (until_ns is None or load.wall_ns <= until_ns):
            first.setdefault(load.store, load)
    return list(first.values())


def _add_if_found(found: dict[str, EvidenceEvent], event: EvidenceEvent | None) -> None:
    if event is not None:
        found[event.name] = event


def _not_before(t5: EvidenceEvent, t4: EvidenceEvent | None) -> EvidenceEvent:
    """Return t5, at t4 at the earliest: state was loaded even if no output was missing at the fault."""
    return t5 if t4 is None or t5.wall_ns >= t4.wall_ns else replace(t4, name="t5")


def _last_waiting_output(evidence: FaultEvidence, from_ns: int) -> EvidenceEvent | None:
    """Return t5 of an engine that emits at once: the last first output of the input present at the fault, or None."""
    at_ns, until_ns, source = evidence.emitted_ns, evidence.until_ns, "last first output of the tuples due at the fault"
    if at_ns is None or (until_ns is not None and at_ns >= until_ns):
        return None
    return EvidenceEvent("t5", max(at_ns, from_ns), f"harvest/tuples.parquet: {source}")


def _covering_commit(evidence: FaultEvidence, from_ns: int) -> EvidenceEvent | None:
    """Return the first commit from `from_ns` on that covers the broker's end offsets at the signal, as t5.

    A new state epoch starts after those offsets, so its first commit counts.
    """
    epochs = evidence.new_epochs()
    first = epochs[0].number if epochs else 0
    for commit in evidence.ordered_commits():
        if commit.committed_ns < from_ns or commit.epoch < first:
            continue
        if epochs or commit.covers(evidence.end_offsets):
            of_epoch = f" of lineage {commit.epoch}" if epochs else ""
            source = f"batches.json: commit of batch {commit.number}{of_epoch}"
            return EvidenceEvent("t5", commit.committed_ns, source)
    return None


def _redeploy_and_load(
    evidence: FaultEvidence, t2: EvidenceEvent, t5: EvidenceEvent | None, covered: EvidenceEvent | None
) -> list[EvidenceEvent]:
    """Return t4, the last state load, and t3, the launch of its task; without state loads, both are the first launch.

    The search starts at the last start of a driver or state epoch before t5 and `covered`, the covering commit: loads
    of a driver or epoch that ended before are not part of the recovery. A new epoch has no state to load. If the fault
    hit only the broker, running tasks may wait for it and reach t5 without a new launch; t3 and t4 are then t5.
    """
    ends = [one.wall_ns for one in (t5, covered) if one is not None]
    latest_ns = evidence.until_ns if covered is None else max(ends) + CLOCK_RESOLUTION_NS
    has_new_epochs = bool(evidence.new_epochs())
    start_ns = _last_start_ns(evidence, t2.wall_ns, latest_ns)
    launches = evidence.traces.events_of("task_started")
    loads = (
        []
        if has_new_epochs
        else first_loads(evidence.traces.events_of("state_loaded"), start_ns - CLOCK_RESOLUTION_NS, latest_ns)
    )
    if not loads:
        if not has_new_epochs and start_ns == t2.wall_ns and _is_undo(evidence, t2):
            source = f"{t2.source}; no state was loaded again"
            return [EvidenceEvent("t3", t2.wall_ns, source), EvidenceEvent("t4", t2.wall_ns, source)]
        launched = next((task for task in launches if task.wall_ns >= start_ns), None)
        may_wait = start_ns == t2.wall_ns and _is_only_broker_hit(evidence)
        if may_wait and t5 is not None and (launched is None or launched.wall_ns > t5.wall_ns + CLOCK_RESOLUTION_NS):
            source = f"{t5.source}; what ran at the fault went on, and no task was launched before"
            return [EvidenceEvent("t3", t5.wall_ns, source), EvidenceEvent("t4", t5.wall_ns, source)]
        if launched is None or not evidence.span.contains(launched.wall_ns):
            return []
        after = "t2" if start_ns == t2.wall_ns else "the new start"
        source = f"{launched.file}: first task after {after} ({launched.task}), no state to load"
        return [EvidenceEvent("t3", launched.wall_ns, source), EvidenceEvent("t4", launched.wall_ns, source)]
    last = max(loads, key=lambda load: load.wall_ns)
    loading_tasks = [task for task in launches if (task.process, task.task) == (last.process, last.task)]
    return [
        EvidenceEvent("t4", last.wall_ns, last.source),
        *(EvidenceEvent("t3", task.wall_ns, task.source) for task in loading_tasks),
    ]


def _is_only_broker_hit(evidence: FaultEvidence) -> bool:
    """Return whether the fault hit only the broker: the engine's tasks then wait for it and continue."""
    return {group.role for group in victim_groups(evidence)} == {KAFKA.name}


def _last_start_ns(evidence: FaultEvidence, t2_ns: int, latest_ns: int | None) -> int:
    """Return the last start of a driver or state epoch in [t2, latest]; t2 if there was none."""
    starts = [
        *(run.began_ns for run in evidence.new_process_runs()),
        *(epoch.began_ns for epoch in evidence.new_epochs()),
    ]
    return max([t2_ns, *(at for at in starts if at is not None and (latest_ns is None or at <= latest_ns))])


def _is_undo(evidence: FaultEvidence, t2: EvidenceEvent) -> bool:
    """Return whether t2 is the undo of the fault, because nothing was detected before."""
    undo = undo_event(evidence)
    return undo is not None and undo.wall_ns == t2.wall_ns


def _end_of_recovery(evidence: FaultEvidence, t5: EvidenceEvent | None) -> list[EvidenceEvent]:
    """Return t6 and t7 as far as observed, and the last threshold violation before the end."""
    limits = evidence.limits
    if limits is None:
        return []
    recovery_end = end_of(
        production_cells(evidence.production, limits.latency_ms),
        evidence.bins,
        limits,
        t0_ns=evidence.t0_ns,
        t5_ns=None if t5 is None else t5.wall_ns,
        produced_until_ns=evidence.produced_until_ns,
        watched_until_ns=evidence.watched_until_ns,
        until_ns=evidence.until_ns,
    )
    file = "batches.json" if not evidence.traces.per_record else "harvest/tuples.parquet"
    lag = f"{file}: lag at most {limits.lag:,.0f} records for 95 % of the next {limits.hold_s:.0f} s"
    latency = f"{lag}; no output tells of which input it is"
    if limits.latency_ms is not None:
        latency = (
            f"harvest/tuples.parquet: latency at most {limits.latency_ms:,.0f} ms for 95 % of the tuples of the next "
            f"{limits.hold_s:.0f} s"
        )
    violation = ("last_violation", recovery_end.last_violation_ns, recovery_end.violation)
    events = [("t6", recovery_end.t6_ns, lag), ("t7", recovery_end.t7_ns, latency), violation]
    return [EvidenceEvent(name, wall_ns, source) for name, wall_ns, source in events if wall_ns is not None]


def _last_output(evidence: FaultEvidence, t6: EvidenceEvent | None) -> EvidenceEvent | None:
    """Return t1: the last output before the longest silence that overlaps [t0, t6]; no recovery part uses it."""
    silence = longest_silence(
        evidence.emissions_ms, evidence.t0_ns, evidence.watched_until_ns if t6 is None else t6.wall_ns
    )
    return (
        None
        if silence is None
        else EvidenceEvent("t1", silence[0], "harvest/tuples.parquet: last output before the silence")
    )


def _replacement_process(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the registration of the first worker process after t0, or None."""
    added = [one for one in evidence.engine_events("registered") if one.wall_ns > evidence.t0_ns]
    return EvidenceEvent("replacement_up", added[0].wall_ns, added[0].source) if added else None


def _last_snapshot(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the last state snapshot in the checkpoint before the signal, or None; its age explains the replay."""
    before = [one for one in evidence.traces.events_of("snapshot") if one.wall_ns <= evidence.t0_ns]
    if not before:
        return None
    last = max(before, key=lambda one: one.wall_ns)
    return EvidenceEvent("snapshot", last.wall_ns, last.source)


def longest_silence(emissions_ms: npt.NDArray[np.int64], t0_ns: int, until_ns: int) -> tuple[int, int] | None:
    """Return (begin, end) in ns of the longest gap between outputs that overlaps [t0, until]; None without outputs.

    A gap that is open at `until` ends there.
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


def detect(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return t2: the detection of the last victim, or the undo if nothing was detected before it; else None."""
    detection, undo = _detection(evidence), undo_event(evidence)
    if undo is None or (detection is not None and detection.wall_ns <= undo.wall_ns):
        return detection
    return EvidenceEvent("t2", undo.wall_ns, f"{undo.source}; nothing was noticed before")


def undo_event(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the undo of the fault, that of its last victim; None if it has no undo."""
    if not evidence.undo_lines:
        return None
    last = max(evidence.undo_lines, key=lambda line: int(line["wall_ns"]))
    return EvidenceEvent("fault_undone", int(last["wall_ns"]), f"conductor.jsonl: {last.get('undo')} undone")


def no_effect_reason(evidence: FaultEvidence) -> str | None:
    """Return why the loss of the victim did not affect the run; None if it did or if the fault has an undo."""
    if evidence.undo_lines:
        return None
    groups = victim_groups(evidence)
    if len(groups) > 1 or not groups[0].victims:
        return None
    return evidence.engine.without_effect(groups[0], evidence.traces)


def _detection(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the last detection, or None if the victims of some role were not detected."""
    found = [evidence.engine.detect(group, evidence.traces) for group in victim_groups(evidence)]
    detections = [one for one in found if one is not None]
    if len(detections) < len(found):
        return None
    last = max(detections, key=lambda one: one.wall_ns)
    return EvidenceEvent("t2", last.wall_ns, last.source)


def victim_groups(evidence: FaultEvidence) -> list[VictimGroup]:
    """Return the victims by actual role, as named in their lines; the planned role may be `any`."""
    by_role: dict[str, list[Line]] = {}
    for victim in evidence.victims:
        role = str(victim.get("role"))
        by_role.setdefault(role if role in evidence.engine.roles else evidence.victim, []).append(victim)
    return [VictimGroup(role, victims, evidence.span) for role, victims in (by_role or {evidence.victim: []}).items()]
