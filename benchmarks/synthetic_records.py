"""Synthetic records of realistic size, for benchmarks of the store."""

from __future__ import annotations

from pathlib import Path

from faultline.experiment.config import parse_configuration
from faultline.records.environment import RecordEnvironment
from faultline.records.record import (
    SCHEMA,
    AuditPart,
    ByRole,
    LatencyMs,
    Metrics,
    Record,
    RecoveryPart,
    TimelineEvent,
)

MATRIX = "state_size_x_checkpoint_interval"
# Axes of a sweep, and repetitions of a cell.
STATES, INTERVALS, REPETITIONS = 10, 5, 4
_SWEEP = STATES * INTERVALS * REPETITIONS
NS = 10**9


def made_record(number: int) -> Record:
    """Return record `number`, in sweeps of 200; every 20th except the first is invalid."""
    sweep, cell = divmod(number, _SWEEP)
    cell, repetition = divmod(cell, REPETITIONS)
    state, interval = divmod(cell, INTERVALS)
    config = parse_configuration(
        {"state_mb": float(state + 1), "checkpoint_interval_s": float(interval + 1), "duration_s": 120.0}
    )
    valid = number % 20 != 0 or number == 0
    wobble = 1 + (number * 37 % 101) / 500
    recovery = {
        "recovered": True, "detection_s": 0.15, "redeploy_s": 5.1 * wobble, "load_s": 0.1 * (state + 1),
        "reload_s": 5.3 * wobble, "replay_s": 1.6 * wobble, "catchup_s": 4.0, "macro_s": 14.0 * wobble,
        "resolution_s": float(interval + 1),
    }  # fmt: skip
    metrics = Metrics.unknown().model_copy(
        update={
            "latency_ms": LatencyMs.empty().model_copy(update={"p50": 1600.0 * wobble, "p99": 8000.0 * wobble}),
            "throughput_rps": 500.0,
            "sustained": True,
            "cpu_cores": ByRole(driver=0.2, executors=0.5 * wobble, python_workers=0.0, kafka=0.06, generator=0.05),
            "recovery": RecoveryPart.empty().model_copy(update=recovery),
            "audit": AuditPart(expected=400_000, lost=0, overcounted=0, unexpected=0, reemitted=7, unknown=0),
        }
    )
    return Record(
        schema=SCHEMA,
        matrix=MATRIX,
        sweep_id=f"sweep-{sweep:04}",
        config=config.model_dump(mode="json"),
        config_id=config.config_id,
        repetition=repetition,
        series="b1",
        build="b1",
        logical_date=None,
        measured_at=f"2026-11-{sweep % 28 + 1:02}T{number % 24:02}:{number % 60:02}:00.000+00:00",
        attempt=f"20261101T000000Z-{number:06x}",
        status="valid" if valid else "invalid",
        reasons=[] if valid else ["not-steady: lag has a trend before the fault (p = 0.031)"],
        environment=RecordEnvironment(
            host="bench-1",
            cores=2,
            memory_mb=8192.0,
            oversubscribed=False,
            versions={name: "1.2.3" for name in ("pyspark", "kafka", "java", "python", "apache-airflow", "faultline")},
            git_commit="0" * 40,
            spark_conf={f"spark.some.setting.{name}": "a value of it" for name in range(60)},
            kafka_conf={f"some.setting.{name}": "a value of it" for name in range(20)},
        ),
        timeline=[
            TimelineEvent(name=f"t{step}", wall_ns=NS * step, mono_ns=NS * step, source="recorder.jsonl: seen")
            for step in range(8)
        ],
        metrics=metrics,
        artifacts={name: f"attempts/x/{name}" for name in ("attempt", "series", "audit", "tuples", "counts")},
    )


def write_record(results: Path, record: Record) -> None:
    """Write a record to the store without validation, which would take most of the time."""
    path = results / "records" / record.config_id / f"{record.attempt}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.as_json(), encoding="utf-8")
