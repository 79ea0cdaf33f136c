"""Nexmark on both engines: figures of runs, CPU between samples, and the queries' scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.nexmark_both.comparison import FLOOR, MILLION, Comparison, figures
from benchmarks.nexmark_both.flink_queries import QUERIES, script
from benchmarks.nexmark_both.flink_side import FlinkCluster
from benchmarks.nexmark_both.profile import QUERY, shares
from benchmarks.nexmark_both.topic import PARTITIONS
from benchmarks.nexmark_both.usage import Usage, UsageSampler
from benchmarks.nexmark_both.work import WARM_SHARE, FixedWork
from faultline.experiment.workloads.nexmark_events import QUERIES as ALL
from faultline.system.settings import ROOT, Settings


def measured(query: str, side: str, repetition: int, cpu_s: float, **changed: Any) -> dict[str, Any]:
    one = {"events": 2_000_000, "seconds": 10.0, "engine_s": cpu_s, "broker_s": 1.0, "peak_mb": 900.0}
    return {"query": query, "side": side, "repetition": repetition, "disturbed": False, **one, **changed}


costs = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=5)


@given(costs, st.floats(0.2, 5.0))
def test_ratio_of_paired_costs_lies_within_its_interval(spark: list[float], factor: float) -> None:
    runs = [measured("q5", "spark", number, cost * factor) for number, cost in enumerate(spark)]
    runs += [measured("q5", "flink", number, cost) for number, cost in enumerate(spark)]
    ratio = figures(runs)["ratio_q5"]
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(factor) and ratio.n == len(spark)


def test_figures_are_per_million_events_and_net_of_reading() -> None:
    runs = [measured(FLOOR, "flink", number, 4.0) for number in range(3)]
    runs += [measured("q5", "flink", number, 10.0 + number) for number in range(3)]
    runs += [measured("q5", "flink", 3, 500.0, disturbed=True), measured("q5", "spark", 9, 1.0)]
    found = figures(runs)
    assert found["engine_q5_flink"].values == (5.0, 5.5, 6.0)
    assert found["net_q5_flink"].values == (3.0, 3.5, 4.0)
    assert found["speed_q5_flink"].value == 2 * MILLION / 10
    assert "ratio_q5" not in found, "no repetition has both sides"
    assert f"net_{FLOOR}_flink" not in found


def test_cpu_between_samples_is_interpolated() -> None:
    usage = Usage([0.0, 1.0, 2.0], [{"driver": 0.0}, {"driver": 2.0, "executors": 1.0}, {"driver": 2.0}], [1, 9, 3])
    assert usage.cpu_s(("driver",), 0.25, 1.5) == pytest.approx(1.5)
    assert usage.cpu_s(("executors",), 0.0, 1.0) == 1.0
    assert (usage.peak_mb(0.0, 2.0), usage.peak_mb(1.5, 2.0)) == (9, 3)


def test_sampler_counts_this_process_and_the_machine() -> None:
    with UsageSampler(lambda: {"driver": [psutil.Process()]}, ()) as sampler:
        begin, until = time.time(), time.process_time() + 0.3
        while time.process_time() < until:
            pass
    used = sampler.usage
    assert len(used.at) >= 1
    assert used.cpu[-1]["machine"] > 0 and used.resident_mb[0] > 1
    assert used.cpu_s(("driver",), begin, used.at[-1]) >= 0


START = "2026-11-29T10:00:00.123456789+01:00"


def sample(kind: str, *classes: str) -> dict[str, Any]:
    frames = [{"method": {"type": {"name": name}}} for name in classes]
    return {"type": f"jdk.{kind}", "values": {"startTime": START, "stackTrace": {"frames": frames}}}


def test_a_sample_belongs_to_its_topmost_part() -> None:
    events = [
        sample("ExecutionSample", "java/nio/Buffer", "com/fasterxml/jackson/core/JsonFactory", "org/rocksdb/RocksDB"),
        sample(
            "ExecutionSample", "java/util/HashMap", "org/apache/spark/sql/execution/A", "org/apache/spark/shuffle/B"
        ),
        sample("NativeMethodSample", "org/rocksdb/RocksDB", "org/apache/flink/state/rocksdb/RocksDBMapState"),
        sample("NativeMethodSample", "sun/nio/ch/EPoll", "org/apache/kafka/common/network/Selector"),
        {"type": "jdk.ExecutionSample", "values": {"startTime": START, "stackTrace": None}},
        *({"type": "jdk.CompilerStatistics", "values": {"totalTimeSpent": at}} for at in ("PT9.5S", "PT1M2.5S")),
    ]
    assert shares(events) == {
        "samples": 3, "percent": {"JSON": 33.3, QUERY: 33.3, "RocksDB": 33.3}, "compile_s": 62.5,
    }  # fmt: skip
    assert shares(events, datetime.fromisoformat(START).timestamp() + 1)["samples"] == 0


def test_sampler_counts_children_that_have_ended() -> None:
    with UsageSampler(lambda: {"driver": [psutil.Process()], "kafka": [psutil.Process()]}, ("kafka",)) as sampler:
        # More than is asserted: the kernel counts in ticks of 10 ms.
        burn = "import time\nwhile time.process_time() < 0.6: pass"
        subprocess.run([sys.executable, "-c", burn], check=True)
    first, *_, last = sampler.usage.cpu
    assert last["driver"] - first["driver"] >= 0.5 > last["kafka"] - first["kafka"]


def test_work_excludes_the_first_fifth_from_warm_figures() -> None:
    work = FixedWork({"driver": [psutil.Process()]}, psutil.Process(os.getppid()))
    work.begin(1000, at=100.0)
    for position, at in ((500, 101.0), (1000 + int(5000 * WARM_SHARE), 140.0), (6000, 160.0)):
        work.reached(position, at=at)
    usage = work.sampler.usage
    usage.at, usage.resident_mb = [100.0, 140.0, 160.0], [1.0, 2.0, 3.0]
    usage.cpu = [{"driver": at, "kafka": 0.0, "harness": 0.0, "machine": 2 * at} for at in (0.0, 40.0, 50.0)]
    work._end = 160.0
    found = work.measured(7, [], "plan")
    assert (found.events, found.seconds, found.warm_seconds) == (5000, 60.0, 20.0), "an earlier position is ignored"
    assert (found.engine_s, found.warm_engine_s, found.others_s) == (50.0, 10.0, 50.0)


@pytest.mark.parametrize(("position", "most_s", "reached"), [(10, 60.0, True), (4, 0.0, False), (10, 0.0, True)])
def test_a_slow_run_on_flink_ends_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int, most_s: float, reached: bool
) -> None:
    vertices = [{"id": "a", "name": "Source: events[1]"}, {"id": "b", "name": "Sink"}]
    monkeypatch.setattr(FlinkCluster, "_job", lambda self: {"vertices": vertices})
    monkeypatch.setattr(FlinkCluster, "_metrics", lambda self, vertex, pattern: [position // 2 - 1] * PARTITIONS)
    seen: list[int] = []
    cluster = FlinkCluster(Settings(tmp_path, tmp_path, tmp_path), tmp_path, "slow")
    assert cluster.await_position(10, seen.append, most_s) is reached
    assert seen == [position]


@pytest.mark.parametrize(("offset", "most_s", "polls"), [(5, 60.0, 1), (2, 0.0, 1), (2, 60.0, 3)])
def test_a_slow_run_on_spark_ends_after_its_time(
    monkeypatch: pytest.MonkeyPatch, offset: int, most_s: float, polls: int
) -> None:
    monkeypatch.syspath_prepend(ROOT / "spark_jobs")
    from nexmark_fixed_work import run_until

    query = Mock()
    query.lastProgress = {"sources": [{"endOffset": {"events": {"0": offset, "1": 5}}}]}
    # A query that is not stopped ends by itself.
    query.awaitTermination.side_effect = [False, False, True]
    run_until(query, {"0": 5, "1": 5}, most_s)
    assert query.awaitTermination.call_count == polls
    explained, stopped = [name for name, *_ in query.method_calls[polls:]]
    assert (explained, stopped) == ("_jsq.explainInternal", "stop"), "a stopped query may have no plan"


def test_states_of_an_unfinished_group_outlive_a_complete_one(tmp_path: Path) -> None:
    states = {query: tmp_path / "states" / f"{query}-spark" for query in ("q0", "q8")}
    for folder in states.values():
        folder.mkdir(parents=True)
    runs = [measured("q0", side, 0, 1.0) for side in ("spark", "flink", "flink_per_record")]
    comparison = Comparison(Settings(ROOT, tmp_path, tmp_path), tmp_path, 10, Mock(), runs)
    assert len(comparison.measure(["q0"], repetitions=1)) == len(runs)
    assert {query: folder.exists() for query, folder in states.items()} == {"q0": False, "q8": True}


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_exists_on_both_engines(query: str) -> None:
    assert query in ALL
    text = script(query, {"connector": "kafka", "topic": "it's"}, {"connector": "blackhole"}, 4.0)
    assert text.count("INSERT INTO results SELECT") == 1 and "'it''s'" in text
    updating = {"q4", "q7", "q9"}
    folder = ROOT / "spark_jobs" / "nexmark" / "queries" / "updating"
    assert any(folder.glob(f"{query}.*")) == (query in updating)
