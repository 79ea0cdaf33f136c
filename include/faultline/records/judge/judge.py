"""The judge: computes the record of one attempt from its raw files.

Each stage takes the results of the earlier ones. Equal raw files give equal records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from faultline.records.environment import RecordEnvironment
from faultline.records.judge.counts import Counts, counts_of
from faultline.records.judge.evidence import AttemptFile, Evidence, read_evidence
from faultline.records.judge.latency import LatencyFigures, latency_of, phases_of
from faultline.records.judge.recoveries import Recoveries, recoveries_of
from faultline.records.judge.resources import Resources, resources_of
from faultline.records.judge.rule_inputs import rule_inputs_of
from faultline.records.judge.signals import Signals, signals_of
from faultline.records.judge.timeline import EvidenceEvent
from faultline.records.judge.validity import reasons, status_of
from faultline.records.judge.work import WorkFigures, work_of
from faultline.records.judge.write import artifacts, time_series, write_findings
from faultline.records.record import SCHEMA, Metrics, Record, Status, TimelineEvent
from faultline.system.measured_window import NS


@dataclass(frozen=True)
class AttemptFigures:
    """Figures of an attempt, by stage. Fields with the name of a metric become that metric of the record."""

    counts: Counts
    work: WorkFigures
    latency: LatencyFigures
    resources: Resources


@dataclass(frozen=True)
class Judgement:
    """Result of judging an attempt: its record, and the content of the derived files next to the raw files."""

    record: Record
    signals: Signals
    counts: Counts
    time_series: dict[str, Any]


def judge_readonly(folder: Path, *, within: float | None = None) -> Judgement:
    """Judge the attempt in `folder` without writing files.

    `within`: replaces the configuration's `recovered_within`. Raises InfrastructureError if raw files are missing or
    broken.
    """
    evidence = read_evidence(folder, within)
    signals = signals_of(evidence)
    counts = counts_of(evidence, signals)
    recoveries = recoveries_of(evidence, signals, is_mapping_known=counts.is_mapping_known)
    work = work_of(evidence, signals, is_mapping_known=counts.is_mapping_known)
    phases = phases_of(evidence, signals, recoveries)
    latency = latency_of(evidence, signals, phases, is_mapping_known=counts.is_mapping_known)
    resources = resources_of(evidence, signals, phases, work.throughput_rps)
    problems = reasons(rule_inputs_of(evidence, signals, recoveries, counts, resources))
    events = named_events(evidence, signals, recoveries)
    record = record_of(evidence, recoveries, AttemptFigures(counts, work, latency, resources), events, problems)
    return Judgement(record, signals, counts, time_series(signals, evidence.processes, events))


def judge(folder: Path) -> Record:
    """Judge the attempt and write `series.json`, `audit.json` and `latency.hlog` to `folder`; return its record.

    The record is not stored.
    """
    judgement = judge_readonly(folder)
    write_findings(folder, judgement.signals, judgement.counts, judgement.time_series)
    return judgement.record.model_copy(update={"artifacts": artifacts(folder)})


def named_events(evidence: Evidence, signals: Signals, recoveries: Recoveries) -> list[EvidenceEvent]:
    """Return the opening of the start barrier (T0), the window, and each fault's events, in chronological order."""
    window, scheduler = signals.window, evidence.scheduler
    run_events = [
        EvidenceEvent("gate", window.t0_ns, "gate.json: T0"),
        EvidenceEvent("measured_from", window.start_ns, scheduler.begin_source),
        EvidenceEvent("measured_until", window.end_ns, scheduler.end_source),
    ]
    fault_events = (event for one in recoveries.faults for event in one.events)
    return sorted([*run_events, *fault_events], key=lambda event: event.wall_ns)


def record_of(
    evidence: Evidence,
    recoveries: Recoveries,
    figures: AttemptFigures,
    events: Sequence[EvidenceEvent],
    problems: list[str],
) -> Record:
    """Return the record of an attempt that was measured to its end. `problems`: reasons why it is not valid."""
    attempt, barrier, scheduler = evidence.attempt, evidence.barrier, evidence.scheduler
    fields: dict[str, Any] = {}
    for stage in vars(figures).values():
        fields |= vars(stage)
    measured_environment = {name: fields[name] for name in ("clock_offsets", "hosts", "latency_clock")}
    return _record(
        attempt,
        measured_at_ns=barrier.t0_wall_ns,
        status=status_of(problems),
        reasons=problems,
        timeline=[
            TimelineEvent(name=one.name, wall_ns=one.wall_ns, mono_ns=barrier.mono_ns(one.wall_ns), source=one.source)
            for one in events
        ],
        metrics=Metrics(
            recovery=recoveries.recovery,
            recoveries=[one.recovery for one in recoveries.faults],
            placebo=recoveries.placebo,
            injections=scheduler.injections if evidence.is_repeated else None,
            warmup=scheduler.warmup,
            not_measured=dict(evidence.not_measured) or None,
            **{name: value for name, value in fields.items() if name in Metrics.model_fields},
        ),
        artifacts=artifacts(evidence.folder),
        measured_environment=measured_environment,
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
    """Return the record of an unfinished attempt: without figures, with the artifacts that exist."""
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
    measured_environment: Mapping[str, Any] | None = None,
    collectors: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    job_settings: str = "",
) -> Record:
    environment = {name: attempt.environment.get(name) for name in RecordEnvironment.model_fields}
    environment |= measured_environment or {}
    if settings is not None:
        # The effective values of requested settings, and the settings of the job or program itself.
        requested = environment["spark_conf"] or {}
        used = {name: value for name, value in settings.items() if name in requested or name.startswith(job_settings)}
        environment["spark_conf"] = {**requested, **used}
    # Java chooses the garbage collector, so only the JVM logs name it.
    if (jvms := attempt.environment.get("jvm")) is not None:
        by_role = collectors or {}
        environment["jvm"] = {role: {**jvm, "collector": by_role.get(role)} for role, jvm in jvms.items()}
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
