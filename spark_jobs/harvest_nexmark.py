"""Harvest of Nexmark through Kafka: each result names the newest event that it is made of, and can be computed again.

A tuple is a result that is due: produced when its newest event was, reflected by its first output. What is due is known
from the same query over the same events in one batch, so that a result which never came counts as such; of a row that
replaces another one, each that came is due as well. The closing events are no part of it: a result to which one of them
contributed is none. The audit holds the last output of each key against that batch.
"""

from __future__ import annotations

from nexmark.catalogue import NexmarkQuery, load, output, parsed
from output_matching import number_alike
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from workload_runner import Config

# Its ten seconds are those of the machine: only what they add up to can be computed again.
PROCESSING_TIME = "q12"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def harvest_nexmark(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet."""
    query = load(config["query"])
    taken = records.where("lineage IS NOT NULL")
    spark = records.sparkSession
    prepare_state(spark)
    again = output(query.build(spark, parsed(taken)), query).cache()
    number = F.from_json("value", "n BIGINT").getField("n").alias("newest")
    numbered = records.select(number, "lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"))
    first = outputs.groupBy("key", "value", "newest").agg(F.min("emitted_ms").alias("emitted_ms"))
    # The records are without the closing ones, so this leaves out what was made of those.
    tuples = _due(query, again, first).join(numbered.where("newest IS NOT NULL"), "newest").drop("newest", "value")
    undrained = bool(config.get("undrained"))
    if undrained:
        # What is made of events beyond the last commit can be none of what the committed ones add up to.
        beyond = records.where("undrained").select(number)
        outputs = outputs.join(beyond, "newest", "left_anti")
    counts = _sums(again, outputs) if query.name == PROCESSING_TIME else _rows(again, outputs)
    # A window whose closing events were not processed was still open, and nothing was lost of it.
    waits = F.col("final").isNull() if undrained and query.event_time else F.lit(False)
    return number_alike(tuples), counts.withColumn("undrained", F.when(waits, F.col("expected")).otherwise(F.lit(0)))


def _due(query: NexmarkQuery, again: DataFrame, first: DataFrame) -> DataFrame:
    """key, value, newest, emitted_ms (null: it never came) of the results that are due.

    `first`: what came, with its first emission. A row is known by its key and value: by which of its events it came out
    can depend on the batches.
    """
    if query.name == PROCESSING_TIME:
        return first
    row = ["key", "value"]
    missing = again.join(first, row, "left_anti").withColumn("emitted_ms", F.lit(None).cast("long"))
    # Where no row replaces another, what the batch does not know is wrong, and nothing that was waited for.
    came = first if query.key else first.join(again, row, "left_semi")
    return came.unionByName(missing.select(*row, "newest", "emitted_ms"))


def prepare_state(spark: SparkSession) -> None:
    """What `transformWithState` takes for granted: a store that keeps several states, and the coordinator of stores,
    which otherwise comes with the first streaming query."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark._jsparkSession.streams().stateStoreCoordinator()  # type: ignore[attr-defined]


def _rows(again: DataFrame, outputs: DataFrame) -> DataFrame:
    """Per key: expected once, and its last output is the row that the batch has."""
    last = outputs.groupBy("key").agg(
        F.max_by("value", "offset").alias("last"),
        F.lit(1).cast("long").alias("final"),
        F.count("*").alias("outputs"),
        # The same row for a newer reason is no repetition.
        (F.count("*") - F.count_distinct("value", "newest")).alias("reemitted"),
    )
    # One row a key; should that ever fail, the others are missed and show as lost.
    expected = again.groupBy("key").agg(F.first("value").alias("row"), F.count("*").alias("expected"))
    wrong = (F.col("expected").isNotNull() & F.col("final").isNotNull() & (F.col("row") != F.col("last"))).cast("long")
    return _complete(expected.join(last, "key", "full_outer").withColumn("unreadable", F.coalesce(wrong, F.lit(0))))


def _sums(again: DataFrame, outputs: DataFrame) -> DataFrame:
    """Per bidder: bids expected, and the sum of the last counts of all of its ten seconds."""

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
    return _complete(expected.join(final, "key", "full_outer").withColumn("unreadable", F.lit(0).cast("long")))


def _complete(counts: DataFrame) -> DataFrame:
    columns = ("key", "expected", "final", "outputs", "reemitted", "unreadable")
    return counts.fillna(0, ["outputs", "reemitted", "unreadable"]).select(*columns)
