"""Report about one attempt, from its record and, if available, its raw files.

The record is authoritative. If a raw file is missing or broken, its part of the report is empty; a broken file also
adds a remark. `conductor` is the journal of the fault scheduler (conductor.jsonl).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault.plan import Fault, PlannedFault
from faultline.engines.registry import ENGINES
from faultline.engines.supervisor_journal import DRIVER
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import parse_configuration
from faultline.lifecycle.progress import victim_name
from faultline.records.format import EDGES, WORDS, fault_of, recovered_since, seconds, split_name
from faultline.records.record import Record, RecoveryPart
from faultline.records.renames import renamed_audit
from faultline.reports.views.experiment_report import (
    PARTS,
    ExperimentReport,
    FaultReport,
    InjectionReport,
    RecoverySpan,
    ReportEvent,
    RestartReport,
    part_lengths,
)
from faultline.reports.views.series import last_violation_text, plateau_text
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Line, events, find_last, read_journal

NS = 1e9
# Fault outcomes in words.
_OUTCOMES = {
    "effective": "the fault took effect",
    "no-effect": "the fault had no effect",
    "missed-window": "the fault missed its time window",
    "unknown": "the outcome of the fault is unknown",
}


# Names of unmeasured figures in words.
NOT_MEASURED = {"latency_ms": "latency", "audit": "audit"}


def build_report(record: Record, attempt: Attempt, curves: Mapping[str, Any] | None) -> ExperimentReport:
    """Return the report of `record`; raw files of `attempt` may be missing."""
    remarks = [f"{what} not measured: {end}" for what, end in missing_figures(record)]
    remarks += early_end_lines(record)
    conductor = _journal(attempt.conductor_journal, remarks)
    t0_wall_ns = next((event.wall_ns for event in record.timeline if event.name == "gate"), None)
    if t0_wall_ns is None:
        t0_wall_ns = next((line.get("t0_wall_ns") for line in events(conductor, "gate")), None)
    return ExperimentReport(
        attempt_events=tuple(event for number, event in _events_of(record, t0_wall_ns) if number == 0),
        faults=tuple(_faults(record, conductor, t0_wall_ns, curves)),
        restarts=tuple(_restarts(record, attempt, t0_wall_ns, remarks)),
        offenders=tuple(_offenders(attempt.folder / "audit.json", remarks)),
        remarks=tuple(remarks),
    )


def missing_figures(record: Record) -> list[tuple[str, str]]:
    """Return the figures that a user job cannot have, each with the reason."""
    reasons = record.metrics.not_measured or {}
    return [(NOT_MEASURED.get(name, name), end) for name, end in sorted(reasons.items())]


def early_end_lines(record: Record) -> list[str]:
    """Return lines on why a run ended before its last injection; empty if it did not."""
    made = record.metrics.injections
    if made is None or made.ended_early is None:
        return []
    end = made.ended_early
    beyond = "" if end.value is None or end.limit is None else f": {end.value:,.0f}, limit {end.limit:,.0f}"
    return [
        f"{made.made} of {made.planned} injections made: {end.signal} not normal {seconds(end.waited_s)} s after the "
        f"last one{beyond}"
    ]


def _journal(path: Path, remarks: list[str]) -> list[dict[str, Any]]:
    """Return the lines of a raw journal; empty if missing or broken, with a remark if broken."""
    try:
        return read_journal(path)
    except InfrastructureError as error:
        remarks.append(str(error))
        return []


def _events_of(record: Record, t0_wall_ns: int | None) -> Iterable[tuple[int, ReportEvent]]:
    """Yield (number of the fault, event), sorted by time; 0 for events of the attempt itself."""
    at = {event.name: event.wall_ns for event in record.timeline}
    for event in sorted(record.timeline, key=lambda event: event.wall_ns):
        plain, number = split_name(event.name)
        number = 0 if plain in EDGES else number
        t0_ns = at.get("t0" if number == 1 else f"t0#{number}") if number else None
        yield (
            number,
            ReportEvent(
                name=event.name,
                words=WORDS.get(plain, plain),
                after_gate_s=_seconds_between(t0_wall_ns, event.wall_ns),
                after_fault_s=_seconds_between(t0_ns, event.wall_ns),
                source=event.source,
            ),
        )


def _faults(
    record: Record, conductor: Sequence[Line], t0_wall_ns: int | None, series: Mapping[str, Any] | None
) -> Iterable[FaultReport]:
    """Yield one report for each fault that was planned or left a trace."""
    planned = _planned(record)
    metrics = record.metrics
    recoveries = list(metrics.recoveries)
    if not recoveries and metrics.recovery.recovered is not None:
        recoveries = [metrics.recovery]
    events: dict[int, list[ReportEvent]] = {}
    for number, event in _events_of(record, t0_wall_ns):
        events.setdefault(number, []).append(event)
    if metrics.injections is not None:  # faults that were never injected have no report
        planned = planned[: metrics.injections.made]
    for number in range(1, max(len(planned), len(recoveries), *events.keys(), 0) + 1):
        recovery = recoveries[number - 1] if number <= len(recoveries) else RecoveryPart.empty()
        injection = _injection(number - 1, conductor, t0_wall_ns)
        own = events.get(number, [])
        snapshot = next((one.after_fault_s for one in own if split_name(one.name)[0] == "snapshot"), None)
        yield FaultReport(
            number=number,
            what=planned[number - 1] if number <= len(planned) else fault_of(record.config),
            verdict=_verdict(record, number, recovery, injection, series),
            recovery=recovery,
            spans=tuple(_spans(recovery)),
            snapshot_age_s=None if snapshot is None else -snapshot,
            events=tuple(own),
            injection=injection,
        )


def _planned(record: Record) -> list[str]:
    """Return each planned fault in words; if the configuration is no longer valid, without times and details."""
    try:
        faults = parse_configuration(record.config).planned_faults()
    except ConfigError:
        return [] if fault_of(record.config) == "control" else [fault_of(record.config)]
    return [fault_text(fault) for fault in faults]


def fault_text(planned: PlannedFault) -> str:
    """Return `2 × executor kill at T0 + 41 s`, `kafka delay of 200 ms for 10 s at phase 0.5 of …`."""
    fault = planned.fault
    many = f"{fault.count} × " if fault.count > 1 else ""
    how = f" of {fault.delay_ms:g} ms" if fault.delay_ms is not None else ""
    how += f" for {fault.duration_s:g} s" if fault.duration_s is not None else ""
    return f"{many}{fault.victim} {fault.action}{how} {_time_text(fault, planned.earliest_s)}"


def _time_text(fault: Fault, at_s: float) -> str:
    if fault.cycle is None:
        return f"at T0 + {at_s:g} s"
    return f"at phase {fault.phase:g} of the first {fault.cycle} cycle after T0 + {at_s:g} s"


def _verdict(
    record: Record,
    number: int,
    recovery: RecoveryPart,
    injection: InjectionReport | None,
    series: Mapping[str, Any] | None,
) -> str:
    """Return the outcome of the recovery in words."""
    if recovery.recovered:
        return f"recovered in {seconds(recovery.macro_s, 2)} s{recovered_since(recovery)}"
    if recovery.recovered is False:
        out, tail = last_violation_text(record, number, recovery, series), plateau_text(recovery)
        reasons = f"censored: not recovered {seconds(recovery.censored_at_s)} s after the fault"
        return reasons + (f", when {out}" if out else "") + (f"; {tail}" if tail else "")
    if recovery.note is not None:
        return f"no recovery: {recovery.note}"
    if injection is not None and injection.outcome is not None and injection.outcome != "effective":
        return f"no recovery: {_OUTCOMES.get(injection.outcome, injection.outcome)}"
    return f"no recovery measured: the attempt is {record.status}"


def _spans(recovery: RecoveryPart) -> Iterable[RecoverySpan]:
    """Yield the consecutive parts, up to the first unknown one, because the next would have no known start."""
    lengths = part_lengths(recovery)
    at = 0.0
    for key, name, _ in PARTS:
        if key not in lengths:
            break
        yield RecoverySpan(name, round(at, 6), lengths[key])
        at += lengths[key]
    if "unseen" in lengths:
        yield RecoverySpan("not recovered", round(at, 6), lengths["unseen"], seen=False)


def _injection(fault: int, conductor: Sequence[Line], t0_wall_ns: int | None) -> InjectionReport | None:
    """Return the injection of one fault by the fault scheduler's journal; None if the journal has no line about it."""
    lines = [line for line in conductor if line.get("fault") == fault]
    named = next((line for line in reversed(events(conductor, "victims")) if _concerns(fault, line)), Line())
    victims = [victim for victim in named.get("victims") or () if victim.get("fault", fault) == fault]
    if not lines and not victims:
        return None
    delivered = events(lines, "delivered")
    timed = [line for line in [*delivered, *lines] if line.get("planned_wall_ns") is not None]
    late = [
        (line["mono_ns"] - line["planned_mono_ns"]) / 1e6
        for line in delivered
        if line.get("mono_ns") is not None and line.get("planned_mono_ns") is not None
    ]
    settled = find_last(lines, event="settled") or {}
    first_ns = delivered[0].get("wall_ns") if delivered else None
    return InjectionReport(
        planned_at_s=_seconds_between(t0_wall_ns, timed[0]["planned_wall_ns"]) if timed else None,
        late_ms=max(late) if late else None,
        victims=tuple(_victim_text(victim) for victim in victims),
        outcome=settled.get("outcome"),
        detail=str(settled.get("detail") or ""),
        undone=tuple(_undo_text(line, first_ns) for line in events(lines, "undone")),
    )


def _concerns(fault: int, line: Line) -> bool:
    """Return whether a line about victims names a victim of this fault."""
    victims = line.get("victims") or ()
    return any(victim.get("fault", line.get("fault", 0)) == fault for victim in victims)


def _victim_text(victim: Line) -> str:
    """Return `executor 0 (pid 200 on node1)`."""
    where = f" on {victim['host']}" if victim.get("host") else ""
    pid = "" if victim.get("pid") is None else f" (pid {victim['pid']}{where})"
    lost = victim.get("executors")
    return f"{victim_name(victim)}{pid}" + (f", host of executors {', '.join(map(str, lost))}" if lost else "")


def _undo_text(line: Line, first_ns: int | None) -> str:
    after = _seconds_between(first_ns, line.get("wall_ns"))
    when = "" if after is None else f" {seconds(after, 2)} s after the fault"
    trouble = f", but failed: {line['error']}" if line.get("error") else ""
    return f"{line.get('undo', 'undone')}{when}{trouble}"


def _restarts(record: Record, attempt: Attempt, t0_wall_ns: int | None, remarks: list[str]) -> list[RestartReport]:
    """Return all restarts after T0, sorted by time."""
    replacer = ENGINES.of_values(record.config).replacer
    found = [
        *_supervisor_restarts(_journal(attempt.supervisor_journal, remarks)),
        *_service_restarts(_journal(attempt.services_journal, remarks)),
    ]
    for event in record.timeline:
        if split_name(event.name)[0] == "replacement_up":
            found.append((event.wall_ns, replacer, "an executor", event.source))
    return [
        RestartReport(_seconds_between(t0_wall_ns, wall_ns), who, what, source)
        for wall_ns, who, what, source in sorted(found, key=lambda item: item[0])
    ]


_Started = tuple[int, str, str, str]


def _supervisor_restarts(lines: Sequence[Line]) -> Iterable[_Started]:
    """Yield process restarts and new state epochs: instant, component, process, source."""
    who, source, after = "the workload supervisor", "supervisor.jsonl", ""
    for line in lines:
        event, wall_ns = line.get("event"), int(line.get("wall_ns") or 0)
        if event == "restart":
            after = f", {line.get('delay_s')} s after the previous one ended"
        elif event == "start" and line.get("incarnation"):
            what = f"the {line.get('role', DRIVER)}, incarnation {line['incarnation']} (pid {line.get('pid')})"
            yield wall_ns, who, f"{what}{after}", source
        elif event == "lineage":
            yield wall_ns, who, f"state epoch {line.get('lineage')}: {line.get('reason')}", source


def _service_restarts(lines: Sequence[Line]) -> Iterable[_Started]:
    """Yield services started during the attempt: instant, component, process, source."""
    for line in lines:
        if line.get("event") == "started":
            delay = f", delayed by {line['waited_s']:g} s" if line.get("waited_s") else ""
            what = f"{line.get('service')} (pid {line.get('pid')}){delay}"
            yield int(line.get("wall_ns") or 0), "supervisord", what, "services.jsonl"


def _offenders(path: Path, remarks: list[str]) -> list[Mapping[str, Any]]:
    """Return the first mismatched keys; empty if the file is missing."""
    try:
        found = renamed_audit(json.loads(path.read_text(encoding="utf-8")))["offenders"]
        return [{name: entry.get(name) for name in ("kind", "key", "expected", "final")} for entry in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remarks.append(f"{path.name}: cannot be read ({type(error).__name__})")
        return []


def _seconds_between(start_ns: int | None, end_ns: int | None) -> float | None:
    """Return the seconds between two instants; None if either is unknown."""
    return None if start_ns is None or end_ns is None else round((end_ns - start_ns) / NS, 6)
