"""The record of one attempt (schema 3): its outcome, its figures, and where the evidence lies.

Every key is always present; null means unknown or not applicable. `schemas/record-3.schema.json` is generated from
these models. A changed name or meaning gets a new schema number. Records of schema 2 are read under the names of
schema 3 (`renames`); older ones are refused (`scripts/migrate.py`).
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

SCHEMA: Final = 3
SCHEMA_PATH = Path(__file__).parent / "schemas" / "record-3.schema.json"

# `unmet`: the engine did not do what was asked of it, which is a result. `invalid`: the measurement failed.
Status = Literal["valid", "unmet", "invalid", "failed", "cancelled"]
# Soundly measured: these count wherever figures are shown, averaged or compared, and are not measured again.
USABLE = frozenset({"valid", "unmet"})
WITH_FIGURES = USABLE | {"invalid"}  # there are figures, whether they count or not


class LatencyMs(Part):
    """Latency of tuples, in milliseconds. `negative`, `unreflected`: tuples of the whole measured window. `batches`:
    that the tuples came from; null where there are none, and in older records."""

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
    """A figure for each role of a process."""

    driver: float | None
    executors: float | None
    python_workers: float | None
    kafka: float | None
    generator: float | None


class StateBytes(Part):
    """Size of the state in bytes: live rows, and what lies in the checkpoint."""

    logical: int | None
    checkpoint: int | None


class ScheduleLagMs(Part):
    """How late the generator sent, in milliseconds."""

    p50: float | None
    p99: float | None
    max: float | None


class TriggerPart(Part):
    """Why an injection after the first came when it did: seconds from the one before until the engine was found back to
    normal, commits since then, the place in the checkpoint cycle, and how long was waited in all."""

    normal_s: float | None
    baseline_commits: int | None
    phase: float | None
    waited_s: float | None


class RecoveryPart(Part):
    """Parts of the recovery from one fault, in seconds; all null for a control.

    A recovery lies in (macro_s − resolution_s, macro_s]; one that was not seen to end, above `censored_at_s`.
    `dip_depth`, `plateau_ratio`, `recovered_within`: shares. `lag_area_record_s`: record·seconds. What counted as
    recovered: `latency_limit_ms` (L*), `lag_limit` (lag*, records), `hold_s` (H). `settled_s`: from t0 to when latency
    had its last level. `phase`: of the fault in its checkpoint cycle, 0 to 1. `lateness_ms`: the generator's largest
    until the end of the recovery. Of several injections of one fault also `injection`, its number from 1, `at_s`, its
    t0 after T0, `trigger`, `note`, what speaks against this one alone, and `drift_since_first_s`: macro less what it
    would be against the baseline of the first. Older records lack what has defaults.
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
    injection: int | None = None
    at_s: float | None = None
    drift_since_first_s: float | None = None
    trigger: TriggerPart | None = None
    note: str | None = None


class EndedEarlyPart(Part):
    """Why a run ended before its last injection: the `signal` that was out of its `limit` when the wait was over."""

    signal: str
    value: float | None
    limit: float | None
    waited_s: float | None


class InjectionsPart(Part):
    """How often a fault was to be injected in the run, and was."""

    planned: int
    made: int
    ended_early: EndedEarlyPart | None


class WarmupPart(Part):
    """A warm-up that lasts until the engine is steady: seconds beyond the shortest one, whether it was steady then, and
    the latest end that was allowed, in seconds after T0."""

    waited_s: float | None
    steady: bool | None
    bound_s: float | None


class AuditPart(Part):
    """Counts against the batch recomputation of the input that was committed.

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


class WorkPart(Part):
    """What the engine did in the measured window: batches and tasks, and seconds spent in each kind; of batches also
    microseconds for each record that was committed."""

    batches: int | None
    tasks: int | None
    batch_s: float | None
    task_s: float | None
    batch_us_per_record: float | None = None


class CpuPerMillion(Part):
    """CPU seconds that the engine took in the measured window for a million records that it committed, with its driver
    and without."""

    engine: float | None
    workers: float | None


class GarbagePart(Part):
    """Pauses of garbage collection in the measured window, by the processes' own logs: by role, and of both together.

    Null as a whole where nobody logged them: then `gc_s` is what the engine told of its tasks.
    """

    driver_s: float | None
    executors_s: float | None
    pauses: int | None
    longest_ms: float | None


class DataPart(Part):
    """Data of the user's that was replayed: its records, how often it was gone through, and how many milliseconds later
    the times in it were from one cycle to the next; null where it has none."""

    records: int
    cycles: float
    cycle_ms: int | None


class KeySkewPart(Part):
    """How unequal the keys were: Zipf exponents (asked for, estimated, 95 % interval), and the hottest key's share."""

    requested: float | None
    measured: float | None
    low: float | None
    high: float | None
    hottest_share: float | None
    distinct: int | None


class LateRecordsPart(Part):
    """Records that came too late to count: sent as such, and rows that the engine says it left out."""

    sent: int | None
    dropped_rows: int | None


class StagesPart(Part):
    """What the stages of a topology did after the gate, in all.

    `signals`: of back-pressure, to slow down. `failed`, `set_aside`: tuples. `replacements` with the longest `gap_s`
    from the last commit to the next batch's plan, and the longest batch of such a stage in `batch_s`. `most_queued`: in
    one queue, tuples that no batch had taken in. `unstored`: keys whose count in the store is not the last
    acknowledged one; None without persist.
    """

    signals: int
    failed: int
    set_aside: int
    replacements: int
    gap_s: float | None
    batch_s: float | None
    most_queued: int | None
    unstored: int | None


class BackgroundCpuPart(Part):
    """Cores that the experiment did not get: used by other processes of the machine, and stolen by its host.

    `services`, among the others: what runs the experiments. `recorder`: the recorder's. Null in records from before
    they were told apart.
    """

    processes: float | None
    steal: float | None
    services: float | None = None
    recorder: float | None = None


class WaitedPart(Part):
    """Cores that the measured processes lost, since they were ready and another process of the machine (`others`) or
    its host (`stolen`) had the processor; both together in the worst 5 s (`worst_5s`)."""

    others: float | None
    stolen: float | None
    worst_5s: float | None


class Metrics(Part):
    """All figures of an attempt; defined in docs/reference/metrics.md.

    `latency_ms`: of what was produced in the measured window, before the first fault where there was one; then
    `latency_during_ms` of what was produced from a fault until it was over, and `latency_after_ms` of the rest.
    `recoveries`: one for each fault, in order; `recovery` is the first, or of several injections of one fault their
    median. `injections`: null without several. `warmup`: null where it has a fixed length. `placebo`: of a control,
    what the rule of the end says at the instant that a fault would have had. `not_measured`: of figures that a job of
    the user's cannot have, why. What comes after `recoveries` is null in records from before it was measured.
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

    @classmethod
    def unknown(cls) -> Metrics:
        """Return every figure null, for attempts that were not measured."""
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
    """One attempt. `config` is the configuration's JSON, `artifacts` maps names to paths under the results folder."""

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
        """Return a record of schema 2 under the current names."""
        if isinstance(values, dict) and values.get("schema") == RENAMED_SCHEMA:
            return renamed_record(values)
        return values

    @property
    def is_usable(self) -> bool:
        """Whether its figures count."""
        return self.status in USABLE

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is stored: plain JSON types, `schema` under its own name."""
        return self.model_dump(mode="json", by_alias=True)

    def as_json(self) -> str:
        """Return the stored text, with a newline at its end."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@cache
def committed_schema() -> dict[str, Any]:
    """Return the JSON Schema that lies in the repository."""
    content: dict[str, Any] = json.loads(SCHEMA_PATH.read_text())
    return content
