"""The timeline of a fault: t0 … t7, each an instant with the evidence it was read from.

Only t2 depends on what was broken: who notices the loss of which victim, the engine knows. t6 and t7 depend on when
tuples were on time again (see `end`); everything else reads the engine's traces and the bins, within the time that
belongs to the fault: from t0 to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from faultline.records.judge.end import cells_of, end_of
from faultline.records.judge.steady import Limits
from faultline.system.journal import Line
from faultline.system.measured_window import CLOCK_RESOLUTION_NS, Window

CHAIN = ("t0", "t2", "t3", "t4", "t5", "t6", "t7")


@dataclass(frozen=True)
class EvidenceEvent:
    """A named instant and where it was read."""

    name: str
    wall_ns: int
    source: str


@dataclass(frozen=True)
class FaultEvidence:
    """All that the timeline of one fault is read from.

    `engine`: of the run, which left the `traces`. `victim`: the role, where the victim lines name none.
    `victims`: the conductor's lines of those that were hit. `end_offsets`: the broker's, read just before the signal.
    `production`: tuples by cell of production. `limits`: up to where the engine counts as recovered; None where nothing
    was seen before the fault. `services`: lines on those that were started. `undone`: the conductor's lines of this
    fault; none for an act that has no end. `until_ns`: the next fault's t0; this fault is watched no longer.
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
    services: Sequence[Line] = ()
    undone: Sequence[Line] = ()
    until_ns: int | None = None

    @property
    def span(self) -> FaultInterval:
        """The time that belongs to this fault."""
        return FaultInterval(self.t0_ns, self.until_ns)

    @property
    def watched_until_ns(self) -> int:
        """Last instant that a bin may end at to count: the next fault, or the generator's rest."""
        end = self.window.watched_until_ns
        return end if self.until_ns is None else min(end, self.until_ns)

    @property
    def produced_until_ns(self) -> int:
        """Last instant of production of this recovery: end of the load, or before the next fault's effect."""
        end = self.window.end_ns
        if self.until_ns is None or self.limits is None or self.limits.latency_ms is None:
            return end
        return min(end, self.until_ns - round(self.limits.latency_ms * 1_000_000))

    def seen(self, kind: str) -> list[EngineEvent]:
        """Return the engine events during this fault."""
        return [one for one in self.traces.events_of(kind) if self.span.contains(one.wall_ns)]

    def services_started(self) -> list[Line]:
        """Return the lines on services that were started in the time of this fault."""
        return [line for line in self.services if self.span.contains(int(line["wall_ns"]))]

    def new_lives(self) -> list[ProcessRun]:
        """Return lives that the workload supervisor began in the time of this fault."""
        return [life for life in self.traces.process_runs if self.span.contains(life.began_ns)]

    def new_epochs(self) -> list[StateEpoch]:
        """Return state lineages that were begun after the fault (commit mode `none`)."""
        return [epoch for epoch in self.traces.epochs if self.span.contains(epoch.began_ns)]

    def ordered_commits(self) -> Iterator[Commit]:
        """Return commits that belong to this fault, in order of time."""
        for commit in sorted(self.traces.commits, key=lambda item: item.committed_ns):
            wall_ns = commit.committed_ns
            if wall_ns >= self.t0_ns and (self.until_ns is None or wall_ns < self.until_ns):
                yield commit


Timeline = Mapping[str, EvidenceEvent]


def read_timeline(evidence: FaultEvidence) -> dict[str, EvidenceEvent]:
    """Return the events that can be found, by name; a name that is missing was not seen."""
    found: dict[str, EvidenceEvent] = {"t0": EvidenceEvent("t0", evidence.t0_ns, "conductor.jsonl: signal delivered")}
    t2 = detect(evidence)
    _add(found, t2)
    # An act that lasts may leave the engine committing all the while; what was not yet over is not caught up.
    lasted = undo_of(evidence) is not None and t2 is not None
    _add(found, _caught_up(evidence, t2.wall_ns if lasted and t2 is not None else evidence.t0_ns))
    if t2 is not None:
        for event in _redeployed(evidence, t2, found.get("t5")):
            _add(found, event)
    for event in _ended(evidence, found.get("t5")):
        _add(found, event)
    _add(found, _silence(evidence, found.get("t6")))
    _add(found, _replacement(evidence))
    _add(found, _snapshot(evidence))
    return found


def companions(evidence: FaultEvidence) -> list[EvidenceEvent]:
    """Return the other events while this fault was observed, in order of time; a name may repeat.

    `driver_restarted`, `state_epoch`, `service_up` and `fault_undone`.
    """
    found = [
        EvidenceEvent("driver_restarted", life.began_ns, f"supervisor.jsonl: start of incarnation {life.incarnation}")
        for life in evidence.new_lives()
        if life.began_ns is not None
    ]
    found += [
        EvidenceEvent("state_epoch", epoch.began_ns, f"supervisor.jsonl: lineage {epoch.number}: {epoch.reason}")
        for epoch in evidence.new_epochs()
    ]
    found += [
        EvidenceEvent(
            "service_up", int(line["wall_ns"]), f"services.jsonl: {line['service']} started (pid {line.get('pid')})"
        )
        for line in evidence.services_started()
    ]
    found = [event for event in found if event.wall_ns <= evidence.watched_until_ns]
    found += [
        EvidenceEvent("fault_undone", int(line["wall_ns"]), f"conductor.jsonl: {line.get('undo')} undone")
        for line in evidence.undone
    ]
    return sorted(found, key=lambda event: event.wall_ns)


def reloads(loads: Sequence[EngineEvent], after_ns: int, until_ns: int | None) -> list[EngineEvent]:
    """Return the first load of each store in [after, until]: the partitions reopened by the fault.

    Later loads of the same store are moves between executors, not recovery.
    """
    first: dict[str | None, EngineEvent] = {}
    for load in loads:
        if load.wall_ns >= after_ns and (until_ns is None or load.wall_ns <= until_ns):
            first.setdefault(load.store, load)
    return list(first.values())


def _add(found: dict[str, EvidenceEvent], event: EvidenceEvent | None) -> None:
    if event is not None:
        found[event.name] = event


def _caught_up(evidence: FaultEvidence, from_ns: int) -> EvidenceEvent | None:
    """Return t5: first commit from then on that covers what the broker held when the signal was sent.

    A new state lineage begins behind those records, so its first commit is the one.
    """
    epochs = evidence.new_epochs()
    first = epochs[0].number if epochs else 0
    for commit in evidence.ordered_commits():
        if commit.committed_ns < from_ns or commit.epoch < first:
            continue
        if epochs or commit.covers(evidence.end_offsets):
            where = f" of lineage {commit.epoch}" if epochs else ""
            return EvidenceEvent("t5", commit.committed_ns, f"batches.json: commit of batch {commit.number}{where}")
    return None


def _redeployed(evidence: FaultEvidence, t2: EvidenceEvent, t5: EvidenceEvent | None) -> list[EvidenceEvent]:
    """Return t3 and t4: the last of the reloads and the launch of its task; without any, the first launch.

    Both are looked for from the last new start before t5 on: what an incarnation of the driver or a state
    lineage loaded that did not last until t5 is not the recovery. A new lineage has no state to load. Where only the
    broker was hit, the batch that waited for it may be the one of t5: then nothing was launched, and both are t5.
    """
    latest = evidence.until_ns if t5 is None else t5.wall_ns + CLOCK_RESOLUTION_NS
    has_new_epochs = bool(evidence.new_epochs())
    begun_ns = _begun(evidence, t2.wall_ns, latest)
    started = evidence.traces.events_of("task_started")
    loads = (
        []
        if has_new_epochs
        else reloads(evidence.traces.events_of("state_loaded"), begun_ns - CLOCK_RESOLUTION_NS, latest)
    )
    if not loads:
        if not has_new_epochs and begun_ns == t2.wall_ns and _is_undo(evidence, t2):
            source = f"{t2.source}; no state was loaded again"
            return [EvidenceEvent("t3", t2.wall_ns, source), EvidenceEvent("t4", t2.wall_ns, source)]
        launched = next((task for task in started if task.wall_ns >= begun_ns), None)
        waited = begun_ns == t2.wall_ns and _only_the_broker(evidence)
        if waited and t5 is not None and (launched is None or launched.wall_ns > t5.wall_ns + CLOCK_RESOLUTION_NS):
            source = f"{t5.source}; what ran at the fault went on, and no task was launched before"
            return [EvidenceEvent("t3", t5.wall_ns, source), EvidenceEvent("t4", t5.wall_ns, source)]
        if launched is None or not evidence.span.contains(launched.wall_ns):
            return []
        after = "t2" if begun_ns == t2.wall_ns else "the new start"
        source = f"{launched.file}: first task after {after} ({launched.task}), no state to load"
        return [EvidenceEvent("t3", launched.wall_ns, source), EvidenceEvent("t4", launched.wall_ns, source)]
    last = max(loads, key=lambda load: load.wall_ns)
    own = [task for task in started if (task.process, task.task) == (last.process, last.task)]
    return [
        EvidenceEvent("t4", last.wall_ns, last.source),
        *(EvidenceEvent("t3", task.wall_ns, task.source) for task in own),
    ]


def _only_the_broker(evidence: FaultEvidence) -> bool:
    """Return whether the engine lost no process: its tasks wait for the broker and continue."""
    return {hit.role for hit in hits(evidence)} == {KAFKA.name}


def _begun(evidence: FaultEvidence, t2_ns: int, latest_ns: int | None) -> int:
    """Return the last start of a driver or of a lineage in [t2, latest]; t2 when there was none."""
    begun = [*(life.began_ns for life in evidence.new_lives()), *(epoch.began_ns for epoch in evidence.new_epochs())]
    return max([t2_ns, *(at for at in begun if at is not None and (latest_ns is None or at <= latest_ns))])


def _is_undo(evidence: FaultEvidence, t2: EvidenceEvent) -> bool:
    undone = undo_of(evidence)
    return undone is not None and undone.wall_ns == t2.wall_ns


def _ended(evidence: FaultEvidence, t5: EvidenceEvent | None) -> list[EvidenceEvent]:
    """Return t6 and t7, as far as they were seen, and the last thing that was out of its bound before the end."""
    limits = evidence.limits
    if limits is None:
        return []
    end = end_of(
        cells_of(evidence.production, limits.latency_ms),
        evidence.bins,
        limits,
        t0_ns=evidence.t0_ns,
        t5_ns=None if t5 is None else t5.wall_ns,
        produced_until_ns=evidence.produced_until_ns,
        watched_until_ns=evidence.watched_until_ns,
        until_ns=evidence.until_ns,
    )
    lag = f"batches.json: lag at most {limits.lag:,.0f} records for 95 % of the next {limits.hold_s:.0f} s"
    tuples = f"{lag}; no output tells of which input it is"
    if limits.latency_ms is not None:
        tuples = (
            f"harvest/tuples.parquet: latency at most {limits.latency_ms:,.0f} ms for 95 % of the tuples of the next "
            f"{limits.hold_s:.0f} s"
        )
    events = [
        ("t6", end.t6_ns, lag),
        ("t7", end.t7_ns, tuples),
        ("last_violation", end.out_ns, end.out),
    ]
    return [EvidenceEvent(name, wall_ns, source) for name, wall_ns, source in events if wall_ns is not None]


def _silence(evidence: FaultEvidence, t6: EvidenceEvent | None) -> EvidenceEvent | None:
    """Return t1: last output before the longest silence that overlaps [t0, t6]; informative only."""
    silence = longest_silence(
        evidence.emissions_ms, evidence.t0_ns, evidence.watched_until_ns if t6 is None else t6.wall_ns
    )
    return (
        None
        if silence is None
        else EvidenceEvent("t1", silence[0], "harvest/tuples.parquet: last output before the silence")
    )


def _replacement(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return registration of the first process that was added after t0."""
    added = [one for one in evidence.seen("registered") if one.wall_ns > evidence.t0_ns]
    return EvidenceEvent("replacement_up", added[0].wall_ns, added[0].source) if added else None


def _snapshot(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the last snapshot that reached the checkpoint before the signal: its age explains the replay."""
    before = [one for one in evidence.traces.events_of("snapshot") if one.wall_ns <= evidence.t0_ns]
    if not before:
        return None
    last = max(before, key=lambda one: one.wall_ns)
    return EvidenceEvent("snapshot", last.wall_ns, last.source)


def longest_silence(emissions_ms: npt.NDArray[np.int64], t0_ns: int, until_ns: int) -> tuple[int, int] | None:
    """Return (begin, end) in ns of the longest gap between outputs that overlaps [t0, until]; None without any output.

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


def detect(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return t2, the last one for victims of several roles; None without a detection."""
    noticed, undone = _noticed(evidence), undo_of(evidence)
    if undone is None or (noticed is not None and noticed.wall_ns <= undone.wall_ns):
        return noticed
    return EvidenceEvent("t2", undone.wall_ns, f"{undone.source}; nothing was noticed before")


def undo_of(evidence: FaultEvidence) -> EvidenceEvent | None:
    """Return the end of an act that is undone; of several victims the last one's."""
    if not evidence.undone:
        return None
    last = max(evidence.undone, key=lambda line: int(line["wall_ns"]))
    return EvidenceEvent("fault_undone", int(last["wall_ns"]), f"conductor.jsonl: {last.get('undo')} undone")


def without_effect(evidence: FaultEvidence) -> str | None:
    """Return why a fault that hit its process changed nothing for the run all the same; None when it did."""
    if evidence.undone:
        return None
    found = hits(evidence)
    return evidence.engine.without_effect(found[0], evidence.traces) if len(found) == 1 and found[0].victims else None


def _noticed(evidence: FaultEvidence) -> EvidenceEvent | None:
    found = [evidence.engine.detect(hit, evidence.traces) for hit in hits(evidence)]
    seen = [one for one in found if one is not None]
    if len(seen) < len(found):
        return None
    last = max(seen, key=lambda one: one.wall_ns)
    return EvidenceEvent("t2", last.wall_ns, last.source)


def hits(evidence: FaultEvidence) -> list[VictimGroup]:
    """Return the victims by role, by the actual one that a line names; what was asked for may have been `any`."""
    by_role: dict[str, list[Line]] = {}
    for victim in evidence.victims:
        role = str(victim.get("role"))
        by_role.setdefault(role if role in evidence.engine.roles else evidence.victim, []).append(victim)
    return [VictimGroup(role, victims, evidence.span) for role, victims in (by_role or {evidence.victim: []}).items()]
