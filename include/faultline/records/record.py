"""Record of one attempt (schema 3): its outcome, figures, and paths of the evidence.

T0 is the start of the load, t0 the injection of a fault. Every key is always present; null means unknown or not
applicable. `schemas/record-3.schema.json` is generated from these models. A changed name or meaning gets a new schema
number. Records of schema 2 are read under the names of schema 3 (`renames`); older ones are refused
(`scripts/migrate.py`).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from faultline.experiment.cell import SweepId
from faultline.records.environment import Part, RecordEnvironment
from faultline.records.renames import RENAMED_SCHEMA, renamed_record
from faultline.records.work_parts import (
    BackgroundCpuPart,
    CheckpointsPart,
    CpuByPhase,
    CpuPerMillion,
    DataPart,
    GarbagePart,
    KeySkewPart,
    LateRecordsPart,
    MedianAndMax,
    StagesPart,
    WaitedPart,
    WorkPart,
)

SCHEMA: Final = 3
SCHEMA_PATH = Path(__file__).parent / "schemas" / "record-3.schema.json"

# `unmet`: the engine did not meet the requested load or interval, which is a result. `invalid`: measuring failed.
Status = Literal["valid", "unmet", "invalid", "failed", "cancelled"]
# Usable records count wherever figures are shown, averaged or compared; their cells are not measured again.
USABLE = frozenset({"valid", "unmet"})
WITH_FIGURES = USABLE | {"invalid"}  # figures of an invalid record do not count


class LatencyMs(Part):
    """Latency of tuples, in milliseconds.

    `negative`, `unreflected`: tuples of the whole measured window. `batches`: number of batches with these tuples;
    null without batches, and in older records.
    """

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None
    count: int | None
    negative: int | None
    unreflected: int | None
    method: str | None
    batches: int | None = None


class ByRole(Part):
    """Figure by process role."""

    driver: float | None
    executors: float | None
    python_workers: float | None
    kafka: float | None
    generator: float | None


class StateBytes(Part):
    """Size of the state in bytes: of its live rows, and in the checkpoint."""

    logical: int | None
    checkpoint: int | None


class ScheduleLagMs(Part):
    """Schedule lag of the generator, in milliseconds."""

    p50: float | None
    p99: float | None
    max: float | None


class TriggerPart(Part):
    """Trigger of a later injection: the engine was steady again.

    Seconds from the previous injection until then (`normal_s`), commits since then, phase of the checkpoint cycle (0 to
    1), and total wait in s.
    """

    normal_s: float | None
    baseline_commits: int | None
    phase: float | None
    waited_s: float | None


class RecoveryPart(Part):
    """Parts of the recovery from one fault, in seconds; all null for a control.

    A recovery took a time in (macro_s − resolution_s, macro_s]; a censored one took longer than `censored_at_s`.
    `dip_depth`, `plateau_ratio`, `recovered_within`: shares. `lag_area_record_s`: record·seconds. Recovery thresholds:
    `latency_limit_ms` (L*), `lag_limit` (lag*, records), held for `hold_s` (H). `settled_s`: t0 to the start of the
    last latency level. `phase`: of the fault in its checkpoint cycle, 0 to 1. `lateness_ms`: largest schedule lag until
    the end of the recovery. `restarts`: of the job by the engine, until t6. `durable_s`: t0 to the first commit that
    covers the input present at the fault. Only with several injections of one fault: `injection`, its number from 1;
    `at_s`, its t0 after T0; `trigger`; `note`, why this recovery alone is limited or unusable; `drift_since_first_s`,
    `macro_s` minus its value by the first baseline window. Keys with a default are missing in older records.
    """

    recovered: bool | None
    detection_s: float | None
    redeploy_s: float | None
    load_s: float | None
    reload_s: float | None
    replay_s: float | None
    catchup_s: float | None
    macro_s: float | None
    replacement_up_s: float | None
    censored_at_s: float | None
    resolution_s: float | None
    dip_depth: float | None = None
    silence_s: float | None = None
    lag_area_record_s: float | None = None
    recovered_within: float | None = None
    latency_limit_ms: float | None = None
    lag_limit: float | None = None
    hold_s: float | None = None
    plateau_ratio: float | None = None
    settled_s: float | None = None
    phase: float | None = None
    lateness_ms: float | None = None
    restarts: float | None = None
    durable_s: float | None = None
    injection: int | None = None
    at_s: float | None = None
    drift_since_first_s: float | None = None
    trigger: TriggerPart | None = None
    note: str | None = None


class EndedEarlyPart(Part):
    """Early end before the last injection: `signal` (latency or lag) was above its `limit` when the wait ended."""

    signal: str
    value: float | None
    limit: float | None
    waited_s: float | None


class InjectionsPart(Part):
    """Planned and made injections of one fault in the run."""

    planned: int
    made: int
    ended_early: EndedEarlyPart | None


class WarmupPart(Part):
    """Warm-up until the engine is steady.

    Seconds beyond `warmup_s` (`waited_s`), whether the engine was steady at its end, and the latest permitted end in
    seconds after T0 (`bound_s`).
    """

    waited_s: float | None
    steady: bool | None
    bound_s: float | None


class AuditPart(Part):
    """Differences between the output and a batch recomputation over the committed input.

    `undrained`: input offsets beyond the last commit, in no other count; null in records that count them as lost.
    `unexpected`: keys or values that the recomputation does not contain. `checksum_mismatches`: keys with the expected
    count but a different sum of tuple hashes; null in records without such sums.
    """

    expected: int | None
    lost: int | None
    overcounted: int | None
    unexpected: int | None
    reemitted: int | None
    unknown: int | None
    checksum_mismatches: int | None = None
    undrained: int | None = None


class Metrics(Part):
    """All figures of an attempt; defined in docs/reference/metrics.md.

    Latency of tuples produced in the measured window: `latency_ms` before the first fault, `latency_during_ms` from it
    to the end of the last recovery, `latency_after_ms` later. `recoveries`: one per fault, in order; `recovery`: the
    first, or the median over several injections of one fault. `injections`: null for a single one. `warmup`: null if of
    fixed length. `checkpoints`: null for engines without barriers. `unplanned_exits`: of supervised workers, null
    without any. `visible_delay_ms`: of outputs in transactions, null without them. `placebo`: the recovery rule applied
    to a control run. `cpu_by_phase`: null without a fault. `not_measured`: reasons by figure, for user jobs. Older
    records may lack figures after `recoveries`, which are then null.
    """

    latency_ms: LatencyMs
    throughput_rps: float | None
    sustained: bool | None
    effective_interval_s: float | None
    cpu_cores: ByRole
    rss_mb: ByRole
    gc_s: float | None
    state_bytes: StateBytes
    schedule_lag_ms: ScheduleLagMs
    recovery: RecoveryPart
    audit: AuditPart
    recoveries: list[RecoveryPart] = []
    source_rps: float | None = None
    non_compute_ms: float | None = None
    cpu_by_host: dict[str, float] | None = None
    work: WorkPart | None = None
    key_skew: KeySkewPart | None = None
    late_records: LateRecordsPart | None = None
    realtime: bool | None = None
    background_cpu: BackgroundCpuPart | None = None
    rps_per_core: float | None = None
    stages: StagesPart | None = None
    placebo: RecoveryPart | None = None
    latency_during_ms: LatencyMs | None = None
    latency_after_ms: LatencyMs | None = None
    cpu_s_per_million: CpuPerMillion | None = None
    gc: GarbagePart | None = None
    not_measured: dict[str, str] | None = None
    data: DataPart | None = None
    injections: InjectionsPart | None = None
    warmup: WarmupPart | None = None
    waited: WaitedPart | None = None
    checkpoints: CheckpointsPart | None = None
    unplanned_exits: int | None = None
    visible_delay_ms: MedianAndMax | None = None
    cpu_by_phase: CpuByPhase | None = None

    @classmethod
    def unknown(cls) -> Metrics:
        """Return metrics with every figure null, for attempts that were not measured."""
        return cls(
            latency_ms=LatencyMs.empty(),
            throughput_rps=None,
            sustained=None,
            effective_interval_s=None,
            cpu_cores=ByRole.empty(),
            rss_mb=ByRole.empty(),
            gc_s=None,
            state_bytes=StateBytes.empty(),
            schedule_lag_ms=ScheduleLagMs.empty(),
            recovery=RecoveryPart.empty(),
            audit=AuditPart.empty(),
        )


class TimelineEvent(Part):
    """An instant on both clocks of the host, and the evidence for it."""

    name: str
    wall_ns: int
    mono_ns: int
    source: str


class Record(Part):
    """Record of one attempt.

    `config`: configuration as JSON. `artifacts`: paths of raw files below the results folder, by name.
    """

    schema_: Literal[3] = Field(alias="schema")
    matrix: str | None
    sweep_id: SweepId | None
    config: dict[str, Any]
    config_id: str
    repetition: int
    series: str
    build: str
    logical_date: str | None
    measured_at: str
    attempt: str
    status: Status
    reasons: list[str]
    environment: RecordEnvironment
    timeline: list[TimelineEvent]
    metrics: Metrics
    artifacts: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Return the values, with the names of schema 3 if they are of schema 2."""
        if isinstance(values, dict) and values.get("schema") == RENAMED_SCHEMA:
            return renamed_record(values)
        return values

    @property
    def is_usable(self) -> bool:
        """Whether its figures count: status valid or unmet."""
        return self.status in USABLE

    def as_dict(self) -> dict[str, Any]:
        """Return the record as stored: plain JSON types, with the key `schema`."""
        return self.model_dump(mode="json", by_alias=True)

    def as_json(self) -> str:
        """Return the record as stored, with a trailing newline."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@cache
def committed_schema() -> dict[str, Any]:
    """Return the JSON Schema file of the package."""
    content: dict[str, Any] = json.loads(SCHEMA_PATH.read_text())
    return content
