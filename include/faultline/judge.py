"""From the raw files of one attempt to its record. Reads only the attempt; running it again gives the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from faultline import cpu
from faultline.attempt import write_json
from faultline.audit import Audit, audit, checkpoint_bytes, logical_state_bytes
from faultline.bands import band, sustained
from faultline.bins import Schedule, between, bins_of_batches, bins_of_seconds, median_span_s, throughput_rps
from faultline.executor_log import read_executor_logs
from faultline.latency import Tuples, fold_tuples, summarise, write_histogram
from faultline.raw import AttemptFile, Commit, Line, Raw, events, read_raw
from faultline.record import (
    AuditPart,
    ByRole,
    Environment,
    LatencyMs,
    Metrics,
    Record,
    RecoveryPart,
    ScheduleLagMs,
    StateBytes,
    TimelineEvent,
)
from faultline.recovery import Recovery, measure
from faultline.series import series, write_series
from faultline.timeline import Event, Evidence, read_timeline
from faultline.validity import Findings, reasons
from faultline.window import NS, Window

ARTIFACTS = {
    "attempt": "attempt.json",
    "ledger": "ledger.jsonl",
    "generator": "generator.jsonl",
    "schedule_lag": "schedule_lag.hlog",
    "recorder": "recorder.jsonl",
    "conductor": "conductor.jsonl",
    "supervisor": "supervisor.jsonl",
    "listener": "listener.jsonl",
    "batches": "batches.json",
    "records": "harvest/records.parquet",
    "tuples": "harvest/tuples.parquet",
    "counts": "harvest/counts.parquet",
    "audit": "audit.json",
    "spark_logs": "spark-logs",
    "series": "series.json",
    "latency": "latency.hlog",
}


@dataclass(frozen=True)
class _Measured:
    """What the metrics and the rules have in common."""

    raw: Raw
    window: Window
    schedule: Schedule
    tuples: Tuples
    bins: pd.DataFrame
    reference: pd.DataFrame
    delivered: tuple[Line, ...]
    outcome: str | None
    audit: Audit
    offenders: list[Line]


def judge(directory: Path) -> Record:
    """Judges the attempt in `directory`; writes `series.json`, `audit.json` and `latency.hlog` there.

    The record is returned, not stored. Raises InfrastructureError when raw files are missing or broken.
    """
    measured = _measure(read_raw(directory))
    timeline, recovery, problems = _recovery(measured)
    named = _timeline(measured, timeline)
    why = reasons(_findings(measured, problems))
    window, raw = measured.window, measured.raw
    write_json(directory / "audit.json", {**asdict(measured.audit), "offenders": measured.offenders})
    write_histogram(directory / "latency.hlog", measured.tuples, window)
    write_series(directory / "series.json", series(window, measured.bins, measured.tuples, raw.processes, named))
    return _record(
        raw.attempt,
        measured_at_ns=window.t0_ns,
        status="invalid" if why else "valid",
        reasons=why,
        timeline=[
            TimelineEvent(
                name=event.name, wall_ns=event.wall_ns, mono_ns=raw.gate.mono_ns(event.wall_ns), source=event.source
            )
            for event in named
        ],
        metrics=_metrics(measured, recovery),
        artifacts=artifacts(directory),
    )


def failed_record(
    attempt: AttemptFile,
    status: Literal["failed", "cancelled"],
    reasons: Sequence[str],
    directory: Path | None = None,
) -> Record:
    """The record of an attempt that was not measured: every figure null, artifacts as far as they exist."""
    return _record(
        attempt,
        measured_at_ns=attempt.prepared_wall_ns,
        status=status,
        reasons=list(reasons),
        timeline=[],
        metrics=Metrics.unknown(),
        artifacts={} if directory is None else artifacts(directory),
    )


def artifacts(directory: Path) -> dict[str, str]:
    """Name → path under the results folder, for each known file that the attempt has."""
    return {
        name: f"attempts/{directory.name}/{path}" for name, path in ARTIFACTS.items() if (directory / path).exists()
    }


def _measure(raw: Raw) -> _Measured:
    configuration = raw.attempt.config
    window = Window.of(
        raw.gate.t0_wall_ns,
        configuration.warmup_s,
        configuration.duration_s,
        configuration.checkpoint_interval_s,
    )
    schedule = Schedule(raw.records)
    tuples = fold_tuples(raw.tuples_path, window)
    bins = (
        bins_of_seconds(tuples, window)
        if raw.method == "rank"
        else bins_of_batches(raw.commits, schedule, tuples, window)
    )
    delivered = tuple(events(raw.conductor, "delivered"))
    until = window.end_ns
    if configuration.fault != "none" and delivered:
        until = min(until, int(delivered[0]["wall_ns"]))
    settled = events(raw.conductor, "settled")
    outcome = str(settled[-1]["outcome"]) if settled else None
    reference = between(bins, window.start_ns, until)
    totals, offenders = audit(raw.counts_path, raw.generator)
    return _Measured(raw, window, schedule, tuples, bins, reference, delivered, outcome, totals, offenders)


def _metrics(measured: _Measured, recovery: Recovery) -> Metrics:
    raw, window, reference = measured.raw, measured.window, measured.reference
    done = events(raw.generator, "done")
    times = (reference["end_ns"].to_numpy(dtype=np.int64) - window.t0_ns) / NS
    return Metrics(
        latency_ms=LatencyMs.model_validate(summarise(measured.tuples, raw.method)),
        throughput_rps=throughput_rps(measured.bins, window),
        sustained=sustained(times, reference["lag"].to_numpy(dtype=np.float64)),
        effective_interval_s=median_span_s(reference),
        cpu_cores=_by_role(cpu.cores(raw.processes, window.start_ns, window.end_ns)),
        rss_mb=_by_role(cpu.rss_mb(raw.processes, window.start_ns, window.end_ns)),
        gc_s=cpu.gc_s(raw.executors, window.start_ns),
        state_bytes=StateBytes(
            logical=logical_state_bytes(raw.listener, raw.counts_path), checkpoint=checkpoint_bytes(raw.checkpoint)
        ),
        schedule_lag_ms=_schedule_lag(done),
        recovery=RecoveryPart.model_validate(recovery),
        audit=AuditPart.model_validate(measured.audit),
    )


def _recovery(measured: _Measured) -> tuple[Mapping[str, Event], Recovery, tuple[str, ...]]:
    """Nothing for a control, for a fault without effect, and without any bin before the fault."""
    raw, window = measured.raw, measured.window
    fault = raw.attempt.config.fault
    if fault == "none" or not measured.delivered or measured.outcome != "effective" or measured.reference.empty:
        return {}, Recovery(), ()
    reference = measured.reference
    hit = {line.get("victim") for line in measured.delivered}
    listed = [victim for line in events(raw.conductor, "victims") for victim in line["victims"]]
    # An answer that came after the signal holds records that were not there at the signal.
    offsets = [line for line in events(raw.conductor, "end_offsets") if line.get("before_signal", True)]
    bands = [band(reference[name].to_numpy(dtype=np.float64)) for name in ("lag", "throughput_rps", "latency_ms")]
    timeline = read_timeline(
        Evidence(
            t0_ns=int(measured.delivered[0]["wall_ns"]),
            victim=fault,
            victims=[victim for victim in listed if victim.get("pid") in hit],
            end_offsets={str(key): int(value) for key, value in offsets[0]["offsets"].items()} if offsets else {},
            commits=raw.commits,
            bins=measured.bins,
            lag=bands[0],
            throughput=bands[1],
            latency=bands[2],
            executors=raw.executors,
            log=read_executor_logs(raw.directory / "spark-logs"),
            emissions_ms=measured.tuples.emissions_ms,
            window=window,
        )
    )
    resolution_s = 1.0 if raw.method == "rank" else median_span_s(reference)
    recovery, problems = measure(timeline, window.end_ns, resolution_s)
    if not offsets:
        problems = (*problems, "missing: the broker's end offsets before the signal")
    if None in bands:  # without this the unfound t7 would pass for censoring
        problems = (*problems, "missing: a band, no tuple was emitted before the fault")
    return timeline, recovery, problems


def _timeline(measured: _Measured, found: Mapping[str, Event]) -> list[Event]:
    """The gate, the window, and the fault's events, in order of time."""
    window = measured.window
    frame = [
        Event("gate", window.t0_ns, "gate.json: T0"),
        Event("measured_from", window.start_ns, "T0 + warmup_s"),
        Event("measured_until", window.end_ns, "T0 + warmup_s + duration_s"),
    ]
    return sorted([*frame, *found.values()], key=lambda event: event.wall_ns)


def _findings(measured: _Measured, problems: tuple[str, ...]) -> Findings:
    raw, window, schedule = measured.raw, measured.window, measured.schedule
    done = events(raw.generator, "done")
    at_t0 = [commit for commit in raw.commits if commit.committed_wall_ns <= window.t0_ns]
    ends = {str(key): int(value) for key, value in done[-1]["end_offsets"].items()} if done else schedule.end_offsets
    return Findings(
        configuration=raw.attempt.config,
        schedule_lag_p99_ms=_schedule_lag(done).p99,
        generator_died=_died(raw.generator),
        recorder_died=None if raw.recorder_ended else "its last line is not `stop`",
        conductor_died=_died(raw.conductor),
        baseline_lag=measured.reference["lag"].to_numpy(dtype=np.float64),
        baseline_throughput=measured.reference["throughput_rps"].to_numpy(dtype=np.float64),
        t0_backlog=schedule.primer_backlog(at_t0[-1] if at_t0 else None),
        effective_interval_s=median_span_s(measured.reference),
        outcome=measured.outcome,
        losses=_losses(measured),
        undrained=_undrained(raw.commits, ends),
        chain_problems=problems,
    )


def _died(lines: Sequence[Line]) -> str | None:
    """Why a process that should have ended with `done` did not."""
    if failed := events(lines, "failed"):
        return str(failed[-1].get("message", "failed"))
    return None if events(lines, "done") else "it never reported `done`"


def _losses(measured: _Measured) -> list[str]:
    """Faults between T0 and the end of the window, planned or not, as a control must not see them."""
    window, raw = measured.window, measured.raw
    lost = raw.executors.dropna(subset=["removed_ns"])
    lost = lost[(lost["removed_ns"] >= window.t0_ns) & (lost["removed_ns"] <= window.end_ns)]
    exits = [line for line in events(raw.supervisor, "exit") if window.t0_ns <= int(line["wall_ns"]) <= window.end_ns]
    return [
        *(f"a signal was delivered to {line.get('victim')}" for line in measured.delivered),
        *(f"executor {identity} was lost" for identity in sorted(set(lost["id"]))),
        *(f"the driver exited (incarnation {line.get('incarnation')})" for line in exits),
    ]


def _undrained(commits: Sequence[Commit], ends: Mapping[str, int]) -> int:
    committed = commits[-1].end_offsets if commits else {}
    return sum(max(0, end - committed.get(partition, 0)) for partition, end in ends.items())


def _schedule_lag(done: Sequence[Line]) -> ScheduleLagMs:
    if not done:
        return ScheduleLagMs(p50=None, p99=None, max=None)
    lag = done[-1]["schedule_lag_ms"]
    return ScheduleLagMs(p50=lag["p50"], p99=lag["p99"], max=lag["max"])


def _by_role(values: Mapping[str, float | None]) -> ByRole:
    return ByRole(**{role: None if value is None else round(value, 6) for role, value in values.items()})


def _record(
    attempt: AttemptFile,
    *,
    measured_at_ns: int,
    status: Literal["valid", "invalid", "failed", "cancelled"],
    reasons: list[str],
    timeline: list[TimelineEvent],
    metrics: Metrics,
    artifacts: dict[str, str],
) -> Record:
    environment = {name: attempt.environment.get(name) for name in Environment.model_fields}
    return Record(
        schema=1,
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
        environment=Environment.model_validate(environment),
        timeline=timeline,
        metrics=metrics,
        artifacts=artifacts,
    )
