"""Harvest of Nexmark through Kafka: each result references its newest event and is recomputed in a batch.

A tuple is an expected result: produced with its newest event, and reflected by its first output. The same query over
the same events in one batch gives the expected results, so missing results are detected. If rows replace others, each
observed version is also expected. Results of closing events are excluded. The audit compares the last output of each
key with the batch.
"""

from __future__ import annotations

from nexmark.catalogue import NexmarkQuery, load, parse_events, to_kafka_records
from output_matching import count_equal_tuples
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from workload_runner import Config

# Its windows use processing time, so only their sums can be recomputed.
PROCESSING_TIME = "q12"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def harvest_nexmark(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts."""
    query = load(config["query"])
    taken = records.where("lineage IS NOT NULL")
    spark = records.sparkSession
    prepare_state(spark)
    again = to_kafka_records(query.build(spark, parse_events(taken)), query).cache()
    number = F.from_json("value", "n BIGINT").getField("n").alias("newest")
    numbered = records.select(number, "lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"))
    first = outputs.groupBy("key", "value", "newest").agg(F.min("emitted_ms").alias("emitted_ms"))
    # Records exclude closing ones, so the join drops their results.
    tuples = (
        _expected_results(query, again, first)
        .join(numbered.where("newest IS NOT NULL"), "newest")
        .drop("newest", "value")
    )
    undrained = bool(config.get("undrained"))
    if undrained:
        # Results of events beyond the last commit are not part of the expected results.
        beyond = records.where("undrained").select(number)
        outputs = outputs.join(beyond, "newest", "left_anti")
    counts = _sums(again, outputs) if query.name == PROCESSING_TIME else _rows(again, outputs)
    # A window whose closing events were not processed was still open, so nothing of it is lost.
    waits = F.col("final").isNull() if undrained and query.event_time else F.lit(False)
    return count_equal_tuples(tuples), counts.withColumn(
        "undrained", F.when(waits, F.col("expected")).otherwise(F.lit(0))
    )


def _expected_results(query: NexmarkQuery, again: DataFrame, first: DataFrame) -> DataFrame:
    """Return key, value, newest and emitted_ms (null: missing) of the expected results.

    `first`: the observed outputs, with their first emission. A row is identified by key and value, because its event
    can depend on the batches.
    """
    if query.name == PROCESSING_TIME:
        return first
    row = ["key", "value"]
    missing = again.join(first, row, "left_anti").withColumn("emitted_ms", F.lit(None).cast("long"))
    # If rows do not replace each other, rows that are not in the batch are wrong and not expected.
    came = first if query.key else first.join(again, row, "left_semi")
    return came.unionByName(missing.select(*row, "newest", "emitted_ms"))


def prepare_state(spark: SparkSession) -> None:
    """Configure a store with several states, and create the store coordinator, for `transformWithState`."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark._jsparkSession.streams().stateStoreCoordinator()  # type: ignore[attr-defined]


def _rows(again: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return by key the expected row, compared with its last output."""
    last = outputs.groupBy("key").agg(
        F.max_by("value", "offset").alias("last"),
        F.lit(1).cast("long").alias("final"),
        F.count("*").alias("outputs"),
        # An equal row with a newer event is not a repetition.
        (F.count("*") - F.count_distinct("value", "newest")).alias("reemitted"),
    )
    # One row per key; further rows would be reported as lost.
    expected = again.groupBy("key").agg(F.first("value").alias("row"), F.count("*").alias("expected"))
    wrong = (F.col("expected").isNotNull() & F.col("final").isNotNull() & (F.col("row") != F.col("last"))).cast("long")
    return _with_all_columns(
        expected.join(last, "key", "full_outer").withColumn("unreadable", F.coalesce(wrong, F.lit(0)))
    )


def _sums(again: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return by bidder the expected bids, and the sum of the last counts of all its windows."""

    def bids(value: str) -> tuple[Column, Column]:
        row = F.from_json(value, "bidder BIGINT, bid_count BIGINT")
        return row.getField("bidder").cast("string").alias("key"), row.getField("bid_count").alias("count")

    expected = again.select(*bids("value")).groupBy("key").agg(F.sum("count").alias("expected"))
    last = outputs.groupBy(F.col("key").alias("span")).agg(
        F.max_by("value", "offset").alias("last"),
        F.count("*").alias("outputs"),
        (F.count("*") - F.count_distinct("value", "newest")).alias("reemitted"),
    )
    final = (
        last.select(*bids("last"), "outputs", "reemitted")
        .groupBy("key")
        .agg(F.sum("count").alias("final"), F.sum("outputs").alias("outputs"), F.sum("reemitted").alias("reemitted"))
    )
    return _with_all_columns(expected.join(final, "key", "full_outer").withColumn("unreadable", F.lit(0).cast("long")))


def _with_all_columns(counts: DataFrame) -> DataFrame:
    columns = ("key", "expected", "final", "outputs", "reemitted", "unreadable")
    return counts.fillna(0, ["outputs", "reemitted", "unreadable"]).select(*columns)
