"""Queries on Spark, compared with a recomputation in Python.

Without Kafka: records come from files, a file a batch, and results go to memory.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.registry import WORKLOADS
from generators.counter_rng import hash_int, hash_long, initial_hashes
from tests.support.planted import OPEN, OPENER, TIMES, leibniz
from tests.support.spark_session import PROGRAMS

from harvest import KINDS  # isort: skip  # a program's neighbour, like the next ones
from word_count import halves, sum_columns  # isort: skip
from pi import pi, series  # isort: skip
from output_matching import CHUNK, sums  # isort: skip
from stock import stock_group_by  # isort: skip
from stock import stock_join  # isort: skip
from word_count import word_count  # isort: skip

pytestmark = pytest.mark.timeout(900)


class Streamed:
    """All results of a streaming query in order, and the number of dropped late rows."""

    def __init__(self, results: list[tuple[str, str]], dropped: int) -> None:
        self.results, self.dropped = results, dropped

    @property
    def final(self) -> dict[str, str]:
        return dict(self.results)


def stream(
    spark: SparkSession,
    folder: Path,
    query: Callable[[DataFrame, dict[str, Any]], DataFrame],
    config: dict[str, Any],
    batches: Sequence[Sequence[str]],
) -> Streamed:
    """Run the query over the batches, one file each, in order."""
    source = folder / "source"
    source.mkdir()
    for number, lines in enumerate(batches):
        path = source / f"{number}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_600_000_000 + number,) * 2)
    records = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    # Files have no offsets, so a line's checksum replaces its offset.
    place = (F.lit(1).alias("partition"), F.crc32("value").alias("offset"))
    running = (
        query(records.select(F.col("value").cast("binary"), *place), config)
        .writeStream.format("memory")
        .queryName(query.__name__)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    operators = [operator for progress in running.recentProgress for operator in progress["stateOperators"]]
    results = [(row["key"], row["value"]) for row in spark.table(query.__name__).collect()]
    return Streamed(results, sum(operator["numRowsDroppedByWatermark"] for operator in operators))


def test_every_workload_has_a_program_and_a_tuple_kind() -> None:
    examples = PROGRAMS.parent / "examples"
    own = {
        "query": {"job": str(examples / "word_count.py")},
        "program": {"application": str(examples / "kafka_word_count.py")},
    }
    for name, kind in WORKLOADS.items():
        config = parse_configuration({"workload": name, "fault": "none", **own.get(name, {})})
        assert kind.program is None or (PROGRAMS / f"{kind.program}.py").is_file()
        assert kind.tuples(config.own)["tuples"] in KINDS


def test_word_count_counts_every_word(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(1)
    batches = [[" ".join(chance.choices("abcdefgh", k=5)) for _ in range(400)] for _ in range(2)]
    found = stream(spark, tmp_path, word_count, {"python": False}, batches)
    expected = Counter(word for lines in batches for line in lines for word in line.split(" "))
    assert {key: int(value.split(" ")[0]) for key, value in found.final.items()} == expected


@pytest.mark.parametrize("python", [False, True])
def test_word_count_sums_the_hashes_of_counted_tuples(spark: SparkSession, tmp_path: Path, python: bool) -> None:
    """Equal to numpy over all lines, with both ways of splitting."""
    chance = random.Random(2)
    batches = [[" ".join(chance.choices("abcdefgh", k=chance.randrange(1, 9))) for _ in range(300)] for _ in range(3)]
    found = stream(spark, tmp_path, word_count, {"python": python}, batches)
    words = [
        (word, crc32(line.encode()), position)
        for lines in batches for line in lines for position, word in enumerate(line.split(" "))
    ]  # fmt: skip
    offsets, positions = (np.array([word[place] for word in words], dtype=np.uint64) for place in (1, 2))
    hashes = hash_int(positions, hash_long(offsets, hash_int(np.ones_like(offsets), initial_hashes(len(words)))))
    expected: dict[str, int] = defaultdict(int)
    for (word, *_), hashed in zip(words, hashes.view(np.int64).tolist(), strict=True):
        expected[word] += hashed
    for word, value in found.final.items():
        _, high, low = map(int, value.split(" "))
        # The signed low half of a hash is 2^32 less if its first bit is set.
        negative = sum(one < 0 for one in lows(hashes, [word == other for other, *_ in words]))
        assert ((high << 32) + low + (negative << 32) - expected[word]) % 2**64 == 0

    # The state size assumes a row of key, count and two sums.
    state = spark.read.format("statestore").load(str(tmp_path / "checkpoint"))
    assert [field.dataType.simpleString() for field in state.schema["value"].dataType.fields] == ["bigint"] * 3
    kept = {row["key"][0]: tuple(row["value"]) for row in state.collect()}
    assert kept == {word: tuple(map(int, value.split(" "))) for word, value in found.final.items()}


def lows(hashes: Any, chosen: Sequence[bool]) -> list[int]:
    """Return the lower halves of the chosen hashes as signed numbers."""
    return [int(one) for one in hashes[np.array(chosen)].view(np.int64) << 32 >> 32]


def test_sums_of_hashes_do_not_overflow(spark: SparkSession) -> None:
    """Two whole hashes already overflow, which is an error in ANSI mode."""
    worst = spark.sql("SELECT explode(array_repeat(9223372036854775807L, 1000)) AS hash")
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        worst.agg(F.sum("hash")).collect()
    (row,) = worst.select(*halves(F.col("hash"))).agg(*sum_columns()).collect()
    assert tuple(row) == (1000 * (2**31 - 1), -1000)


def test_pi_sums_the_requested_number_of_terms(spark: SparkSession, tmp_path: Path) -> None:
    asked = {str(number): (1, 2, 3, 31, 32, 33, 63, 64, 65, 100)[number % 10] for number in range(2000)}
    asked[str(10**15)] = 100_003
    lines = [OPENER, *(f"{identity} {terms}" for identity, terms in asked.items())]
    found = stream(spark, tmp_path, pi, {}, [lines[:1000], lines[1000:]])
    assert len(found.results) == len(asked)
    exact = {terms: leibniz(terms) for terms in set(asked.values())}
    for identity, value in found.final.items():
        assert abs(float(value) - exact[asked[identity]]) < 1e-12


def test_pi_is_computed_per_record(spark: SparkSession) -> None:
    """Neither constant folding nor Python."""
    asked = spark.range(1).select(F.concat_ws(" ", "id", F.lit("64")).cast("binary").alias("value"))
    plan = pi(asked, {})._jdf.queryExecution().executedPlan().toString()
    assert "aggregate(" in plan and "3.1" not in plan and "Python" not in plan


def test_both_computations_of_the_series_agree(spark: SparkSession) -> None:
    terms = [1, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1]
    asked = spark.range(1).select(F.explode(F.array(*map(F.lit, terms))).alias("terms"))
    rows = sums(asked).join(asked.select("terms", series(F.col("terms")).alias("series")), "terms").collect()
    assert sorted(row["terms"] for row in rows) == terms
    for row in rows:
        assert row["sum"] == pytest.approx(row["series"], abs=1e-12, rel=0)


class Market:
    """Some thousand stock records: a preload, then disorder and late records."""

    def __init__(self, streams: Sequence[str], *, primer: int = 300, records: int = 2700, rate: float = 60.0) -> None:
        self.chance = random.Random(2)
        self.kept: list[dict[str, Any]] = []
        self.late = 0
        first = [self._record(streams, number / rate - 60, 0) for number in range(primer)]
        rest = []
        for number in range(records):
            lot = self.chance.random()
            shift = 3600 if lot < 0.02 else self.chance.uniform(0, TIMES["watermark_s"] / 2) if lot < 0.2 else 0
            rest.append(self._record(streams, number / rate, shift))
        half = records // 2
        # The preload takes two batches, because lateness depends on the watermark before the last batch.
        self.batches = [[OPENER, *first[:-1]], first[-1:], rest[:half], rest[half:]]

    def _record(self, streams: Sequence[str], due_s: float, shift_s: float) -> str:
        at = OPEN + timedelta(milliseconds=round((due_s - shift_s) * 1000))
        price = Decimal(self.chance.randint(100, 99_999)) / 100
        name = self.chance.choice(streams)
        base = {
            "stream": name,
            "szcode": f"MSFT-{self.chance.randrange(20):03d}",
            "userID": self.chance.randrange(1, 40),
            "eventTime": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        own: dict[str, Any] = {
            "STOCK": {"lastPrice": price},
            "TRANSACTION": {"Turnover": self.chance.randrange(1, 500), "Price": price},
            "POSITION": {"lastPrice": price, "openInterest": self.chance.randrange(1, 5000)},
        }[name]
        if name == "STOCK":
            del base["userID"]
        if shift_s < 3600:
            self.kept.append({**base, **own, "event_ms": round(at.timestamp() * 1000)})
        else:
            self.late += 1
        return json.dumps({**base, **own}, separators=(",", ":"), default=float)


def windows_of(event_ms: int) -> Iterable[int]:
    """Return the starts of the windows that contain an event."""
    start = event_ms // 5000 * 5000
    return (start, start - 5000)


def test_stock_group_by_sums_punctual_trades(spark: SparkSession, tmp_path: Path) -> None:
    market = Market(["TRANSACTION"])
    found = stream(spark, tmp_path, stock_group_by, TIMES, market.batches)
    expected: dict[str, list[Decimal]] = defaultdict(list)
    for trade in market.kept:
        for start in windows_of(trade["event_ms"]):
            expected[f"{trade['szcode']}|{start}"].append(trade["Price"] * trade["Turnover"])
    assert found.final == {key: f"{len(amounts)} {sum(amounts):.2f}" for key, amounts in expected.items()}
    # One row per window, because no two late records of a batch share stock and window.
    assert 0 < found.dropped <= 2 * market.late


def test_the_stock_queries_parse_each_record_once_per_stream(spark: SparkSession) -> None:
    records = spark.createDataFrame([("{}",)], "value STRING")
    for query, parsers in ((stock_group_by, 1), (stock_join, 2)):
        plan = query(records, TIMES)._jdf.queryExecution().optimizedPlan().toString()  # type: ignore[operator]
        assert plan.count("from_json(") == parsers, plan


def test_stock_join_sums_punctual_pairs(spark: SparkSession, tmp_path: Path) -> None:
    market = Market(["STOCK", "POSITION", "POSITION", "POSITION", "POSITION"])
    found = stream(spark, tmp_path, stock_join, TIMES, market.batches)
    quotes: dict[tuple[str, int], list[Decimal]] = defaultdict(list)
    for quote in market.kept:
        if quote["stream"] == "STOCK":
            for start in windows_of(quote["event_ms"]):
                quotes[quote["szcode"], start].append(quote["lastPrice"])
    expected: dict[str, list[Decimal]] = defaultdict(list)
    for held in market.kept:
        if held["stream"] == "POSITION":
            for start in windows_of(held["event_ms"]):
                for price in quotes[held["szcode"], start]:
                    expected[f"{held['userID']}|{start}"].append(price * held["openInterest"])
    assert found.final == {key: f"{len(amounts)} {sum(amounts):.2f}" for key, amounts in expected.items()}
    assert 0 < found.dropped <= 2 * market.late
