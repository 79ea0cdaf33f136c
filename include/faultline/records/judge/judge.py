"""Record of one attempt from its raw files, stage by stage. It reads only the attempt, and repeats exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from faultline.records.environment import RecordEnvironment
from faultline.records.judge.counts import Counts, counts_of
from faultline.records.judge.evidence import AttemptFile, Evidence, read_evidence
from faultline.records.judge.latency import LatencyFigures, latency_of
from faultline.records.judge.recoveries import Recoveries, recoveries_of
from faultline.records.judge.resources import Resources, resources_of
from faultline.records.judge.rule_inputs import findings_of
from faultline.records.judge.signals import Signals, signals_of
from faultline.records.judge.timeline import EvidenceEvent
from faultline.records.judge.validity import reasons, status_of
from faultline.records.judge.work import WorkFigures, work_of
from faultline.records.judge.write import artifacts, series, write_findings
from faultline.records.record import SCHEMA, Metrics, Record, Status, TimelineEvent
from faultline.system.measured_window import NS


@dataclass(frozen=True)
class Parts:
    """The figures of an attempt; a field that has the name of a metric is that metric."""

    counts: Counts
    work: WorkFigures
    latency: LatencyFigures
    resources: Resources


@dataclass(frozen=True)
class Judgement:
    """Result of judging an attempt: its record, and the content of the files next to its raw files."""

    record: Record
    signals: Signals
    counts: Counts
    course: dict[str, Any]


def judge_readonly(folder: Path, *, within: float | None = None) -> Judgement:
    """Judge the attempt in `folder`; writes nothing. `within`: another `recovered_within` than the configuration's.

    Raises InfrastructureError when raw files are missing or broken.
    """
    evidence = read_evidence(folder, within)
    signals = signals_of(evidence)
    recoveries = recoveries_of(evidence, signals)
    counts = counts_of(evidence, signals)
    work = work_of(evidence, signals, in_step=counts.in_step)
    latency = latency_of(evidence, signals, recoveries, in_step=counts.in_step)
    resources = resources_of(evidence, signals, work.throughput_rps)
    why = reasons(findings_of(evidence, signals, recoveries, counts, resources))
    events = named_events(evidence, signals, recoveries)
    record = record_of(evidence, recoveries, Parts(counts, work, latency, resources), events, why)
    return Judgement(record, signals, counts, series(signals, evidence.processes, events))


def judge(folder: Path) -> Record:
    """Judge the attempt and write `series.json`, `audit.json` and `latency.hlog` there. The record is not stored."""
    found = judge_readonly(folder)
    write_findings(folder, found.signals, found.counts, found.course)
    return found.record.model_copy(update={"artifacts": artifacts(folder)})


def named_events(evidence: Evidence, signals: Signals, recoveries: Recoveries) -> list[EvidenceEvent]:
    """Return the gate, the window, and the events of each fault, in order of time."""
    window, conductor = signals.window, evidence.conductor
    frame = [
        EvidenceEvent("gate", window.t0_ns, "gate.json: T0"),
        EvidenceEvent("measured_from", window.start_ns, conductor.begin_source),
        EvidenceEvent("measured_until", window.end_ns, conductor.end_source),
    ]
    faults = (event for one in recoveries.faults for event in one.events)
    return sorted([*frame, *faults], key=lambda event: event.wall_ns)


def record_of(
    evidence: Evidence, recoveries: Recoveries, parts: Parts, events: Sequence[EvidenceEvent], why: list[str]
) -> Record:
    """Return the record of an attempt that was measured to its end."""
    attempt, gate, conductor = evidence.attempt, evidence.gate, evidence.conductor
    found: dict[str, Any] = {}
    for part in vars(parts).values():
        found |= vars(part)
    around = {name: found[name] for name in ("clock_offsets", "hosts", "latency_clock")}
    return _record(
        attempt,
        measured_at_ns=gate.t0_wall_ns,
        status=status_of(why),
        reasons=why,
        timeline=[
            TimelineEvent(name=one.name, wall_ns=one.wall_ns, mono_ns=gate.mono_ns(one.wall_ns), source=one.source)
            for one in events
        ],
        metrics=Metrics(
            recovery=recoveries.recovery,
            recoveries=[one.recovery for one in recoveries.faults],
            placebo=recoveries.placebo,
            injections=conductor.injections if evidence.is_repeated else None,
            warmup=conductor.warmup,
            not_measured=dict(evidence.not_measured) or None,
            **{name: value for name, value in found.items() if name in Metrics.model_fields},
        ),
        artifacts=artifacts(evidence.folder),
        around=around,
        collectors={one.role: one.collector for one in evidence.traces.collections},
        settings=evidence.traces.settings,
        job_settings=evidence.engine.job_settings,
    )


def failed_record(
    attempt: AttemptFile,
    status: Literal["failed", "cancelled", "invalid"],
    reasons: Sequence[str],
    folder: Path | None = None,
) -> Record:
    """Return the record of an unfinished attempt: all figures null, artifacts as far as they exist."""
    return _record(
        attempt,
        measured_at_ns=attempt.prepared_wall_ns,
        status=status,
        reasons=list(reasons),
        timeline=[],
        metrics=Metrics.unknown(),
        artifacts={} if folder is None else artifacts(folder),
    )


def _record(
    attempt: AttemptFile,
    *,
    measured_at_ns: int,
    status: Status,
    reasons: list[str],
    timeline: list[TimelineEvent],
    metrics: Metrics,
    artifacts: dict[str, str],
    around: Mapping[str, Any] | None = None,
    collectors: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    job_settings: str = "",
) -> Record:
    environment = {name: attempt.environment.get(name) for name in RecordEnvironment.model_fields} | dict(around or {})
    if settings is not None:
        # Requested settings as they were in effect, and those that a job or program set itself.
        asked = environment["spark_conf"] or {}
        own = {name: value for name, value in settings.items() if name in asked or name.startswith(job_settings)}
        environment["spark_conf"] = {**asked, **own}
    # What collects garbage is left to Java, and named by the logs of the JVMs.
    if (jvms := attempt.environment.get("jvm")) is not None:
        named = collectors or {}
        environment["jvm"] = {role: {**jvm, "collector": named.get(role)} for role, jvm in jvms.items()}
    return Record(
        schema=SCHEMA,
        matrix=attempt.matrix,
        sweep_id=attempt.sweep_id,
        config=attempt.config.model_dump(mode="json"),
        config_id=attempt.config_id,
        repetition=attempt.repetition,
        series=attempt.series,
        build=attempt.build,
        logical_date=attempt.logical_date,
        measured_at=datetime.fromtimestamp(measured_at_ns / NS, UTC).isoformat(timespec="milliseconds"),
        attempt=attempt.attempt,
        status=status,
        reasons=reasons,
        environment=RecordEnvironment.model_validate(environment),
        timeline=timeline,
        metrics=metrics,
        artifacts=artifacts,
    )
