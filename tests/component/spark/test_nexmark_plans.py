"""Spark plans and harvest of Nexmark: complete events, complete results, and the audit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F

from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.nexmark_events import AWAITING_TIME, KINDS, QUERIES, pieces, reads
from faultline.system.settings import ROOT
from generators.curve import parse_curve
from generators.nexmark import NexmarkEvents, rules_of
from generators.pacing import SendSchedule
from tests.support.choice import chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def whole_plans(spark: SparkSession) -> Iterator[None]:
    """Plans as text, with all columns."""
    key = "spark.sql.debug.maxToStringFields"
    before = spark.conf.get(key)
    spark.conf.set(key, "200")
    yield
    spark.conf.set(key, before)


@pytest.fixture(autouse=True)
def cleared_cache(spark: SparkSession) -> Iterator[None]:
    """Remove the cached frames of each test; those of all queries would fill the heap."""
    yield
    spark.catalog.clearCache()


# A filter, a join, sliding windows, processing-time windows, and a Python query; all others with --thorough.
CHOSEN = ("q2", "q3", "q5", "q9", "q12")


def streams_of(query: str) -> set[str]:
    """Return the streams that a query's text reads."""
    folder = ROOT / "spark_jobs" / "nexmark" / "queries"
    module = folder / f"{query}.py"
    if module.exists():
        return {"auction", "bid"} if "winning_bids" in module.read_text() else {"bid"}
    return set(re.findall(r"(?:FROM|JOIN) (person|auction|bid)\b", (folder / f"{query}.sql").read_text()))


@pytest.mark.parametrize("query", chosen(QUERIES, CHOSEN))
def test_events_and_results_are_complete(spark: SparkSession, query: str) -> None:
    from nexmark import events as made
    from nexmark.catalogue import Streams, load

    assert set(reads(query)) == streams_of(query)
    rows = made.NexmarkEventSource(spark.range(1000).withColumnRenamed("id", "n"), made.EventRules(), reads(query))
    results = load(query).build(spark, Streams(rows.person(), rows.auction(), rows.bid()))
    execution = results._jdf.queryExecution()  # type: ignore[operator]
    plan = execution.optimizedPlan().toString()
    looked_at = [
        # A constant category appears as its value.
        frozenset(name.split("#")[0].replace("10", "category") for name in fields.split(", "))
        for fields in re.findall(r"xxhash64\((\w+#\d+L?(?:, (?:\w+#\d+L?|10))+), 42\)", plan)
    ]
    fields = {"person": made.PERSON, "auction": made.AUCTION, "bid": made.BID}
    assert set(looked_at) == {frozenset(fields[stream]) for stream in reads(query)}
    # Events of other kinds are computed within the first stream.
    first = frozenset(fields[reads(query)[0]])
    assert plan.count("THEN xxhash64(") == (len(KINDS) - len(reads(query))) * looked_at.count(first)

    to_kafka_records = execution.executedPlan().output()
    names = [to_kafka_records.apply(place).name() for place in range(to_kafka_records.size())]
    assert names == results.columns and names


@pytest.mark.thorough
def test_unread_events_do_not_change_results(spark: SparkSession) -> None:
    from nexmark import events as made

    numbers = spark.range(5000).withColumnRenamed("id", "n")
    for kind in KINDS:
        alone, together = (
            getattr(made.NexmarkEventSource(numbers, made.EventRules(), read), kind)() for read in ((kind,), KINDS)
        )
        assert alone.exceptAll(together).isEmpty() and alone.count() == together.count() > 0


def test_the_sink_receives_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    from nexmark import events as made
    from nexmark.catalogue import Streams, load, result_columns

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load().selectExpr("value AS n")
    rows = made.NexmarkEventSource(numbers, made.EventRules())
    query = load("q22")
    results = result_columns(query.build(spark, Streams(rows.person(), rows.auction(), rows.bid())), query)
    writer = results.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    executed = running._jsq.streamingQuery().lastExecution().executedPlan()  # type: ignore[attr-defined]
    written = executed.children().apply(0).output()
    assert [written.apply(place).name() for place in range(written.size())] == results.columns
    assert results.columns == ["auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"]


def test_generator_and_engine_produce_equal_events(spark: SparkSession, share: int) -> None:
    from nexmark import events as made
    from nexmark.catalogue import parse_events

    given = parse_configuration({"workload": "nexmark", "disorder": 0.3, "seed": 2**31 - 1}).input_source(1)["rules"]
    count = 30_000 // share
    numbers = np.concatenate([np.arange(count), np.arange(10**9, 10**9 + count)]).astype(np.uint64)
    source = NexmarkEvents(rules_of(given), None, 0)
    lines = [line.decode() for line in source.events(numbers, source.due_ms(numbers))]
    sent = parse_events(spark.createDataFrame(pd.DataFrame({"value": lines})))
    rows = spark.createDataFrame(pd.DataFrame({"n": numbers.astype("int64")}))
    own = made.NexmarkEventSource(rows, made.EventRules.of(given))
    for name, fields in (("person", made.PERSON), ("auction", made.AUCTION), ("bid", made.BID)):
        columns = ["n", *fields]
        there, here = (
            one.select(columns).toPandas().sort_values("n", ignore_index=True)
            for one in (getattr(sent, name), getattr(own, name)())
        )
        assert len(here)
        pd.testing.assert_frame_equal(there, here)


def test_event_time_follows_a_curve(spark: SparkSession) -> None:
    from nexmark import events as made

    config = parse_configuration(
        {"workload": "nexmark", "rate": 1000, "rate_curve": {"kind": "ramp", "from_s": 2, "until_s": 6, "to": 3000}}
    )
    given = made.EventRules.of({**config.input_source()["rules"], "curve": pieces(config)})
    numbers = np.arange(0, 20_000, 7, dtype=np.uint64)
    rows = spark.createDataFrame(pd.DataFrame({"n": numbers.astype("int64")}))
    times = rows.select("n", made._at(given, F.col("n")).alias("at")).toPandas().sort_values("n")["at"].to_numpy()
    curve = parse_curve(config.rate_curve or {}, base=1000, low=0, high=1e6)
    due_ms = SendSchedule.for_duration(1000, 60, curve).due_of(numbers) / 1e6
    assert np.abs(times - given.start_ms - due_ms).max() <= 1.5


def test_event_time_queries_are_declared() -> None:
    from nexmark.catalogue import load

    assert {query for query in QUERIES if load(query).event_time} == set(AWAITING_TIME)


@pytest.fixture(scope="module")
def sent(spark: SparkSession) -> DataFrame:
    """Half a minute of events, in the form of the harvest's input."""
    given = parse_configuration({"workload": "nexmark", "source": "kafka"}).input_source()["rules"]
    source = NexmarkEvents(rules_of({**given, "rate": 200.0}), None, 0)
    numbers = np.arange(6000, dtype=np.uint64)
    lines = [line.decode() for line in source.events(numbers, source.due_ms(numbers))]
    table = pd.DataFrame({"value": lines, "offset": np.arange(len(lines)), "timestamp_ms": 10 * np.arange(len(lines))})
    return spark.createDataFrame(
        table.assign(partition=0, lineage=0, batch=table["offset"] // 1000, primer=False)
    ).cache()


@pytest.mark.parametrize("query", chosen(QUERIES, CHOSEN))
def test_the_audit_finds_lost_and_wrong_results(spark: SparkSession, sent: DataFrame, query: str) -> None:
    from harvest_nexmark import harvest_nexmark, prepare_state
    from nexmark.catalogue import load, parse_events, to_kafka_records

    prepare_state(spark)
    one = load(query)
    results = to_kafka_records(one.build(spark, parse_events(sent)), one).toPandas()
    assert len(results) and results["key"].is_unique
    outputs = results.assign(offset=np.arange(len(results)), emitted_ms=10**6, lineage=0)

    def audited(rows: pd.DataFrame, *, came: int, missing: int) -> pd.DataFrame:
        tuples, counts = harvest_nexmark(sent, spark.createDataFrame(rows), {"query": query})
        found = tuples.toPandas()
        never = found["emitted_ms"].isna()
        assert (found.loc[~never, "n"].sum(), found.loc[never, "n"].sum()) == (came, missing)
        assert (found["produced_ms"] < 60_000).all() and found["batch"].notna().all()
        return counts.toPandas()

    clean = audited(outputs, came=len(outputs), missing=0)
    assert (clean["expected"] == clean["final"]).all() and not clean[["reemitted", "unreadable"]].to_numpy().any()
    # The first result is lost, the second is wrong, the last is repeated; query 15 has one row per day.
    several = len(outputs) > 2
    readable = query == "q12" or not several
    spoilt = outputs.copy()
    if not readable:
        spoilt.loc[1, "value"] = "{}"
    # Result of an event without a record, like those of closing events.
    closed = spoilt[-1:].assign(key="closed", offset=10**6 + 1, newest=10**9)
    spoilt = pd.concat([spoilt[1:] if several else spoilt, spoilt[-1:].assign(offset=10**6)])
    # A lost result is expected, and so is the correct one instead of a wrong one, unless rows may be replaced.
    # Results of processing time can only be observed.
    missing = 0 if query == "q12" else several + (not readable)
    came = len(outputs) - several - (not readable and not one.key)
    found = audited(spoilt, came=came, missing=missing)
    audited(pd.concat([spoilt, closed]), came=came, missing=missing)
    assert found["reemitted"].sum() == 1 and found["unreadable"].sum() == (not readable)
    assert (found["final"].fillna(0).sum() < found["expected"].sum()) == several
    if query != "q12":  # whose windows use processing time, so that only sums can be compared
        (twice,) = found[found["key"] == outputs["key"].iloc[-1]].to_dict("records")
        assert twice["final"] == twice["expected"], "what comes twice counts once"


@pytest.mark.parametrize("query", ["q1", "q5", "q12", "q17"])
def test_events_beyond_the_last_commit_are_undrained(spark: SparkSession, sent: DataFrame, query: str) -> None:
    """Also if an uncommitted batch emitted results of them; missing results of other events are lost."""
    from harvest_nexmark import harvest_nexmark, prepare_state
    from nexmark.catalogue import load, parse_events, to_kafka_records

    prepare_state(spark)
    one, cut = load(query), 4000
    beyond = sent.where(f"offset >= {cut}").withColumns(
        {name: F.lit(None).cast("int") for name in ("lineage", "batch")}
    )
    drained = sent.where(f"offset < {cut}")
    both = drained.withColumn("undrained", F.lit(False)).unionByName(beyond.withColumn("undrained", F.lit(True)))
    before, after = (to_kafka_records(one.build(spark, parse_events(part)), one).toPandas() for part in (drained, sent))
    newest = drained.agg(F.max(F.from_json("value", "n BIGINT").getField("n"))).collect()[0][0]
    late = after[after["newest"] > newest]
    assert len(before) > 2 and (len(late) or query == "q5")
    rows = pd.concat([before[1:], late]).reset_index(drop=True)
    outputs = rows.assign(offset=np.arange(len(rows)), emitted_ms=10**6, lineage=0)
    _, counts = harvest_nexmark(both, spark.createDataFrame(outputs), {"query": query, "undrained": 2000})
    found = counts.toPandas().fillna({"final": 0})
    off = found["expected"] - found["undrained"] - found["final"]
    assert not found["unreadable"].any() and found["expected"].notna().all() and (off >= 0).all()
    # One result is missing; that of a window may still have been open.
    assert found["undrained"].sum() == (query == "q5")
    assert (off.sum() > 0) == (query != "q5")


def test_a_stream_of_json_parses_each_event_once(spark: SparkSession) -> None:
    from nexmark.catalogue import parse_timed_events

    bids = parse_timed_events(spark.createDataFrame([("{}",)], "value STRING")).bid
    plan = bids._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert plan.count("from_json(") == 1
