"""From the raw files of one attempt to its record. Reads only the attempt; running it again gives the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from faultline.experiment.attempt import write_json
from faultline.records.environment import Environment
from faultline.records.judge.audit import logical_state_bytes
from faultline.records.judge.bins import bins_of_work, median_span_s, throughput_rps
from faultline.records.judge.garbage import garbage_of, gc_s
from faultline.records.judge.hosts import cores_by_host, lost_anywhere, of_this_machine, taken_anywhere, uncertain_ms
from faultline.records.judge.latency import write_histogram
from faultline.records.judge.observations import (
    Measured,
    measured_of,
)
from faultline.records.judge.phases import is_out_of_step, latencies_of
from faultline.records.judge.raw_files import AttemptFile, Raw, read_raw
from faultline.records.judge.recovery.evidence import Event
from faultline.records.judge.recovery.placebo import placebo_of
from faultline.records.judge.recovery.recoveries import (
    Recovered,
    begin_source,
    end_source,
    injections_of,
    is_repeated,
    recoveries_of,
    warmup_of,
)
from faultline.records.judge.resources import cpu
from faultline.records.judge.series import series, write_series
from faultline.records.judge.stages import acknowledging, chain_work, store_was_not_read
from faultline.records.judge.steady_state import sustained
from faultline.records.judge.surroundings import surroundings
from faultline.records.judge.validity import Findings, reasons, status_of
from faultline.records.judge.work import is_real_time, non_compute_ms, source_rps, work_of
from faultline.records.record import (
    SCHEMA,
    AuditPart,
    ByRole,
    CpuBesides,
    CpuPerMillion,
    GarbagePart,
    KeysPart,
    LatencyMs,
    LatePart,
    Metrics,
    Record,
    RecoveryPart,
    ScheduleLagMs,
    StateBytes,
    Status,
    TimelineEvent,
    WaitedPart,
    WorkPart,
)
from faultline.records.recoveries import run_value
from faultline.system.journal import Line, events
from faultline.system.window import NS

ARTIFACTS = {
    "attempt": "attempt.json",
    "plan": "plan.json",
    "ledger": "ledger.jsonl",
    "generator": "generator.jsonl",
    "schedule_lag": "schedule_lag.hlog",
    "recorder": "recorder.jsonl",
    "conductor": "conductor.jsonl",
    "supervisor": "supervisor.jsonl",
    "traces": "traces.jsonl",
    "services": "services.jsonl",
    "listener": "listener.jsonl",
    "topology": "topology.jsonl",
    "stored": "stored.json",
    "batches": "batches.json",
    "records": "harvest/records.parquet",
    "tuples": "harvest/tuples.parquet",
    "counts": "harvest/counts.parquet",
    "notes": "harvest/notes.json",
    "job": "job",
    "audit": "audit.json",
    "spark_logs": "spark-logs",
    "series": "series.json",
    "latency": "latency.hlog",
}


@dataclass(frozen=True)
class Judgement:
    """What the raw files of an attempt come to: its record, and the events and figures that are kept beside them."""

    record: Record
    measured: Measured
    named: tuple[Event, ...]

    def course(self) -> dict[str, Any]:
        """The attempt over time, as `series.json` has it."""
        one = self.measured
        return series(one.window, one.bins, one.tuples, one.raw.processes, self.named)


def judge(directory: Path) -> Record:
    """Judges the attempt in `directory`; writes `series.json`, `audit.json` and `latency.hlog` there.

    The record is returned, not stored. Raises InfrastructureError when raw files are missing or broken.
    """
    found = judged(directory)
    measured = found.measured
    write_json(directory / "audit.json", {**asdict(measured.audit), "offenders": measured.offenders})
    write_histogram(directory / "latency.hlog", measured.tuples, measured.window)
    write_series(directory / "series.json", found.course())
    return found.record.model_copy(update={"artifacts": artifacts(directory)})


def course(directory: Path) -> dict[str, Any]:
    """What `judge` would write to `series.json`; writes nothing. Raises as `judge`."""
    return judged(directory).course()


def judged(directory: Path, *, within: float | None = None) -> Judgement:
    """As `judge`, and writes nothing. `within`: another `recovered_within` than the configuration's."""
    raw = read_raw(directory)
    if within is not None:
        config = raw.attempt.config.model_copy(update={"recovered_within": within})
        raw = replace(raw, attempt=raw.attempt.model_copy(update={"config": config}))
    measured = measured_of(raw)
    recovered = recoveries_of(measured)
    named = _timeline(measured, recovered)
    window = measured.window
    here = of_this_machine(raw.processes, raw.hosts)
    besides = cpu.besides(raw.machine, here, window.start_ns, window.end_ns)
    why = reasons(_findings(measured, recovered, besides))
    record = _record(
        raw.attempt,
        measured_at_ns=window.t0_ns,
        status=status_of(why),
        reasons=why,
        timeline=[
            TimelineEvent(
                name=event.name, wall_ns=event.wall_ns, mono_ns=raw.gate.mono_ns(event.wall_ns), source=event.source
            )
            for event in named
        ],
        metrics=_metrics(measured, recovered, besides),
        artifacts=artifacts(directory),
        around=surroundings(raw, window.start_ns, window.end_ns),
        collectors={one.role: one.collector for one in raw.traces.collections},
        settings=raw.traces.settings,
    )
    return Judgement(record, measured, tuple(named))


def failed_record(
    attempt: AttemptFile,
    status: Literal["failed", "cancelled", "unsound"],
    reasons: Sequence[str],
    directory: Path | None = None,
) -> Record:
    """The record of an attempt that was not measured to its end: every figure null, artifacts as far as they exist."""
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


def _metrics(measured: Measured, recovered: Sequence[Recovered], besides: Mapping[str, float | None]) -> Metrics:
    raw, window, reference, traces = measured.raw, measured.window, measured.reference, measured.raw.traces
    config = raw.attempt.config
    paced = config.paced
    used = _seen("cpu_cores", cpu.cores(raw.processes, window.start_ns, window.end_ns), raw)
    done = events(raw.generator, "done")
    placebo = placebo_of(measured)
    recoveries = [RecoveryPart.model_validate(one.recovery) for one in recovered]
    # Stages have batches, too: what one emits as it ends was not all done in that second.
    batches = acknowledging(raw.stages)
    done_by_batches = measured.bins if batches is None else bins_of_work(measured.tuples.emitted, batches)
    known = not is_out_of_step(measured)
    throughput = throughput_rps(done_by_batches, window) if known else None
    before, during, after = latencies_of(measured, recovered)
    per_million = cpu.seconds_per_million(used, throughput)
    garbage = garbage_of(traces, window)
    return Metrics(
        latency_ms=LatencyMs.model_validate(before),
        throughput_rps=throughput,
        rps_per_core=None if throughput is None else cpu.rps_per_core(throughput, used),
        sustained=sustained(measured.growth, measured.offered_rps) if paced else None,
        effective_interval_s=median_span_s(reference),
        cpu_cores=_by_role(used),
        rss_mb=_by_role(_seen("rss_mb", cpu.rss_mb(raw.processes, window.start_ns, window.end_ns), raw)),
        gc_s=gc_s(traces, garbage, window),
        gc=None if garbage is None else GarbagePart.model_validate(garbage),
        state_bytes=StateBytes(
            # Only rows of words are known to the byte.
            logical=logical_state_bytes(traces.state_rows, raw.counts_path)
            if config.kind.can("preloaded_state")
            else None,
            checkpoint=traces.state_bytes,
        ),
        schedule_lag_ms=_schedule_lag(done),
        recovery=run_value(recoveries if is_repeated(measured) else recoveries[:1]),
        audit=AuditPart.model_validate(measured.audit)
        if paced and "audit" not in raw.not_measured
        else AuditPart.empty(),
        recoveries=recoveries,
        placebo=None if placebo is None else RecoveryPart.model_validate(placebo),
        latency_during_ms=None if during is None else LatencyMs.model_validate(during),
        latency_after_ms=None if after is None else LatencyMs.model_validate(after),
        cpu_s_per_million=CpuPerMillion.model_validate(per_million) if per_million else None,
        source_rps=source_rps(measured.schedule, window),
        non_compute_ms=non_compute_ms(measured.tuples, traces, window) if known else None,
        cpu_nodes=_cpu_nodes(raw, used, window.start_ns, window.end_ns),
        cpu_besides=CpuBesides.model_validate(besides),
        waited=_waited(measured_loss(measured)),
        work=WorkPart.model_validate(work_of(traces, window, throughput)),
        keys=None if measured.keys is None else KeysPart.model_validate(measured.keys),
        late=_late(traces.late_rows, raw.records),
        stages=chain_work(raw.stages, raw.directory, window),
        not_measured=dict(raw.not_measured) or None,
        data=next((one["data"] for one in events(raw.generator, "primed") if one.get("data")), None),
        realtime=is_real_time(measured.tuples.emissions_ms, window) if config.commit_mode == "unaligned" else None,
        injections=injections_of(measured),
        warmup=warmup_of(measured),
    )


def measured_loss(measured: Measured) -> cpu.Lost | None:
    """What the measured processes lost to others; None where it was not sampled."""
    raw, window = measured.raw, measured.window
    return lost_anywhere(raw.machine, raw.processes, raw.hosts, window.start_ns, window.end_ns)


def _waited(lost: cpu.Lost | None) -> WaitedPart | None:
    return None if lost is None else WaitedPart(others=lost.others, stolen=lost.stolen, worst_5s=lost.worst)


def _cpu_nodes(raw: Raw, used: Mapping[str, float | None], start_ns: int, end_ns: int) -> dict[str, float] | None:
    """Cores used by the engine and its broker on each host. `used`: by role, which is all that there is on one host."""
    here = str(raw.attempt.environment.get("host"))
    if raw.hosts:
        return cores_by_host(raw.processes, here, start_ns, end_ns) or None
    parts = [value for role, value in used.items() if role != "generator" and value is not None]
    return {here: round(sum(parts), 6)} if parts else None


def _late(dropped_rows: int, records: pd.DataFrame) -> LatePart | None:
    """Late records, when the workload has event time: none otherwise."""
    sent = int(records["late"].sum())
    return LatePart(sent=sent, dropped_rows=dropped_rows) if sent or dropped_rows else None


def _timeline(measured: Measured, recovered: Sequence[Recovered]) -> list[Event]:
    """The gate, the window, and the events of each fault, in order of time."""
    window = measured.window
    frame = [
        Event("gate", window.t0_ns, "gate.json: T0"),
        Event("measured_from", window.start_ns, begin_source(measured)),
        Event("measured_until", window.end_ns, end_source(measured)),
    ]
    return sorted([*frame, *(event for one in recovered for event in one.events)], key=lambda event: event.wall_ns)


def _findings(measured: Measured, recovered: Sequence[Recovered], besides: Mapping[str, float | None]) -> Findings:
    raw, window, schedule, traces = measured.raw, measured.window, measured.schedule, measured.raw.traces
    done = events(raw.generator, "done")
    at_t0 = [commit for commit in traces.commits if commit.committed_ns <= window.t0_ns]
    several = len(recovered) > 1
    return Findings(
        configuration=raw.attempt.config,
        schedule_lag_p99_ms=_schedule_lag(done).p99,
        recovery_lateness_ms=max(
            (one.recovery.lateness_ms for one in recovered if one.recovery.lateness_ms is not None), default=None
        ),
        generator_died=measured.deaths["generator"],
        recorder_died=measured.deaths["recorder"],
        conductor_died=measured.deaths["conductor"],
        baseline_bins=len(measured.reference),
        drifts=measured.drifts,
        growth=measured.growth,
        offered_rps=measured.offered_rps,
        t0_backlog=schedule.primer_backlog(at_t0[-1] if at_t0 else None),
        spans_s=measured.reference["span_s"].to_numpy(dtype=np.float64),
        outcomes=[one.settled for one in recovered],
        losses=_losses(measured),
        undrained=measured.audit.undrained or 0,
        chain_problems=[
            f"fault {number}: {problem}" if several else problem
            for number, one in enumerate(recovered, start=1)
            for problem in one.problems
        ],
        clock_jump_ms=raw.clock_jump_ms,
        store_not_read=store_was_not_read(raw.stages, raw.directory),
        last_batch_lost=not raw.attempt.config.paced
        and all(commit.committed_ns < window.end_ns for commit in traces.commits),
        besides=besides,
        lost=measured_loss(measured),
        taken=taken_anywhere(raw.machine, raw.processes, raw.hosts, window.start_ns, window.end_ns),
        clock_uncertain=uncertain_ms(raw.clocks),
    )


def _as_run(asked: Mapping[str, Any], running: Mapping[str, str]) -> dict[str, Any]:
    """Settings that were asked for as they ran, and what a job or program has set of Spark SQL beside them."""
    own = {name: value for name, value in running.items() if name.startswith("spark.sql.")}
    return {**asked, **{name: running[name] for name in asked if name in running}, **own}


def _losses(measured: Measured) -> list[str]:
    """Faults between T0 and the end of the window, planned or not, as a control must not see them."""
    window, raw = measured.window, measured.raw

    def inside(wall_ns: int | None) -> bool:
        return wall_ns is not None and window.t0_ns <= wall_ns <= window.end_ns

    lost = {(one.name, one.role) for one in raw.traces.of("lost") if inside(one.wall_ns)}
    return [
        *(f"a signal was delivered to {line.get('victim')}" for line in events(raw.conductor, "delivered")),
        *(f"{role} {name} was lost" for name, role in sorted(lost)),
        *(f"the driver exited (incarnation {life.incarnation})" for life in raw.traces.lives if inside(life.ended_ns)),
    ]


def _schedule_lag(done: Sequence[Line]) -> ScheduleLagMs:
    if not done:
        return ScheduleLagMs(p50=None, p99=None, max=None)
    lag = done[-1]["schedule_lag_ms"]
    return ScheduleLagMs(p50=lag["p50"], p99=lag["p99"], max=lag["max"])


def _seen(figure: str, values: Mapping[str, float | None], raw: Raw) -> dict[str, float | None]:
    """By role; null of roles whose processes are out of sight, where 0 would look like none."""
    return {role: None if f"{figure}.{role}" in raw.not_measured else value for role, value in values.items()}


def _by_role(values: Mapping[str, float | None]) -> ByRole:
    return ByRole(**{role: None if value is None else round(value, 6) for role, value in values.items()})


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
) -> Record:
    environment = {name: attempt.environment.get(name) for name in Environment.model_fields}
    environment |= around or {}
    if settings is not None:
        environment["spark_conf"] = _as_run(environment["spark_conf"] or {}, settings)
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
        environment=Environment.model_validate(environment),
        timeline=timeline,
        metrics=metrics,
        artifacts=artifacts,
    )
