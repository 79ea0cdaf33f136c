"""How fast the results pages answer with many records in the store: each address, through the app that serves it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from faultline.bench.figure import summarise
from faultline.config import parse_configuration
from faultline.index import Index
from faultline.pages.app import build_app
from faultline.pages.site import Site
from faultline.record import AuditPart, ByRole, Environment, LatencyMs, Metrics, Record, RecoveryPart, TimelineEvent

RECORDS = 10_000
# Cells of a sweep, and repetitions of a cell.
STATES, INTERVALS, REPETITIONS = 10, 5, 4
_SWEEP = STATES * INTERVALS * REPETITIONS
MATRIX = "state_size_x_checkpoint_interval"
NS = 10**9

Say = Callable[[str], None]


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """Figures in seconds: `first_look_s`, when nothing is indexed yet, `restart_s`, the first page of a new process,
    and one for each page, 20 times each, or 5 times when `quick`. The store always holds 10,000 records.
    """
    with tempfile.TemporaryDirectory(prefix="faultline-pages-") as folder:
        results = Path(folder)
        say(f"writing {RECORDS} records")
        for number in range(RECORDS):
            _write(results, _record(number))
        figures = {"first_look_s": [_timed(_app(results), "/")], "restart_s": [_timed(_app(results), "/")]}
        app = _app(results)
        for name, address in _addresses().items():
            _timed(app, address)
            figures[f"{name}_s"] = [_timed(app, address) for _ in range(5 if quick else 20)]
            say(f"{address}: {max(figures[f'{name}_s']):.3f} s at most")
    return {name: asdict(summarise(values, "s")) for name, values in figures.items()}


def _addresses() -> dict[str, str]:
    first = _record(0)
    return {
        "overview": "/",
        "sweep": "/sweeps/sweep-0000",
        "matrix": f"/matrices/{MATRIX}",
        "experiment": f"/experiments/{first.attempt}",
        "compare": "/compare?a=sweep-0000&b=sweep-0001",
        "csv": "/experiments.csv?sweep=sweep-0000",
    }


def _app(results: Path) -> FastAPI:
    site = Site(Index(results), results, prefix="")
    return build_app(lambda request: site, lambda: None)


def _timed(app: FastAPI, address: str) -> float:
    """Seconds until the whole answer is there. Raises RuntimeError when it is not a page."""
    path, _, query = address.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    began = time.perf_counter()
    asyncio.run(app(scope, receive, send))
    took = time.perf_counter() - began
    if statuses != [200]:
        raise RuntimeError(f"{address}: answered {statuses}")
    return took


def _write(results: Path, record: Record) -> None:
    path = results / "records" / record.config_id / f"{record.attempt}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.as_json(), encoding="utf-8")


def _record(number: int) -> Record:
    """Record `number`, of the size of a real one; every 20th is invalid."""
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
            "audit": AuditPart(expected=400_000, lost=0, overcounted=0, wrong=0, reemitted=7, unknown=0),
        }
    )
    return Record(
        schema=1,
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
        environment=Environment(
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
