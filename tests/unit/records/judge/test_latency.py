"""Latency: exact weighted percentiles, excluded tuples, and a million groups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge.latency import summarise
from faultline.records.judge.samples import PROCESS_COLUMNS
from faultline.records.judge.timeline import EvidenceEvent
from faultline.records.judge.tuples import (
    MS,
    PERMILLES,
    TUPLE_COLUMNS,
    FirstOutputs,
    first_outputs_until,
    fold,
    fold_tuples,
    grouped_rank,
    nearest_rank,
)
from faultline.records.judge.write import latency_points, time_series
from faultline.system.errors import InfrastructureError
from faultline.system.measured_window import NS, Window

WINDOW = Window.of(1_000 * NS, 2, 8, 1)
GROUPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 50)), min_size=1, max_size=40)


@given(GROUPS)
def test_weighted_percentiles_equal_percentiles_of_expanded_values(groups: list[tuple[int, int]]) -> None:
    values, weights = np.array(groups, dtype=np.int64).T
    expanded = sorted(value for value, n in groups for _ in range(n))
    for permille in PERMILLES.values():
        rank = -(-len(expanded) * permille // 1000)
        assert nearest_rank(values, weights, permille) == expanded[rank - 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(1, 9)), min_size=1, max_size=40))
def test_grouped_percentiles_equal_percentiles_of_each_group(rows: list[tuple[int, int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["batch", "latency_ms", "n"])
    found = grouped_rank(frame, ["batch"], 990)
    for batch, group in frame.groupby("batch"):
        values, weights = group["latency_ms"].to_numpy(), group["n"].to_numpy()
        assert found[batch] == nearest_rank(values, weights, 990)


def _tuples(rows: list[tuple[int, int | None, bool, int]]) -> pd.DataFrame:
    filled = [(0, None if emitted is None else 1, made, emitted, primer, n) for made, emitted, primer, n in rows]
    return pd.DataFrame(filled, columns=TUPLE_COLUMNS)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(0, 90), st.booleans(), st.integers(1, 9))),
    st.integers(0, 50),
)
def test_first_outputs_are_those_of_the_tuples_due(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int | None, bool, int]], due_ms: int
) -> None:
    path = tmp_path_factory.mktemp("tuples") / "tuples.parquet"
    _tuples(rows).astype({"emitted_ms": "Int64", "batch": "Int64"}).to_parquet(path)
    due = [(emitted, n) for made, emitted, primer, n in rows if made <= due_ms and not primer]
    last_ms = max([0, *(emitted for emitted, _ in due if emitted is not None)])
    missing = sum(n for emitted, n in due if emitted is None)
    assert first_outputs_until(path, due_ms) == FirstOutputs(last_ms * MS, missing)


def test_preload_negative_unreflected_and_outside_tuples_are_separate() -> None:
    rows = [
        (1_001_999, 1_002_500, False, 1),  # before the window
        (1_002_000, 1_002_500, False, 2),  # its first millisecond
        (1_009_999, 1_010_999, False, 3),  # its last
        (1_010_000, 1_010_500, False, 4),  # after it
        (1_005_000, 1_004_999, False, 5),  # negative
        (1_005_000, None, False, 6),  # never reflected
        (1_005_000, 1_006_000, True, 7),  # primer
    ]
    latency = summarise(fold([_tuples(rows[:3]), _tuples(rows[3:])], WINDOW), "batch", 2)
    assert (latency.count, latency.negative, latency.unreflected) == (5, 5, 6)
    assert (latency.p50, latency.max, latency.mean) == (1000, 1000, pytest.approx((2 * 500 + 3 * 1000) / 5))


def test_latency_without_tuples_is_none() -> None:
    latency = summarise(fold([], WINDOW), "rank", None)
    assert (latency.mean, latency.p99, latency.count, latency.method) == (None, None, 0, "rank")


@given(GROUPS, st.integers(1, 7))
def test_latency_does_not_depend_on_chunks(groups: list[tuple[int, int]], size: int) -> None:
    rows = [(1_002_000 + value, 1_002_000 + 2 * value, False, n) for value, n in groups]
    chunks = [_tuples(rows[index : index + size]) for index in range(0, len(rows), size)]
    whole, parts = fold([_tuples(rows)], WINDOW), fold(chunks, WINDOW)
    assert summarise(whole, "batch", 3) == summarise(parts, "batch", 3)
    assert whole.by_batch.equals(parts.by_batch)
    assert whole.by_second.equals(parts.by_second)
    assert whole.emitted.equals(parts.emitted)
    assert whole.emitted["n"].sum() == sum(n for _, n in groups)


def test_directory_with_a_million_groups_is_read(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    n = 1_000_000
    made = 1_000_000 + random.integers(0, 10_000, n)
    batch = (made - 1_000_000) // 500
    frame = pd.DataFrame({"lineage": 0, "batch": batch, "produced_ms": made})
    frame["emitted_ms"] = frame["produced_ms"] + random.integers(0, 3_000, n)
    frame = frame.assign(primer=False, n=1)
    (tmp_path / "tuples.parquet").mkdir()
    frame[: n // 2].to_parquet(tmp_path / "tuples.parquet" / "part-0.parquet")
    frame[n // 2 :].to_parquet(tmp_path / "tuples.parquet" / "part-1.parquet")
    (tmp_path / "tuples.parquet" / "_SUCCESS").touch()
    tuples = fold_tuples(tmp_path / "tuples.parquet", WINDOW)
    latency = summarise(tuples, "batch", 20)
    kept = frame[frame["produced_ms"] >= 1_002_000]
    exact = np.sort(kept["emitted_ms"] - kept["produced_ms"])
    assert latency.count == len(kept)
    assert latency.p999 == exact[-(-len(kept) * 999 // 1000) - 1]


def test_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tuples.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InfrastructureError, match=r"tuples\.parquet"):
        fold_tuples(tmp_path / "tuples.parquet", WINDOW)


NO_PROCESSES = pd.DataFrame([], columns=PROCESS_COLUMNS).assign(host="")


def test_each_second_with_output_is_a_point() -> None:
    rows = [(0, 1, 1_000_000, 1_001_000 + ms, False, 1) for ms in range(200)]
    rows += [(0, 2, 1_002_900, 1_003_000, False, 3), (0, 2, 1_002_000, 1_003_000, False, 1)]
    found = latency_points(fold([pd.DataFrame(rows, columns=TUPLE_COLUMNS)], WINDOW))
    assert found == [
        {"t_s": 1.0, "p50_ms": 1099.0, "p99_ms": 1197.0, "max_ms": 1199.0, "n": 200},
        {"t_s": 3.0, "p50_ms": 100.0, "p99_ms": 1000.0, "max_ms": 1000.0, "n": 4},
    ]
    assert latency_points(fold([], WINDOW)) == []


def test_series_times_are_seconds_after_t0() -> None:
    bins = pd.DataFrame({"end_ns": [1_001_500_400_000, 1_003 * NS], "throughput_rps": [1 / 3, 2.0], "lag": [4, 0]})
    samples = [[at * NS, "kafka", 7, 999.0, float(at - 999), 1, False] for at in (1_000, 1_001, 1_002)]
    events = [EvidenceEvent("t0", 1_002_000_000_400, "here")]
    signals: Any = SimpleNamespace(window=WINDOW, bins=bins, tuples=fold([], WINDOW))
    found = time_series(signals, pd.DataFrame(samples, columns=PROCESS_COLUMNS).assign(host=""), events)
    assert found["throughput"] == [{"t_s": 1.5, "rps": 0.333}, {"t_s": 3.0, "rps": 2.0}]
    assert found["lag"] == [{"t_s": 1.5, "records": 4}, {"t_s": 3.0, "records": 0}]
    assert [(point["t_s"], point["kafka"], point["executors"]) for point in found["cpu"]] == [(1, 1, 0), (2, 1, 0)]
    assert found["events"] == [{"name": "t0", "t_s": 2.0, "source": "here"}]
    assert (found["warmup_s"], found["duration_s"], found["latency"]) == (2, 8, [])
    assert time_series(signals, NO_PROCESSES, [])["cpu"] == []
