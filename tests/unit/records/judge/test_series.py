"""The curves of one attempt, from a handful of tuples, bins and samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd

from faultline.records.judge.samples import PROCESS_COLUMNS
from faultline.records.judge.timeline import Event
from faultline.records.judge.tuples import TUPLE_COLUMNS, fold
from faultline.records.judge.write import latency_points, series
from faultline.system.window import NS, Window

WINDOW = Window.of(1_000 * NS, 2, 8, 1)
NOBODY = pd.DataFrame([], columns=PROCESS_COLUMNS).assign(host="")


def test_each_second_of_output_is_a_point() -> None:
    rows = [(0, 1, 1_000_000, 1_001_000 + ms, False, 1) for ms in range(200)]
    rows += [(0, 2, 1_002_900, 1_003_000, False, 3), (0, 2, 1_002_000, 1_003_000, False, 1)]
    found = latency_points(fold([pd.DataFrame(rows, columns=TUPLE_COLUMNS)], WINDOW))
    assert found == [
        {"t_s": 1.0, "p50_ms": 1099.0, "p99_ms": 1197.0, "max_ms": 1199.0, "n": 200},
        {"t_s": 3.0, "p50_ms": 100.0, "p99_ms": 1000.0, "max_ms": 1000.0, "n": 4},
    ]
    assert latency_points(fold([], WINDOW)) == []


def test_curves_count_seconds_from_t0() -> None:
    bins = pd.DataFrame({"end_ns": [1_001_500_400_000, 1_003 * NS], "throughput_rps": [1 / 3, 2.0], "lag": [4, 0]})
    samples = [[at * NS, "kafka", 7, 999.0, float(at - 999), 1, False] for at in (1_000, 1_001, 1_002)]
    events = [Event("t0", 1_002_000_000_400, "here")]
    signals: Any = SimpleNamespace(window=WINDOW, bins=bins, tuples=fold([], WINDOW))
    found = series(signals, pd.DataFrame(samples, columns=PROCESS_COLUMNS).assign(host=""), events)
    assert found["throughput"] == [{"t_s": 1.5, "rps": 0.333}, {"t_s": 3.0, "rps": 2.0}]
    assert found["lag"] == [{"t_s": 1.5, "records": 4}, {"t_s": 3.0, "records": 0}]
    assert [(point["t_s"], point["kafka"], point["executors"]) for point in found["cpu"]] == [(1, 1, 0), (2, 1, 0)]
    assert found["events"] == [{"name": "t0", "t_s": 2.0, "source": "here"}]
    assert (found["warmup_s"], found["duration_s"], found["latency"]) == (2, 8, [])
    assert series(signals, NOBODY, [])["cpu"] == []
