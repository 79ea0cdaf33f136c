"""Records made up for tests of what shows them. Only the named figures are known."""

from __future__ import annotations

from typing import Any

from faultline.experiment.config import parse_configuration
from faultline.records.record import AuditPart, ByRole, LatencyMs, Metrics, Record, RecoveryPart

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
    """A record; `timeline`: name -> (seconds after T0, source); `raw_config` goes in unchecked."""
    configuration = parse_configuration(config)
    metrics = Metrics.unknown()
    if status in ("valid", "unmet", "unsound"):
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
                "audit": AuditPart(expected=396_357, lost=0, overcounted=12_345, wrong=0, reemitted=7, unknown=0),
            }
        )
    content = {
        "schema": 2,
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
    """State 1 and 8 MB, interval 2 and 5 s, each with a kill; one control; not in order."""
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
