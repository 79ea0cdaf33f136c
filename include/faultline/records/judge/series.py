"""`series.json`: the course of an attempt over time, for plots. `t_s` = seconds after T0."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from faultline.records.judge.latency import Tuples, grouped_rank
from faultline.records.judge.recovery.evidence import Event
from faultline.records.judge.resources.cpu import cores_by_second
from faultline.system.files import write_whole
from faultline.system.window import Window

Point = dict[str, Any]


def latency_points(tuples: Tuples) -> list[Point]:
    """Median, p99 and maximum of the tuples emitted in each second, and their number."""
    seconds = tuples.by_second
    if seconds.empty:
        return []
    p50, p99 = grouped_rank(seconds, ["second"], 500), grouped_rank(seconds, ["second"], 990)
    grouped = seconds.groupby("second")
    highest, counts = grouped["latency_ms"].max(), grouped["n"].sum()
    return [
        {
            "t_s": float(second),
            "p50_ms": float(p50[second]),
            "p99_ms": float(p99[second]),
            "max_ms": float(highest[second]),
            "n": int(counts[second]),
        }
        for second in counts.index
    ]


def series(
    window: Window, bins: pd.DataFrame, tuples: Tuples, processes: pd.DataFrame, events: Iterable[Event]
) -> dict[str, Any]:
    """All curves of one attempt, each a list of points in order of time.

    `events` are those of the record's timeline; of the second fault on their names end in `#2`, `#3`, ….
    """
    ends = [round(window.t_s(int(end)), 3) for end in bins["end_ns"]]
    sampled_until = int(processes["wall_ns"].max()) if len(processes) else window.t0_ns
    return {
        "latency": latency_points(tuples),
        "throughput": _points(ends, "rps", np.round(bins["throughput_rps"].to_numpy(dtype=np.float64), 3).tolist()),
        "lag": _points(ends, "records", bins["lag"].astype(int).tolist()),
        "cpu": cores_by_second(processes, window.t0_ns, sampled_until),
        "events": [
            {"name": event.name, "t_s": round(window.t_s(event.wall_ns), 6), "source": event.source} for event in events
        ],
        "warmup_s": window.t_s(window.start_ns),
        "duration_s": window.duration_s,
    }


def write_series(path: Path, content: dict[str, Any]) -> None:
    """Writes it whole; raises as `write_whole` does."""
    write_whole(path, json.dumps(content, allow_nan=False))


def _points(times_s: list[float], name: str, values: list[Any]) -> list[Point]:
    return [{"t_s": t_s, name: value} for t_s, value in zip(times_s, values, strict=True)]
