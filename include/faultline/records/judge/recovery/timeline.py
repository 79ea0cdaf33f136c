"""The timeline of a fault: t0 … t7, each an instant with the evidence it was read from.

Only t2 depends on what was broken (see `detection`), t6 and t7 on when tuples were on time again (see `end`);
everything else reads the engine's traces and the bins, within the time that belongs to the fault: from t0 to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fault.identity import KAFKA
from faultline.engines.base import Seen
from faultline.records.judge.recovery.detection import detect, hits, undo_of
from faultline.records.judge.recovery.end import end_of
from faultline.records.judge.recovery.evidence import Event, Evidence
from faultline.records.judge.recovery.impact import longest_silence
from faultline.records.judge.recovery.on_time import cells_of
from faultline.system.window import CLOCK_RESOLUTION_NS

__all__ = ["CHAIN", "Event", "Evidence", "Timeline", "companions", "read_timeline", "reloads"]

CHAIN = ("t0", "t2", "t3", "t4", "t5", "t6", "t7")

Timeline = Mapping[str, Event]


def read_timeline(evidence: Evidence) -> dict[str, Event]:
    """The events that can be found, by name; a name that is missing was not seen."""
    found: dict[str, Event] = {"t0": Event("t0", evidence.t0_ns, "conductor.jsonl: signal delivered")}
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


def companions(evidence: Evidence) -> list[Event]:
    """What else happened while this fault was watched, in order of time; a name may come more than once.

    `driver_restarted`, `lineage`, `service_up` and `undone`.
    """
    found = [
        Event("driver_restarted", life.began_ns, f"supervisor.jsonl: start of incarnation {life.incarnation}")
        for life in evidence.new_lives()
        if life.began_ns is not None
    ]
    found += [
        Event("lineage", epoch.began_ns, f"supervisor.jsonl: lineage {epoch.number}: {epoch.reason}")
        for epoch in evidence.new_epochs()
    ]
    found += [
        Event("service_up", int(line["wall_ns"]), f"services.jsonl: {line['service']} started (pid {line.get('pid')})")
        for line in evidence.services_started()
    ]
    found = [event for event in found if event.wall_ns <= evidence.watched_until_ns]
    found += [
        Event("undone", int(line["wall_ns"]), f"conductor.jsonl: {line.get('undo')} undone") for line in evidence.undone
    ]
    return sorted(found, key=lambda event: event.wall_ns)


def reloads(loads: Sequence[Seen], after_ns: int, until_ns: int | None) -> list[Seen]:
    """The first load of each store in [after, until]: the partitions reopened by the fault.

    Later loads of the same store are moves between executors, not recovery.
    """
    first: dict[str | None, Seen] = {}
    for load in loads:
        if load.wall_ns >= after_ns and (until_ns is None or load.wall_ns <= until_ns):
            first.setdefault(load.store, load)
    return list(first.values())


def _add(found: dict[str, Event], event: Event | None) -> None:
    if event is not None:
        found[event.name] = event


def _caught_up(evidence: Evidence, from_ns: int) -> Event | None:
    """t5: first commit from then on that covers what the broker held when the signal was sent.

    A new state lineage begins behind those records, so its first commit is the one.
    """
    epochs = evidence.new_epochs()
    first = epochs[0].number if epochs else 0
    for commit in evidence.ordered_commits():
        if commit.committed_ns < from_ns or commit.epoch < first:
            continue
        if epochs or commit.covers(evidence.end_offsets):
            where = f" of lineage {commit.epoch}" if epochs else ""
            return Event("t5", commit.committed_ns, f"batches.json: commit of batch {commit.number}{where}")
    return None


def _redeployed(evidence: Evidence, t2: Event, t5: Event | None) -> list[Event]:
    """t3 and t4: the last of the reloads and the launch of its task; without any, the first launch.

    Both are looked for from the last new start before t5 on: what an incarnation of the driver or a state
    lineage loaded that did not last until t5 is not the recovery. A new lineage has no state to load. Where only the
    broker was hit, the batch that waited for it may be the one of t5: then nothing was launched, and both are t5.
    """
    latest = evidence.until_ns if t5 is None else t5.wall_ns + CLOCK_RESOLUTION_NS
    anew = bool(evidence.new_epochs())
    begun_ns = _begun(evidence, t2.wall_ns, latest)
    started = evidence.traces.of("task_started")
    loads = [] if anew else reloads(evidence.traces.of("state_loaded"), begun_ns - CLOCK_RESOLUTION_NS, latest)
    if not loads:
        if not anew and begun_ns == t2.wall_ns and _is_undo(evidence, t2):
            source = f"{t2.source}; no state was loaded again"
            return [Event("t3", t2.wall_ns, source), Event("t4", t2.wall_ns, source)]
        launched = next((task for task in started if task.wall_ns >= begun_ns), None)
        waited = begun_ns == t2.wall_ns and _only_the_broker(evidence)
        if waited and t5 is not None and (launched is None or launched.wall_ns > t5.wall_ns + CLOCK_RESOLUTION_NS):
            source = f"{t5.source}; what ran at the fault went on, and no task was launched before"
            return [Event("t3", t5.wall_ns, source), Event("t4", t5.wall_ns, source)]
        if launched is None or not evidence.span.holds(launched.wall_ns):
            return []
        after = "t2" if begun_ns == t2.wall_ns else "the new start"
        source = f"{launched.file}: first task after {after} ({launched.task}), no state to load"
        return [Event("t3", launched.wall_ns, source), Event("t4", launched.wall_ns, source)]
    last = max(loads, key=lambda load: load.wall_ns)
    own = [task for task in started if (task.process, task.task) == (last.process, last.task)]
    return [Event("t4", last.wall_ns, last.source), *(Event("t3", task.wall_ns, task.source) for task in own)]


def _only_the_broker(evidence: Evidence) -> bool:
    """Whether the engine lost no process: its tasks wait for the broker, and go on."""
    return {hit.role for hit in hits(evidence)} == {KAFKA.name}


def _begun(evidence: Evidence, t2_ns: int, latest_ns: int | None) -> int:
    """The last start of a driver or of a lineage in [t2, latest]; t2 when there was none."""
    begun = [*(life.began_ns for life in evidence.new_lives()), *(epoch.began_ns for epoch in evidence.new_epochs())]
    return max([t2_ns, *(at for at in begun if at is not None and (latest_ns is None or at <= latest_ns))])


def _is_undo(evidence: Evidence, t2: Event) -> bool:
    undone = undo_of(evidence)
    return undone is not None and undone.wall_ns == t2.wall_ns


def _ended(evidence: Evidence, t5: Event | None) -> list[Event]:
    """t6 and t7, as far as they were seen, and the last thing that was out of its bound before the end."""
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
        ("last_out", end.out_ns, end.out),
    ]
    return [Event(name, wall_ns, source) for name, wall_ns, source in events if wall_ns is not None]


def _silence(evidence: Evidence, t6: Event | None) -> Event | None:
    """t1: last output before the longest silence that overlaps [t0, t6]; informative only."""
    silence = longest_silence(
        evidence.emissions_ms, evidence.t0_ns, evidence.watched_until_ns if t6 is None else t6.wall_ns
    )
    return (
        None if silence is None else Event("t1", silence[0], "harvest/tuples.parquet: last output before the silence")
    )


def _replacement(evidence: Evidence) -> Event | None:
    """Registration of the first process that was added after t0."""
    added = [one for one in evidence.seen("registered") if one.wall_ns > evidence.t0_ns]
    return Event("replacement_up", added[0].wall_ns, added[0].source) if added else None


def _snapshot(evidence: Evidence) -> Event | None:
    """The last snapshot that reached the checkpoint before the signal: its age explains the replay."""
    before = [one for one in evidence.traces.of("snapshot") if one.wall_ns <= evidence.t0_ns]
    if not before:
        return None
    last = max(before, key=lambda one: one.wall_ns)
    return Event("snapshot", last.wall_ns, last.source)
