"""Sample records for tests; only the named figures are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.synthetic_records import made_record
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.records.record import SCHEMA, AuditPart, ByRole, LatencyMs, Metrics, Record, RecoveryPart, TimelineEvent
from faultline.records.recoveries import value_of_run
from faultline.records.renames import CODES, EVENTS, KEYS, RENAMED_SCHEMA, STATUSES
from faultline.records.sweep_plan import SweepPlan, cells_of

NS = 1_000_000_000
GATE_NS = 1_795_241_700 * NS


def sample(
    *,
    status: str = "valid",
    reasons: list[str] | None = None,
    attempt: str = "20261121T061500Z-3fa9c1",
    repetition: int = 0,
    latency: dict[str, Any] | None = None,
    recovery: dict[str, Any] | None = None,
    recoveries: list[dict[str, Any]] | None = None,
    timeline: dict[str, tuple[float, str]] | None = None,
    raw_config: dict[str, Any] | None = None,
    **config: Any,
) -> Record:
    """Return a record; `timeline`: name -> (seconds after T0, source); `raw_config` goes in unchecked."""
    configuration = parse_configuration(config)
    metrics = Metrics.unknown()
    if status in ("valid", "unmet", "invalid"):
        metrics = metrics.model_copy(
            update={
                "latency_ms": LatencyMs.empty().model_copy(
                    update={"mean": 1975.0, "p50": 1607.0, "p99": 8046.4, "max": 9224.0, **(latency or {})}
                ),
                "throughput_rps": 500.6,
                "sustained": True,
                "cpu_cores": ByRole(driver=0.186, executors=0.48, python_workers=0.0, kafka=0.06, generator=0.0549),
                "recovery": RecoveryPart.empty().model_copy(update=recovery or {}),
                "recoveries": [RecoveryPart.empty().model_copy(update=one) for one in recoveries or []],
                "audit": AuditPart(expected=396_357, lost=0, overcounted=12_345, unexpected=0, reemitted=7, unknown=0),
            }
        )
    content = {
        "schema": SCHEMA,
        "matrix": "m",
        "sweep_id": "s1",
        "config": {**configuration.model_dump(mode="json"), **(raw_config or {})},
        "config_id": configuration.config_id,
        "repetition": repetition,
        "series": "b1",
        "build": "b1",
        "logical_date": None,
        "measured_at": "2026-11-21T06:15:00.250+00:00",
        "attempt": attempt,
        "status": status,
        "reasons": reasons or [],
        "environment": {
            "host": "bench-1",
            "cores": 2,
            "memory_mb": 8192,
            "oversubscribed": False,
            "versions": {"pyspark": "4.2.0", "kafka": "4.3.1", "java": "17.0.15", "faultline": "0.1.0"},
            "git_commit": None,
            "spark_conf": {"spark.executor.cores": "1"},
            "kafka_conf": {},
        },
        "timeline": [
            {"name": name, "wall_ns": GATE_NS + round(t_s * NS), "mono_ns": round(t_s * NS), "source": source}
            for name, (t_s, source) in (timeline or {}).items()
        ],
        "metrics": metrics.model_dump(),
        "artifacts": {"attempt": f"attempts/{attempt}/attempt.json"},
    }
    return Record.model_validate(content)


def schema_2(values: dict[str, Any]) -> dict[str, Any]:
    """Return a record under the names of schema 2."""

    def old(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return [old(one, path) for one in node]
        if not isinstance(node, dict):
            return node
        names = {name: key.rpartition(".")[2] for key, name in KEYS.items() if key.rpartition(".")[0] == path}
        found = {names.get(key, key): value for key, value in node.items()}
        return {key: old(value, f"{path}.{key}".lstrip(".")) for key, value in found.items()}

    made: dict[str, Any] = {**values, **{key: old(values[key], key) for key in ("metrics", "environment")}}
    made["schema"] = RENAMED_SCHEMA
    made["status"] = _swapped(STATUSES).get(values["status"], values["status"])
    made["reasons"] = [_with_old_code(reason) for reason in values["reasons"]]
    made["timeline"] = [{**event, "name": _with_old_event(event["name"])} for event in values["timeline"]]
    for part in (made["metrics"]["recovery"], *made["metrics"]["recoveries"]):
        part["note"] = part["note"] and _with_old_code(part["note"])
    return made


def _swapped(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def _with_old_code(reason: str) -> str:
    code, sign, rest = reason.partition(":")
    return f"{_swapped(CODES).get(code, code)}{sign}{rest}"


def _with_old_event(name: str) -> str:
    plain, sign, number = name.partition("#")
    return f"{_swapped(EVENTS).get(plain, plain)}{sign}{number}"


RECOVERED = {
    "recovered": True,
    "detection_s": 0.148,
    "redeploy_s": 5.094,
    "load_s": 1.01,
    "reload_s": 6.252,
    "replay_s": 1.588,
    "catchup_s": 4.0,
    "macro_s": 13.84,
    "resolution_s": 2.0,
}
CENSORED = {**RECOVERED, "recovered": False, "catchup_s": None, "macro_s": None, "censored_at_s": 33.94}


def matrix() -> list[Record]:
    """Return unordered records: state 1 and 8 MB x interval 2 and 5 s, each with a kill; one control."""
    kills = [
        sample(state_mb=state, checkpoint_interval_s=interval, recovery=recovery, attempt=f"a-{state:g}-{interval:g}")
        for state, interval, recovery in (
            (8.0, 5.0, CENSORED),
            (8.0, 2.0, RECOVERED),
            (1.0, 5.0, RECOVERED),
            (1.0, 2.0, RECOVERED),
        )
    ]
    return [sample(fault="none", attempt="a-control", latency={"p99": 2557.0}), *kills]


def made_run(
    repetition: int, recoveries: Sequence[tuple[float, float | None]], *, number: int = 1, spacing_s: float = 30.0
) -> Record:
    """Return a valid run of record `number`'s configuration with several injections.

    `recoveries`: lower and upper end of each in seconds; no upper end if censored.
    """
    record = made_record(number)
    parts = [_part(low, high) for low, high in recoveries]
    metrics = record.metrics.model_copy(update={"recovery": _part(*value_of_run(recoveries)), "recoveries": parts})
    window_s = spacing_s * (len(parts) + 1)
    instants = {"gate": 0.0, "measured_from": 20.0, "measured_until": 20.0 + window_s}
    instants |= {f"t0#{n}" if n > 1 else "t0": 20.0 + spacing_s * n for n in range(1, len(parts) + 1)}
    hour, minute = divmod(repetition * 7, 60)
    began_s = datetime(2026, 11, 1, hour, minute, tzinfo=UTC).timestamp()
    return record.model_copy(
        update={
            "config": {**record.config, "injections": max(2, len(parts))},
            "repetition": repetition,
            "attempt": f"20261101T{hour:02}{minute:02}00Z-{number:06x}",
            "measured_at": f"2026-11-01T{hour:02}:{minute:02}:00.000+00:00",
            "metrics": metrics,
            "timeline": [
                TimelineEvent(name=name, wall_ns=round(NS * (began_s + t_s)), mono_ns=round(NS * t_s), source="made up")
                for name, t_s in instants.items()
            ],
        }
    )


def _part(low: float, high: float | None) -> RecoveryPart:
    known = {"recovered": True, "macro_s": high, "resolution_s": None if high is None else high - low}
    if high is None:
        known = {"recovered": False, "censored_at_s": low}
    part: RecoveryPart = RecoveryPart.empty().model_copy(update=known)
    return part


def made_plan(cells: Iterable[PlannedCell], **facts: Any) -> SweepPlan:
    """Return a sweep plan with these cells."""
    known = {"sweep_id": "s1", "matrix": "m", "run_id": "r", "series": "b1", "build": "b1", "logical_date": None,
             "planned_at": "2026-11-21T06:00:00+00:00", "cells": cells_of(cells)}  # fmt: skip
    return SweepPlan(**{**known, **facts})
