"""Every query on a real Spark against a recomputation in plain Python, and every kind of harvest on planted outputs.

Without Kafka: records come from files, a file a batch, and results go to memory.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from faultline.config import Workload
from faultline.known_truth.harvest import tables
from faultline.spark_conf import JOBS
from tests.integration.spark_session import PROGRAMS, local_session

from aggregate import KEYS, PLAIN, experiments, of_attempts, recoveries  # isort: skip  # a program's neighbour, like the next ones
from batches import batch_ranges, with_batches  # isort: skip
from counts import count_keys  # isort: skip
from harvest import KINDS, harvest  # isort: skip
from pi import pi, series  # isort: skip
from pi_tuples import CHUNK, sums  # isort: skip
from stock_group_by import stock_group_by  # isort: skip
from stock_join import stock_join  # isort: skip
from stock_tuples import with_events, with_late  # isort: skip
from word_count import word_count  # isort: skip

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

OPEN = datetime(2013, 3, 1, 14, 30, tzinfo=UTC)
OPEN_MS = round(OPEN.timestamp() * 1000)
T0_MS = 1_700_000_000_000
TIMES = {"window_s": 10, "slide_s": 5, "watermark_s": 5, "late_ms": 3_600_000}
# What the generator sends to each partition before anything else.
OPENER = "__faultline_primer__"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


# The queries.


class Streamed:
    """All results of a streaming query in order, and the rows that were left out as late."""

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
    """Runs the query over the batches, which is one file each, in order."""
    source = folder / "source"
    source.mkdir()
    for number, lines in enumerate(batches):
        path = source / f"{number}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_600_000_000 + number,) * 2)
    records = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    running = (
        query(records.select(F.col("value").cast("binary")), config)
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


def test_every_workload_has_a_program_and_a_kind_of_tuple() -> None:
    assert set(JOBS) == set(get_args(Workload))
    for job in JOBS.values():
        assert job.program is None or (PROGRAMS / f"{job.program}.py").is_file()
        assert job.tuples in KINDS


def test_word_count_counts_every_word(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(1)
    batches = [[" ".join(chance.choices("abcdefgh", k=5)) for _ in range(400)] for _ in range(2)]
    found = stream(spark, tmp_path, word_count, {"python": False}, batches)
    expected = Counter(word for lines in batches for line in lines for word in line.split(" "))
    assert found.final == {word: str(n) for word, n in expected.items()}


def leibniz(terms: int) -> float:
    return math.fsum((4.0 if k % 2 == 0 else -4.0) / (2 * k + 1) for k in range(terms))


def test_pi_sums_as_many_terms_as_each_record_asks_for(spark: SparkSession, tmp_path: Path) -> None:
    asked = {str(number): (1, 2, 3, 31, 32, 33, 63, 64, 65, 100)[number % 10] for number in range(2000)}
    asked[str(10**15)] = 100_003
    lines = [OPENER, *(f"{identity} {terms}" for identity, terms in asked.items())]
    found = stream(spark, tmp_path, pi, {}, [lines[:1000], lines[1000:]])
    assert len(found.results) == len(asked)
    exact = {terms: leibniz(terms) for terms in set(asked.values())}
    for identity, value in found.final.items():
        assert abs(float(value) - exact[asked[identity]]) < 1e-12


def test_the_work_of_pi_is_left_to_the_records(spark: SparkSession) -> None:
    """Neither folded into a constant before a record is seen, nor done by Python."""
    asked = spark.range(1).select(F.concat_ws(" ", "id", F.lit("64")).cast("binary").alias("value"))
    plan = pi(asked, {})._jdf.queryExecution().executedPlan().toString()
    assert "aggregate(" in plan and "3.1" not in plan and "Python" not in plan


def test_both_ways_of_adding_the_series_agree(spark: SparkSession) -> None:
    terms = [1, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1]
    asked = spark.range(1).select(F.explode(F.array(*map(F.lit, terms))).alias("terms"))
    rows = sums(asked).join(asked.select("terms", series(F.col("terms")).alias("series")), "terms").collect()
    assert sorted(row["terms"] for row in rows) == terms
    for row in rows:
        assert row["sum"] == pytest.approx(row["series"], abs=1e-12, rel=0)


class Market:
    """A few thousand records in the form of the stock streams: a primer, then disorder and late records."""

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
        # The primer takes two batches: a record is late by the watermark that stood before the last batch.
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
    """Starts of the windows that hold an event."""
    start = event_ms // 5000 * 5000
    return (start, start - 5000)


def test_stock_group_by_adds_up_every_trade_that_is_not_late(spark: SparkSession, tmp_path: Path) -> None:
    market = Market(["TRANSACTION"])
    found = stream(spark, tmp_path, stock_group_by, TIMES, market.batches)
    expected: dict[str, list[Decimal]] = defaultdict(list)
    for trade in market.kept:
        for start in windows_of(trade["event_ms"]):
            expected[f"{trade['szcode']}|{start}"].append(trade["Price"] * trade["Turnover"])
    assert found.final == {key: f"{len(amounts)} {sum(amounts):.2f}" for key, amounts in expected.items()}
    # A row a window, where no two late records of a batch share stock and window.
    assert 0 < found.dropped <= 2 * market.late


def test_stock_join_adds_up_every_pair_that_is_not_late(spark: SparkSession, tmp_path: Path) -> None:
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


# The harvest.

INPUTS = "value string, timestamp_ms bigint, primer boolean, lineage int, batch int, partition int, offset bigint"
OUTPUTS = "key string, value string, emitted_ms bigint, lineage int, offset bigint"
Tuple = tuple[int | None, int | None, int, int | None, bool, int]


class Planted:
    """Inputs and outputs written down by hand, harvested. Times are milliseconds after T0."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Any, ...]] = []
        self.outputs: list[tuple[Any, ...]] = []

    def take(self, value: str, at: int, batch: int | None, *, lineage: int | None = 0, primer: bool = False) -> None:
        """A record that was taken by a batch; None: by none."""
        lineage = None if batch is None else lineage
        self.inputs.append((value, T0_MS + at, primer, lineage, batch, 0, len(self.inputs)))

    def emit(self, key: str, value: str, at: int, *, lineage: int = 0) -> None:
        """An output."""
        self.outputs.append((key, value, T0_MS + at, lineage, len(self.outputs)))

    def harvest(self, spark: SparkSession, kind: str) -> Harvested:
        tables = harvest(
            spark.createDataFrame(self.inputs, INPUTS),
            spark.createDataFrame(self.outputs, OUTPUTS),
            {"tuples": kind, **TIMES},
        )
        return Harvested(tables)


class Harvested:
    """The three tables as Python values: tuples with their number n, counts by key, records that are late."""

    def __init__(self, tables: dict[str, DataFrame]) -> None:
        assert tables["records"].columns == [
            *("timestamp_ms", "primer", "lineage", "batch", "partition", "offset", "late"),
        ]
        self.late = [row["offset"] for row in tables["records"].where("late").collect()]
        assert tables["tuples"].columns == ["lineage", "batch", "produced_ms", "emitted_ms", "primer", "n"]
        self.tuples: list[Tuple] = sorted(
            (
                (row[0], row[1], row[2] - T0_MS, None if row[3] is None else row[3] - T0_MS, row[4], row[5])
                for row in tables["tuples"].collect()
            ),
            key=str,
        )
        names = ["expected", "final", "outputs", "reemitted", "unreadable"]
        rows = tables["counts"].collect()
        assert set(tables["counts"].columns) - {"drawn"} == {"key", *names}
        self.counts = {row["key"]: tuple(row[name] for name in names) for row in rows}
        self.drawn = {row["key"]: row["drawn"] for row in rows} if "drawn" in tables["counts"].columns else None


def test_a_harvest_of_words_finds_what_was_planted(spark: SparkSession) -> None:
    planted = Planted()
    planted.take("p a", 0, 0, primer=True)
    planted.take("a b", 10, 1)
    planted.take("b c", 20, 2)
    planted.take("c", 25, None)  # lost with its lineage
    planted.take("a d", 30, 0, lineage=1)
    planted.emit("p", "1", 5)
    planted.emit("a", "1", 5)
    planted.emit("a", "2", 15)
    planted.emit("b", "1", 15)
    planted.emit("a", "2", 18)  # emitted again
    planted.emit("c", "many", 22)
    planted.emit("b", "2", 22)
    planted.emit("c", "1", 22)
    planted.emit("a", "1", 35, lineage=1)
    planted.emit("d", "3", 35, lineage=1)  # counted twice too often
    planted.emit("z", "1", 35, lineage=1)
    found = planted.harvest(spark, "words")
    assert found.counts == {
        "p": (1, 1, 1, 0, 0),
        "a": (3, 3, 4, 1, 0),
        "b": (2, 2, 2, 0, 0),
        "c": (2, 1, 2, 0, 1),
        "d": (1, 3, 1, 0, 0),
        "z": (None, 1, 1, 0, 0),
    }
    assert found.drawn == {"p": 0, "a": 2, "b": 2, "c": 2, "d": 1, "z": None}, "the primer was not drawn"
    assert found.tuples == sorted(
        [(0, 0, 0, 5, True, 2), (0, 1, 10, 15, False, 2), (0, 2, 20, 22, False, 2), (None, None, 25, None, False, 1)]
        + [(1, 0, 30, 35, False, 2)],
        key=str,
    )
    assert found.late == []


def test_a_harvest_of_a_chain_matches_occurrences_by_their_order(spark: SparkSession) -> None:
    """Whatever batch took them in: the chain's stages have batches of their own."""
    planted = Planted()
    planted.take("a", 0, 0, primer=True)
    planted.take("a b", 10, 0)
    planted.take("b a", 10, 0)
    planted.take("a", 30, None)
    planted.emit("a", "1", 12)
    planted.emit("a", "3", 25)
    planted.emit("a", "2", 26)  # a later output that counts less: emitted again after a kill
    planted.emit("b", "1", 14)
    planted.emit("b", "2", 28)
    found = planted.harvest(spark, "ranked_words")
    assert found.tuples == sorted(
        [
            (0, 0, 0, 12, True, 1),
            (0, 0, 10, 25, False, 2),
            (0, 0, 10, 14, False, 1),
            (0, 0, 10, 28, False, 1),
            (None, None, 30, None, False, 1),
        ],
        key=str,
    )
    assert found.counts == {"a": (4, 2, 3, 0, 0), "b": (2, 2, 2, 0, 0)}


def test_a_harvest_of_numbered_records_counts_each_once(spark: SparkSession) -> None:
    planted = Planted()
    planted.take("x", 0, 0)
    planted.take("x", 5, 0)
    planted.emit("0:0", "1", 10)
    planted.emit("0:0", "1", 12)
    found = planted.harvest(spark, "id")
    assert found.counts == {"0:0": (1, 1, 2, 1, 0), "0:1": (1, None, 0, 0, 0)}
    assert found.tuples == [(0, 0, 0, 10, False, 1), (0, 0, 5, None, False, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_the_harvest_without_spark_finds_the_same(spark: SparkSession, seed: int) -> None:
    """Of records that were emitted once, again, too often, not at all, unreadably, or without having been sent."""
    draw = random.Random(seed)
    ends = [sorted(draw.randrange(40) for _ in range(4)) for _ in range(2)]
    batches = [
        {"lineage": 0, "batch": number, "end_offsets": {"0": zero, "1": one}, "start_offsets": None}
        for number, (zero, one) in enumerate(zip(*ends, strict=True))
    ]
    places = [(partition, offset) for partition in range(2) for offset in range(40)]
    inputs = [(*place, T0_MS + draw.randrange(5), draw.random() < 0.2) for place in places]
    texts = ("1", "1", "1", "2", "0", "-1", "x", "", "99999999999999999999")
    keys = [f"{draw.randrange(3)}:{draw.randrange(40)}" for _ in range(120)]
    outputs = [(key, draw.choice(texts), T0_MS + 10 + draw.randrange(9), offset) for offset, key in enumerate(keys)]
    plain = tables(inputs, outputs, batches)

    records = spark.createDataFrame(
        [("", at, primer, partition, offset) for partition, offset, at, primer in inputs],
        "value string, timestamp_ms bigint, primer boolean, partition int, offset bigint",
    )
    sent = [(key, value, at, 0, offset) for key, value, at, offset in outputs]
    whole = harvest(
        with_batches(records, batch_ranges(spark, batches)), spark.createDataFrame(sent, OUTPUTS), {"tuples": "id"}
    )
    for name, table in whole.items():
        assert set(table.columns) == set(plain[name].column_names)
        rows = sorted((tuple(row[column] for column in plain[name].column_names) for row in table.collect()), key=str)
        assert rows == sorted((tuple(row.values()) for row in plain[name].to_pylist()), key=str), name
        names = {"int": "int32", "bigint": "int64", "boolean": "bool", "string": "string"}
        types = {field.name: names[field.dataType.simpleString()] for field in table.schema}
        assert {one.name: str(one.type) for one in plain[name].schema} == types


def test_a_harvest_of_pi_finds_what_was_planted(spark: SparkSession) -> None:
    planted = Planted()
    planted.take(OPENER, 0, 0, primer=True)
    planted.take(f"{10**15} 50", 0, 0, primer=True)
    for number in range(5):
        planted.take(f"{number} 50", 10 + number, 1)
    planted.take("5 33", 20, None)  # committed by no batch, emitted all the same: real-time mode
    planted.take("6 33", 30, 0, lineage=1)
    exact = leibniz(50)
    planted.emit(str(10**15), str(exact), 5)
    planted.emit("0", str(exact), 15)
    planted.emit("1", str(exact), 15)
    planted.emit("1", str(exact), 16)
    planted.emit("3", str(exact + 1e-9), 15)
    planted.emit("4", "x", 15)
    planted.emit("5", str(leibniz(33)), 22)
    planted.emit("6", str(leibniz(33)), 35, lineage=1)
    planted.emit("99", str(exact), 15)
    found = planted.harvest(spark, "pi")
    assert found.counts == {
        str(10**15): (1, 1, 1, 0, 0),
        "0": (1, 1, 1, 0, 0),
        "1": (1, 1, 2, 1, 0),
        "2": (1, None, 0, 0, 0),
        "3": (1, 1, 1, 0, 1),
        "4": (1, 1, 1, 0, 1),
        "5": (1, 1, 1, 0, 0),
        "6": (1, 1, 1, 0, 0),
        "99": (None, 1, 1, 0, 0),
    }
    assert found.tuples == sorted(
        [(0, 0, 0, 5, True, 1), (0, 1, 12, None, False, 1), (None, None, 20, 22, False, 1), (1, 0, 30, 35, False, 1)]
        + [(0, 1, 10 + number, 15, False, 1) for number in (0, 1, 3, 4)],
        key=str,
    )


def event(stream: str, at_ms: int, **fields: Any) -> str:
    """A record of the market, `at_ms` after the opening."""
    at = (OPEN + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"stream": stream, **fields, "eventTime": at}, separators=(",", ":"))


def trade(code: str, at_ms: int, shares: int, price: float) -> str:
    return event("TRANSACTION", at_ms, szcode=code, userID=1, Turnover=shares, Price=price)


def quote(code: str, at_ms: int, price: float) -> str:
    return event("STOCK", at_ms, szcode=code, lastPrice=price)


def position(user: int, code: str, at_ms: int, shares: int) -> str:
    return event("POSITION", at_ms, userID=user, szcode=code, lastPrice=1.0, openInterest=shares)


def key(name: str, start_s: int) -> str:
    """A result's key: the window starts `start_s` after the opening."""
    return f"{name}|{OPEN_MS + start_s * 1000}"


def test_a_harvest_of_sums_finds_what_was_planted(spark: SparkSession) -> None:
    planted = Planted()
    planted.take(OPENER, -5000, 0, primer=True)
    planted.take(trade("A", -60_000, 1, 0.01), -4000, 0, primer=True)
    planted.take(trade("A", 2000, 100, 1.10), 2000, 1)
    planted.take(trade("A", 1000, 10, 2.20), 3000, 1)  # out of order
    planted.take(trade("A", 3500 - 3_600_000, 10, 2.20), 3500, 1)  # late
    planted.take(trade("B", 3000, 7, 0.10), 3000, 1)
    planted.take(trade("A", 6000, 1, 1.00), 6000, 2)
    planted.take(trade("C", 9000, 1, 1.00), 9000, None)
    planted.take(trade("B", 20_000, 3, 0.30), 20_000, 0, lineage=1)
    for start in (-60, -65):
        planted.emit(key("A", start), "1 0.01", -3000)
    planted.emit(key("A", -5), "2 132.00", 4000)
    planted.emit(key("A", 0), "2 132.00", 4000)
    planted.emit(key("B", 0), "2 1.40", 4000)  # one record counted twice; its other window is lost
    planted.emit(key("A", 0), "3 133.00", 7000)
    planted.emit(key("A", 5), "1 9.99", 7000)  # the count is right, the sum is not
    planted.emit(key("A", 0), "3 133.00", 8000)  # emitted again
    planted.emit(key("B", 15), "one 0.90", 22_000, lineage=1)
    planted.emit(key("B", 15), "1 0.90", 22_000, lineage=1)
    planted.emit(key("B", 20), "1 0.90", 22_500, lineage=1)
    planted.emit(key("Z", 0), "1 1.00", 22_500, lineage=1)
    found = planted.harvest(spark, "group")
    assert found.late == [4]
    assert found.counts == {
        key("A", -65): (1, 1, 1, 0, 0),
        key("A", -60): (1, 1, 1, 0, 0),
        key("A", -5): (2, 2, 1, 0, 0),
        key("A", 0): (3, 3, 3, 1, 0),
        key("A", 5): (1, 1, 1, 0, 1),
        key("B", -5): (1, None, 0, 0, 0),
        key("B", 0): (1, 2, 1, 0, 0),
        key("B", 15): (1, 1, 2, 0, 1),
        key("B", 20): (1, 1, 1, 0, 0),
        key("C", 0): (1, None, 0, 0, 0),
        key("C", 5): (1, None, 0, 0, 0),
        key("Z", 0): (None, 1, 1, 0, 0),
    }
    assert found.tuples == sorted(
        [
            (0, 0, -4000, -3000, True, 2),
            (0, 1, 2000, 4000, False, 2),
            (0, 1, 3000, 4000, False, 3),  # A in both of its windows, B in one
            (0, 1, 3000, None, False, 1),
            (0, 2, 6000, 7000, False, 2),
            (None, None, 9000, None, False, 2),
            (1, 0, 20_000, 22_000, False, 1),
            (1, 0, 20_000, 22_500, False, 1),
        ],
        key=str,
    )


def test_a_harvest_of_refreshes_finds_what_was_planted(spark: SparkSession) -> None:
    planted = Planted()
    planted.take(quote("A", -60_000, 2.00), -4000, 0, primer=True)
    planted.take(position(1, "A", -60_000, 10), -3900, 0, primer=True)
    planted.take(position(1, "A", 6000, 10), 6000, 1)
    planted.take(quote("A", 7000, 2.00), 7000, 1)
    planted.take(quote("A", 7500, 3.00), 8000, 2)  # out of order
    planted.take(position(1, "A", 8500 - 3_600_000, 10), 8500, 2)  # late
    planted.take(quote("B", 8600, 1.50), 8600, 2)  # held by no one yet
    planted.take(position(2, "B", 8700, 2), 8700, None)  # lost
    planted.take(position(3, "B", 9000, 4), 9000, 0, lineage=1)  # its quote was another lineage's
    planted.take(position(1, "C", 30_000, 1), 30_000, 1, lineage=1)
    planted.take(position(1, "C", 30_500, 1), 30_500, 1, lineage=1)
    planted.take(quote("C", 30_200, 0.01), 30_600, 2, lineage=1)
    for start in (-65, -60):
        planted.emit(key("1", start), "1 20.00", -3000)
    for start in (0, 5):
        planted.emit(key("1", start), "1 20.00", 9000)
        planted.emit(key("1", start), "2 50.00", 10_000)
    planted.emit(key("1", 5), "2 50.00", 11_000)  # emitted again
    planted.emit(key("1", 25), "2 0.02", 31_000, lineage=1)
    planted.emit(key("1", 30), "3 0.03", 31_000, lineage=1)  # one pair too many
    found = planted.harvest(spark, "join")
    assert found.late == [5]
    assert found.counts == {
        key("1", -65): (1, 1, 1, 0, 0),
        key("1", -60): (1, 1, 1, 0, 0),
        key("1", 0): (2, 2, 2, 0, 0),
        key("1", 5): (2, 2, 3, 1, 0),
        key("2", 0): (1, None, 0, 0, 0),
        key("2", 5): (1, None, 0, 0, 0),
        key("3", 0): (1, None, 0, 0, 0),
        key("3", 5): (1, None, 0, 0, 0),
        key("1", 25): (2, 2, 1, 0, 0),
        key("1", 30): (2, 3, 1, 0, 0),
    }
    assert found.tuples == sorted(
        [
            (0, 0, -3900, -3000, True, 2),
            (0, 1, 7000, 9000, False, 2),
            (0, 2, 8000, 10_000, False, 2),
            (None, None, 8700, None, False, 2),
            (None, None, 9000, None, False, 2),
            (1, 2, 30_600, 31_000, False, 2),
        ],
        key=str,
    )


def test_records_are_late_by_the_market_s_clock_even_when_all_of_them_are(spark: SparkSession) -> None:
    planted = Planted()
    planted.take(trade("A", -60_000, 1, 1.0), -20_000, 0, primer=True)
    for second in range(3):
        planted.take(trade("A", second * 1000 - 3_600_000, 1, 1.0), second * 1000, 1)
    table = with_late(with_events(spark.createDataFrame(planted.inputs, INPUTS)), TIMES)
    assert [row["late"] for row in table.orderBy("offset").collect()] == [False, True, True, True]


def test_sums_that_agree_in_two_lineages_are_no_repetition(spark: SparkSession) -> None:
    outputs = spark.createDataFrame([("a", 0, 0, 1), ("a", 1, 1, 1)], "key string, lineage int, offset int, count int")
    expected = spark.createDataFrame([("a", 2)], "key string, expected int")
    assert [row["reemitted"] for row in count_keys(expected, outputs).collect()] == [0]


# The summary tables.


@pytest.mark.parametrize("parts", [[], [{"recovered": True, "macro_s": 4.5}]])
def test_recoveries_are_a_table_also_where_no_record_has_one(
    spark: SparkSession, tmp_path: Path, parts: list[dict[str, Any]]
) -> None:
    keys = {"matrix": "m", "config_id": "c", "series": "s", "build": "b", "attempt": "a", "status": "valid"}
    (tmp_path / "record.json").write_text(json.dumps({**keys, "metrics": {"recoveries": parts}}))
    found = recoveries(spark.read.option("multiLine", True).json(str(tmp_path / "record.json")))
    assert set(found.columns) == {*keys, "fault", *(name for part in parts for name in part)}
    assert [(row["attempt"], row["fault"], row["macro_s"]) for row in found.collect()] == [
        ("a", number, part["macro_s"]) for number, part in enumerate(parts)
    ]


def test_a_host_whose_name_has_dots_has_a_column(spark: SparkSession, tmp_path: Path) -> None:
    record = {
        **dict.fromkeys([*KEYS, *PLAIN], "x"), "status": "valid", "reasons": ["a: b"], "config": {"rate": 5.0},
        "metrics": {"cpu_nodes": {"node1.example-x.com": 0.5}, "latency_ms": {"p50": 3.0}},
    }  # fmt: skip
    (tmp_path / "record.json").write_text(json.dumps(record))
    table = experiments(spark.read.option("multiLine", True).json(str(tmp_path / "record.json")))
    (row,) = table.collect()
    assert (row["cpu_nodes_node1_example-x_com"], row["latency_ms_p50"], row["config_rate"]) == (0.5, 3.0, 5.0)


def test_attempts_are_told_apart_whatever_the_folders_above_are_called(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "mine" / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / "series.json").write_text('{"latency": []}')
    (row,) = of_attempts(spark.read.json(str(folder / "series.json"))).collect()
    assert row["attempt"] == "a1"
