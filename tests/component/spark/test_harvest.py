"""All kinds of harvest on planted outputs, with Spark."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faultline.engines.ground_truth.harvest import tables
from tests.support.planted import INPUTS, OPEN, OPEN_MS, OPENER, OUTPUTS, T0_MS, TIMES, Planted, leibniz

from harvest import with_batches  # isort: skip  # a program's neighbour, like the next ones
from output_matching import count_keys  # isort: skip
from harvest import harvest  # isort: skip
from word_count import halves, sum_columns, tuple_hash  # isort: skip
from harvest_stock import with_events, with_late  # isort: skip

pytestmark = pytest.mark.timeout(900)


def test_harvest_of_words(spark: SparkSession) -> None:
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


def test_harvest_of_summed_words_identifies_the_counted_tuples(spark: SparkSession) -> None:
    """Equal words at different offsets have different hashes."""

    def value(*places: tuple[int, int]) -> str:
        row = spark.createDataFrame([(0, *place) for place in places], "partition int, offset bigint, position int")
        sums = row.select(*halves(tuple_hash("partition", "offset", "position"))).agg(*sum_columns()).collect()[0]
        return f"{len(places)} {sums['high']} {sums['low']}"

    planted = Planted()
    planted.take("a b", 0, 0, primer=True)
    planted.take("a a", 10, 1)
    planted.take("b c a", 20, 2)
    planted.take("b", 30, 0, lineage=1)
    planted.emit("a", value((0, 0)), 5)
    planted.emit("b", value((0, 1)), 5)
    planted.emit("a", value((0, 0), (1, 0), (1, 1)), 15)
    planted.emit("a", value((0, 0), (1, 0), (1, 1)), 16)  # emitted again
    planted.emit("a", value((0, 0), (1, 0), (1, 0), (2, 2)), 25)  # one was lost, one counted twice
    planted.emit("b", value((0, 1), (2, 0)), 25)
    planted.emit("c", "1", 25)  # no sum at all
    planted.emit("b", value((3, 0)), 35, lineage=1)
    found = planted.harvest(spark, "summed_words")
    assert found.counts == {"a": (4, 4, 4, 1, 0), "b": (3, 3, 3, 0, 0), "c": (1, None, 1, 0, 1)}
    assert found.sums == {"a": False, "b": True, "c": False}, "those of two lineages add up"
    assert found.drawn == {"a": 3, "b": 2, "c": 1}
    assert found.tuples == sorted(
        [(0, 0, 0, 5, True, 2), (0, 1, 10, 15, False, 2), (0, 2, 20, 25, False, 2), (0, 2, 20, None, False, 1)]
        + [(1, 0, 30, 35, False, 1)],
        key=str,
    )


def test_harvest_of_hashed_words_identifies_the_counted_tuples(spark: SparkSession) -> None:
    """The sums are those of Flink's SQL, in integers; tuples are found by their order of production."""

    def value(*places: tuple[int, int, int]) -> str:
        """Return the output for (partition, offset, position from 1) of the counted words."""
        prime, numbers = 2**31 - 1, [p * 69_069 + o * 1_103_515_245 + i * 12_345 for p, o, i in places]
        return f"{len(places)} 0 {sum(pow(number, 3, prime) for number in numbers)}"

    planted = Planted()
    planted.take("a b", 0, 0, primer=True)
    planted.take("a a", 10, 1)
    planted.take("b", 20, 1)
    planted.emit("a", value((0, 0, 1)), 5)
    planted.emit("b", value((0, 0, 2)), 6)
    planted.emit("a", value((0, 0, 1), (0, 1, 1)), 15)
    planted.emit("a", value((0, 0, 1), (0, 1, 1), (0, 1, 2)), 16)
    planted.emit("b", value((0, 0, 2), (0, 0, 2)), 25)  # one was lost, one counted twice
    found = planted.harvest(spark, "hashed_words")
    assert found.counts == {"a": (3, 3, 3, 0, 0), "b": (2, 2, 2, 0, 0)}
    assert found.sums == {"a": True, "b": False}
    assert (0, 1, 10, 16, False, 1) in found.tuples and (0, 1, 20, 25, False, 1) in found.tuples


def test_harvest_of_a_chain_matches_occurrences_by_order(spark: SparkSession) -> None:
    """Independent of batches, because each stage of the chain has its own."""
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


def test_harvest_of_ids_counts_each_record_once(spark: SparkSession) -> None:
    planted = Planted()
    planted.take("x", 0, 0)
    planted.take("x", 5, 0)
    planted.emit("0:0", "1", 10)
    planted.emit("0:0", "1", 12)
    found = planted.harvest(spark, "id")
    assert found.counts == {"0:0": (1, 1, 2, 1, 0), "0:1": (1, None, 0, 0, 0)}
    assert found.tuples == [(0, 0, 0, 10, False, 1), (0, 0, 5, None, False, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_the_harvest_without_spark_is_equal(spark: SparkSession, seed: int) -> None:
    """Records are emitted once, repeatedly, with a wrong count, not at all, unreadably, or without input."""
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
    whole = harvest(with_batches(records, batches), spark.createDataFrame(sent, OUTPUTS), {"tuples": "id"})
    for name, table in whole.items():
        assert set(table.columns) == set(plain[name].column_names)
        rows = sorted((tuple(row[column] for column in plain[name].column_names) for row in table.collect()), key=str)
        assert rows == sorted((tuple(row.values()) for row in plain[name].to_pylist()), key=str), name
        names = {"int": "int32", "bigint": "int64", "boolean": "bool", "string": "string"}
        types = {field.name: names[field.dataType.simpleString()] for field in table.schema}
        assert {one.name: str(one.type) for one in plain[name].schema} == types


def test_input_beyond_the_last_commit_is_undrained(spark: SparkSession) -> None:
    """Also if an uncommitted batch had written part of it."""
    planted = Planted()
    planted.take("a b", 0, 0)
    planted.take("a", 10, None)  # lost with its lineage: another one began behind it
    planted.take("a", 20, 0, lineage=1)
    planted.take("a b c", 30, None, undrained=True)
    planted.take("a d", 40, None, undrained=True)
    planted.emit("a", "1", 5)
    planted.emit("a", "2", 35, lineage=1)
    planted.emit("b", "2", 35)
    planted.emit("d", "9", 35, lineage=1)
    for kind in ("words", "ranked_words"):
        found = planted.harvest(spark, kind)
        assert found.counts == {
            "a": (5, 3, 2, 0, 0), "b": (2, 2, 1, 0, 0), "c": (1, None, 0, 0, 0), "d": (1, 9, 1, 0, 0),
        }  # fmt: skip
        assert found.undrained == {"a": 2, "b": 1, "c": 1, "d": 1}
    ids = planted.harvest(spark, "id")
    assert ids.undrained == {"0:3": 1, "0:4": 1}


def test_sums_of_hashes_cover_the_drained_input(spark: SparkSession) -> None:
    planted = Planted()
    planted.take("a", 0, 0)
    planted.take("a b", 10, None, undrained=True)
    row = spark.createDataFrame([(0, 0, 0)], "partition int, offset bigint, position int")
    sums = row.select(*halves(tuple_hash("partition", "offset", "position"))).agg(*sum_columns()).collect()[0]
    planted.emit("a", f"1 {sums['high']} {sums['low']}", 5)
    found = planted.harvest(spark, "summed_words")
    assert found.counts == {"a": (2, 1, 1, 0, 0), "b": (1, None, 0, 0, 0)}
    assert found.undrained == {"a": 1, "b": 1} and found.sums["a"]


def test_harvest_of_pi_reports_undrained_input(spark: SparkSession) -> None:
    planted = Planted()
    planted.take("0 50", 0, 0)
    planted.take("1 50", 10, None, undrained=True)
    planted.take("2 50", 20, None, undrained=True)
    for identity in ("0", "2"):
        planted.emit(identity, str(leibniz(50)), 25)
    found = planted.harvest(spark, "pi")
    assert found.counts == {"0": (1, 1, 1, 0, 0), "1": (1, None, 0, 0, 0), "2": (1, 1, 1, 0, 0)}
    assert found.undrained == {"1": 1, "2": 1}


@pytest.mark.parametrize(
    ("reached", "ends"),
    [
        (None, {0: 7, 1: 4}),  # of the second partition nothing is known but where the second lineage began
        ({"0": 8, "1": 2}, {0: 8, 1: 4}),
        ({"0": 3}, {0: 3, 1: 4}),
    ],
)
def test_input_is_undrained_beyond_commits_and_epoch_starts(
    spark: SparkSession, reached: dict[str, int] | None, ends: dict[int, int]
) -> None:
    batches = [
        {"lineage": 0, "batch": 0, "end_offsets": {"0": 2, "1": 1}, "start_offsets": None},
        {"lineage": 1, "batch": 0, "end_offsets": {"0": 7}, "start_offsets": {"0": 3, "1": 4}},
    ]
    places = [(partition, offset) for partition in range(3) for offset in range(10)]
    records = spark.createDataFrame(places, "partition int, offset bigint")
    found = with_batches(records, batches, reached).where("undrained").select("partition", "offset").collect()
    assert {tuple(row) for row in found} == {place for place in places if place[1] >= ends.get(place[0], 0)}


def test_harvest_of_pi(spark: SparkSession) -> None:
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
    """Return a stock record, `at_ms` after the opening."""
    at = (OPEN + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"stream": stream, **fields, "eventTime": at}, separators=(",", ":"))


def trade(code: str, at_ms: int, shares: int, price: float) -> str:
    return event("TRANSACTION", at_ms, szcode=code, userID=1, Turnover=shares, Price=price)


def quote(code: str, at_ms: int, price: float) -> str:
    return event("STOCK", at_ms, szcode=code, lastPrice=price)


def position(user: int, code: str, at_ms: int, shares: int) -> str:
    return event("POSITION", at_ms, userID=user, szcode=code, lastPrice=1.0, openInterest=shares)


def key(name: str, start_s: int) -> str:
    """Return a result's key for a window that starts `start_s` after the opening."""
    return f"{name}|{OPEN_MS + start_s * 1000}"


def test_harvest_of_sums(spark: SparkSession) -> None:
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


def test_harvest_of_refreshes(spark: SparkSession) -> None:
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


def test_lateness_is_detected_even_if_all_records_are_late(spark: SparkSession) -> None:
    planted = Planted()
    planted.take(trade("A", -60_000, 1, 1.0), -20_000, 0, primer=True)
    for second in range(3):
        planted.take(trade("A", second * 1000 - 3_600_000, 1, 1.0), second * 1000, 1)
    table = with_late(with_events(spark.createDataFrame(planted.inputs, INPUTS)), TIMES)
    assert [row["late"] for row in table.orderBy("offset").collect()] == [False, True, True, True]


def test_equal_sums_in_two_epochs_are_not_repetitions(spark: SparkSession) -> None:
    outputs = spark.createDataFrame([("a", 0, 0, 1), ("a", 1, 1, 1)], "key string, lineage int, offset int, count int")
    expected = spark.createDataFrame([("a", 2, 0)], "key string, expected int, undrained int")
    assert [row["reemitted"] for row in count_keys(expected, outputs).collect()] == [0]
