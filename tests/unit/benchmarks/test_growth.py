"""The pure parts of the benchmarks `aggregate` and `harvest`: exponents, what stores and topics hold, the command."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.speed import aggregate
from benchmarks.speed.harvest import SUBJECTS, differences
from benchmarks.speed.spark_job import Cost, Size, exponent, growth_figures, power, submit_command
from benchmarks.synthetic_topics import (
    FilledTopics,
    StockJoinModel,
    WordCountModel,
    batch_bounds,
    commits_of,
    emission_instants,
)
from faultline.engines.spark.settings import LOCAL_MASTER
from faultline.experiment.config import parse_configuration
from faultline.system.settings import Settings
from generators.stock import OPEN


@pytest.mark.parametrize(
    ("times", "slope"),
    [
        ({10: 1.0, 100: 10.0}, 1),
        ({10**5: 3.0, 10**6: 300.0, 10**7: 30_000.0}, 2),
        ({10**5: 5.0, 10**6: 5.0}, 0),
        ({1: 1.0, 10: 1.0, 100: 100.0}, 1),  # on no line: least squares, by hand
    ],
)
def test_the_exponent_is_the_slope_in_logarithms(times: dict[int, float], slope: float) -> None:
    assert exponent(times) == pytest.approx(slope)


def test_the_start_of_a_jvm_flattens_small_sizes_only() -> None:
    sizes = [
        Size(
            asked, asked, tuple(Cost(10 + asked * 1e-5 * (1 + extra), asked * 1e-5, 500.0) for extra in (0.0, 0.1, 0.2))
        )
        for asked in (10**5, 10**6, 10**7)
    ]
    figures = growth_figures(sizes)
    assert figures["time_1e5_s"].value == pytest.approx(11.1) and figures["time_1e7_s"].n == 3
    assert figures["cpu_exponent"].value == pytest.approx(1)
    assert 0 < figures["exponent_all"].value < figures["exponent"].value < 1
    assert figures["exponent"].low < figures["exponent"].value < figures["exponent"].high
    assert figures["peak_1e7_mb"].unit == "MB"


def test_the_exponent_is_over_the_tuples_that_there_were() -> None:
    sizes = [Size(10**4, 9_000, (Cost(1, 1, 1),)), Size(10**5, 90_000, (Cost(10, 10, 1),))]
    assert growth_figures(sizes)["exponent"].value == pytest.approx(1)
    assert power(10**7) == "1e7"


@pytest.mark.parametrize("records", [1, 999, 1000, 1001, 10**6])
def test_batches_take_every_record_once(records: int) -> None:
    bounds = batch_bounds(records, 500, 2)
    assert bounds[0][0] == 0 and bounds[-1][1] == records
    assert all(before[1] == after[0] for before, after in zip(bounds, bounds[1:], strict=False))
    batches = commits_of(bounds, 3, 1000, 2000)
    for (_, last), batch in zip(bounds, batches, strict=True):
        numbers = Counter(number % 3 for number in range(last)) if records < 2000 else None
        assert sum(batch.ends.values()) == last
        assert numbers is None or all(batch.ends[str(partition)] == numbers[partition] for partition in range(3))
        assert batch.planned_ns is not None and batch.planned_ns < batch.committed_ns


def test_outputs_follow_the_planning_of_their_batch() -> None:
    instants = emission_instants(100, 4000)
    assert instants == sorted(instants) and min(instants) == 4300 and max(instants) == 4309
    assert emission_instants(0, 4000) == []


def test_word_count_emits_what_changed_with_all_that_was_counted() -> None:
    def emitted(*lines: bytes) -> dict[str, tuple[str, int]]:
        return {one.key: (one.value.split(" ")[0], one.tuples) for one in engine.batch(lines, [0] * len(lines))}

    engine = WordCountModel(2)
    assert emitted(b"a b a") == {"a": ("2", 2), "b": ("1", 1)}
    assert emitted(b"a c") == {"a": ("3", 1), "c": ("1", 1)}
    assert engine.counted == 5


def test_word_count_adds_up_hashes_whatever_the_batches() -> None:
    lines = [b"a b a", b"b", b"c a", b"a b c"]
    once, twice, elsewhere = WordCountModel(2), WordCountModel(2), WordCountModel(3)
    whole = {one.key: one.value for one in once.batch(lines, [0] * 4)}
    parts = [*twice.batch(lines[:1], [0]), *twice.batch(lines[1:], [0] * 3)]
    assert {one.key: one.value for one in parts} == whole
    assert all(one.value != whole[one.key] for one in elsewhere.batch(lines, [0] * 4)), "other offsets"


def quote(at_ms: int, price: float, code: str = "A") -> bytes:
    return f'{{"stream":"STOCK","szcode":"{code}","eventTime":"{_time(at_ms)}","lastPrice":{price}}}'.encode()


def position(at_ms: int, user: int, shares: int, code: str = "A") -> bytes:
    fields = f'"szcode":"{code}","eventTime":"{_time(at_ms)}","lastPrice":1.00,"openInterest":{shares}'
    return f'{{"stream":"POSITION","userID":{user},{fields}}}'.encode()


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(int(OPEN.astype("int64")) / 1000, UTC) + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_stock_join_pairs_within_windows_and_leaves_late_records_out() -> None:
    engine = StockJoinModel(parse_configuration({"workload": "stock_join", "fault": "none"}))
    opening = int(OPEN.astype("int64"))
    assert engine.batch([quote(1000, 2.5)], [1000]) == [], "nothing to pair it with"
    late = position(3000 - 3_600_000, 7, 100)
    found = engine.batch([position(2000, 7, 100), position(6000, 7, 10), late, position(2000, 8, 1, "B")], [2000] * 4)
    # Both windows hold quote and first position; the one from the opening on holds the second one, too.
    assert {(one.key, one.value) for one in found} == {
        (f"7|{opening}", "2 275.00"),
        (f"7|{opening - 5000}", "1 250.00"),
    }
    found = engine.batch([quote(7000, 0.05)], [7000])
    assert [(one.key, one.value, one.tuples) for one in found] == [
        (f"7|{opening}", "4 280.50", 1),
        (f"7|{opening + 5000}", "1 0.50", 1),
    ]
    assert engine.counted == 6


def test_a_harvest_that_is_not_what_the_topics_hold_is_named(tmp_path: Path) -> None:
    filled = FilledTopics([], records=2, outputs=2, tuples=3, counted=3, reemitted=0, emitted_ms=30, t0_ms=1000)
    pd.DataFrame({"offset": [0, 1]}).to_parquet(tmp_path / "records.parquet")
    tuples: dict[str, Any] = {"emitted_ms": [1010], "n": [3]}
    pq.write_table(pa.table(tuples), tmp_path / "tuples.parquet")
    counts = {"key": ["a"], "expected": [3], "final": [3], "outputs": [2], "reemitted": [0], "unreadable": [0]}
    pd.DataFrame(counts).to_parquet(tmp_path / "counts.parquet")
    assert differences(tmp_path, filled) == []
    pd.DataFrame({**counts, "final": [2]}).to_parquet(tmp_path / "counts.parquet")
    assert differences(tmp_path, filled) == ["lost: 1, not 0"]
    pq.write_table(
        pa.table({"emitted_ms": pa.array([None, 1010], pa.int64()), "n": [1, 2]}), tmp_path / "tuples.parquet"
    )
    assert [problem.split(":")[0] for problem in differences(tmp_path, filled)] == [
        "lost",
        "unreflected rows",
        "sum of emissions in ms",
    ]


def test_sizes_are_reached_by_records() -> None:
    words = SUBJECTS[0]
    assert words.sizes == (10**5, 10**6, 10**7)
    assert [words.records(size) for size in words.sizes] == [10**4, 10**5, 10**6]


@pytest.mark.parametrize("tuples", [10, 10**4, 10**5, 250_000])
def test_a_store_holds_the_tuples_that_were_asked_for(tuples: int) -> None:
    sizes = aggregate.attempts_of(tuples)
    assert sum(sizes) == tuples and max(sizes) <= aggregate.ATTEMPT_TUPLES
    rows = aggregate.tuple_rows(sizes[-1], seed=3)
    assert rows["n"].sum() == sizes[-1] and len(rows) == 0.4 * sizes[-1]
    seen = rows["emitted_ms"].notna()
    assert (rows["emitted_ms"] >= rows["produced_ms"])[seen].all()


def test_a_planted_store_and_summary_tables_that_differ_from_it(tmp_path: Path) -> None:
    planted = aggregate.plant(tmp_path, 10**4)
    assert (planted.records, planted.samples, len(planted.cells)) == (1, 20, 1)
    assert len(list(tmp_path.glob("records/*/*.json"))) == len(list(tmp_path.glob("attempts/*/series.json"))) == 1
    ((name, tuples),) = planted.cells.items()
    summary = tmp_path / "summary"
    summary.mkdir()
    good = {"config_id": name, "tuples": tuples}
    pd.DataFrame({"attempt": ["a"]}).to_parquet(summary / "experiments.parquet")
    pd.DataFrame({"second": range(20)}).to_parquet(summary / "samples.parquet")
    pd.DataFrame([good]).to_parquet(summary / "latencies.parquet")
    assert aggregate.differences(summary, planted) == []
    pd.DataFrame([{**good, "tuples": 1}]).to_parquet(summary / "latencies.parquet")
    pd.DataFrame({"second": range(19)}).to_parquet(summary / "samples.parquet")
    problems = aggregate.differences(summary, planted)
    assert problems == ["samples: 19 rows, not 20", f"latencies: of 1 tuples, not {tuples}"]


def test_the_program_is_submitted_as_the_dag_does_it(tmp_path: Path) -> None:
    from faultline.installation.airflow import connections

    settings = Settings(tmp_path, tmp_path, tmp_path)
    assert connections(settings)["spark_local"]["host"] == LOCAL_MASTER
    command = submit_command(settings, "harvest", ["--config", "x"])
    assert (
        command[0].endswith("/spark-submit")
        and command[1:3] == ["--master", LOCAL_MASTER]
        and command[-2:] == ["--config", "x"]
    )
