"""Files that the judge writes next to an attempt's raw files: `series.json`, `audit.json` and `latency.hlog`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogWriter

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import is_added
from faultline.records.judge.counts import Counts
from faultline.records.judge.cpu import cores_by_second
from faultline.records.judge.signals import Signals
from faultline.records.judge.timeline import EvidenceEvent
from faultline.records.judge.tuples import Tuples
from faultline.system.files import write_atomic
from faultline.system.measured_window import NS, Window

Point = dict[str, Any]
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


def artifacts(folder: Path) -> dict[str, str]:
    """Return the path of each existing file of the attempt, relative to the results folder, by artifact name.

    Plans that `scripts/migrate.py` created are omitted.
    """
    paths = {name: f"attempts/{folder.name}/{path}" for name, path in ARTIFACTS.items() if (folder / path).exists()}
    if is_added(Attempt(folder)):
        del paths["plan"]
    return paths


def write_findings(folder: Path, signals: Signals, counts: Counts, points: dict[str, Any]) -> None:
    """Write the three files atomically; raises as `write_atomic` does. `points`: result of `time_series`."""
    audit = {**counts.totals.model_dump(), "offenders": counts.offenders}
    write_atomic(folder / "audit.json", json.dumps(audit, indent=1))
    write_atomic(folder / "latency.hlog", histogram(signals.tuples, signals.window))
    write_atomic(folder / "series.json", json.dumps(points, allow_nan=False))


def histogram(tuples: Tuples, window: Window) -> str:
    """Return the latencies of the measured window in ms, as one interval of an HdrHistogram V2 log."""
    values = tuples.window["latency_ms"].to_numpy(dtype=np.int64)
    highest = max(2, int(values.max())) if len(values) else 2
    latencies = HdrHistogram(1, highest, 3)
    for value, count in zip(values.tolist(), tuples.window["n"].tolist(), strict=True):
        latencies.record_value(value, count)
    log = io.StringIO()
    writer = HistogramLogWriter(log)
    writer.output_comment("latency of tuples in ms, measured window")
    writer.output_log_format_version()
    writer.output_legend()
    writer.output_interval_histogram(latencies, window.start_ns / NS, window.end_ns / NS, 1.0)
    return log.getvalue()


def time_series(signals: Signals, processes: pd.DataFrame, events: Iterable[EvidenceEvent]) -> dict[str, Any]:
    """Return the time series of an attempt: lists of points in chronological order; `t_s` is seconds after T0.

    `events`: of the record's timeline; names of events of later faults end in `#2`, `#3`, ….
    """
    window, bins = signals.window, signals.bins
    ends = [round(window.t_s(int(end)), 3) for end in bins["end_ns"]]
    rates = np.round(bins["throughput_rps"].to_numpy(dtype=np.float64), 3).tolist()
    sampled_until = int(processes["wall_ns"].max()) if len(processes) else window.t0_ns
    return {
        "latency": latency_points(signals.tuples),
        "throughput": [{"t_s": t_s, "rps": rate} for t_s, rate in zip(ends, rates, strict=True)],
        "lag": [{"t_s": t_s, "records": lag} for t_s, lag in zip(ends, bins["lag"].astype(int).tolist(), strict=True)],
        "cpu": cores_by_second(processes, window.t0_ns, sampled_until),
        "events": [
            {"name": event.name, "t_s": round(window.t_s(event.wall_ns), 6), "source": event.source} for event in events
        ],
        "warmup_s": window.t_s(window.start_ns),
        "duration_s": window.duration_s,
    }


def latency_points(tuples: Tuples) -> list[Point]:
    """Return median, p99 and maximum latency of the tuples emitted in each second, and their number."""
    if tuples.by_second.empty:
        return []
    grouped = tuples.by_second.groupby("second")
    highest, counts = grouped["latency_ms"].max(), grouped["n"].sum()
    return [
        {
            "t_s": float(second),
            "p50_ms": float(tuples.second_p50[second]),
            "p99_ms": float(tuples.second_p99[second]),
            "max_ms": float(highest[second]),
            "n": int(counts[second]),
        }
        for second in counts.index
    ]
