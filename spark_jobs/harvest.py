"""Harvest: read an experiment's input and output topics once, and write the tables that the judge needs.

    spark-submit harvest.py --config FILE

One Spark job computes tuple latency, the audit's batch recomputation and the record table, because each start of Spark
takes seconds. The judge (`faultline.records.judge.judge`) computes what it can derive from these tables in memory. For
definitions see docs/reference/metrics.md.

The configuration is JSON: bootstrap, kafka_options (credentials), input_topic, output_topic, batches (path of
batches.json), tuples (kind of tuples, see KINDS), target (output folder). `group` and `join` also need window_s,
slide_s and late_ms; `nexmark` needs query; `query` needs the job's declarations and its file. Optional: undrained, the
number of uncommitted input offsets (default 0); emitted_ahead_ms, by how much the clock of output timestamps is ahead
of the generator's.

Tables, each one Parquet file:

- records: one row per input record: partition, offset, timestamp_ms, primer, lineage, batch, late
- tuples: lineage, batch, produced_ms, emitted_ms (null: never reflected), primer, n
- counts: key, expected (null: not in the input), undrained (part of expected from input beyond the last commit, not
  lost), final (null: never emitted; sum of the last outputs of all state epochs), outputs, reemitted, unreadable
  (outputs with an invalid value, or one that contradicts the input); words also have drawn (occurrences outside the
  preload); summed words also have expected_high, expected_low, final_high and final_low, the sums of hashes (see
  word_count.py) of drained input
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harvest_nexmark import harvest_nexmark
from harvest_stock import harvest_group, harvest_join, with_events, with_late
from harvest_user_query import harvest_query
from output_matching import (
    harvest_hashed_words,
    harvest_ids,
    harvest_pi,
    harvest_ranked_words,
    harvest_summed_words,
    harvest_words,
)
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from workload_runner import FETCH_WAIT_MS, LINEAGE_HEADER, NEWEST_HEADER, Config

# Kind of tuples -> (records, outputs, configuration) -> (tuples, counts).
KINDS: dict[str, Callable[[DataFrame, DataFrame, Config], tuple[DataFrame, DataFrame]]] = {
    "words": harvest_words,  # each word of a record
    "summed_words": harvest_summed_words,  # the same, with sums of hashes in the outputs
    "hashed_words": harvest_hashed_words,  # the same with other sums, from an engine without batches
    "ranked_words": harvest_ranked_words,  # each word of a record, in order of occurrence
    "id": harvest_ids,  # a record, identified by partition and offset
    "pi": harvest_pi,  # a record, identified by its id
    "group": harvest_group,  # a record in one of its windows
    "join": harvest_join,  # the change of a user's window by a batch
    "nexmark": harvest_nexmark,  # a result
    "query": harvest_query,  # as declared by the user's job
}
# Kinds that need raw Kafka records.
RAW_KINDS = ("query",)
# Header that a user program may forward.
HEADER = "faultline"
# Header of records outside the schedule, as in generators/producer.py.
PHASE, CLOSING = "faultline-phase", b"closing"
EVENT_TIME_KINDS = ("group", "join")
# Input records per task. A task that exceeds its memory while sorting spills runs to disk and merges them through
# buffers of megabytes, so its memory would grow with the run.
RECORDS_PER_TASK = 500_000
MIN_TASKS = 2


def read_topic(spark: SparkSession, config: Config, topic: str, pieces: int) -> DataFrame:
    """Return every record of a topic, with headers, read by at least this number of tasks."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .options(**config.get("kafka_options", {}))
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .option("minPartitions", str(pieces))
        # The last fetch of a partition waits this long for more records; the default is 500 ms.
        .option("kafka.fetch.max.wait.ms", str(FETCH_WAIT_MS))
        .load()
    )


def inputs_of(topic: DataFrame, *, raw: bool = False) -> DataFrame:
    """Return partition, offset, timestamp_ms, primer and value (text) of the input topic's records.

    Closing records are excluded. `raw`: they are included, with the column `closing`, and the columns key, raw (bytes
    of the value), topic, timestampType and faultline (header of that name; null: none) are added.
    """
    as_came = ("key", F.col("value").alias("raw"), "topic", "timestampType", header_value(HEADER).alias(HEADER))
    kept = (*as_came, is_closing().alias("closing")) if raw else ()
    return (topic if raw else topic.where(~is_closing())).select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.coalesce(F.exists("headers", lambda header: header.key == PHASE), F.lit(False)).alias("primer"),
        F.col("value").cast("string").alias("value"),
        *kept,
    )


def is_closing() -> Column:
    """Return whether an input record was sent after the schedule to close open windows."""
    closing = F.exists("headers", lambda header: (header.key == PHASE) & (header.value == CLOSING))
    return F.coalesce(closing, F.lit(False))


def header_value(name: str) -> Column:
    """Return the first header of this name as text; null if there is none."""
    found = F.get(F.filter("headers", lambda header: header.key == name), F.lit(0)).getField("value")
    return found.cast("string")


def outputs_of(topic: DataFrame, ahead_ms: int = 0) -> DataFrame:
    """Return key, value (text), emitted_ms, offset, lineage, newest and faultline of the output records.

    newest and faultline are null without their header. `ahead_ms`: see `emitted_ahead_ms`.
    """
    stamped = F.unix_millis("timestamp")
    return topic.select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        (stamped - ahead_ms if ahead_ms else stamped).alias("emitted_ms"),
        "offset",
        # Outputs of engines without state epochs have no header and belong to the first epoch.
        F.coalesce(header_value(LINEAGE_HEADER).cast("int"), F.lit(0)).alias("lineage"),
        header_value(NEWEST_HEADER).cast("long").alias("newest"),
        header_value(HEADER).alias(HEADER),
    )


def harvest(
    records: DataFrame, outputs: DataFrame, config: Config, kept: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER
) -> dict[str, DataFrame]:
    """Return the three tables by name.

    `records`: as returned by `inputs_of`, with lineage, batch and undrained. `outputs`: as returned by `outputs_of`.
    `kept`: storage level of both, which are read several times.
    """
    # Extracting a header costs as much as reading the record, so unused ones are dropped.
    unused = {"newest", HEADER} - {_reference_header(config)}
    outputs, records = outputs.drop(*unused).persist(kept), records.drop(*unused)
    if config["tuples"] in EVENT_TIME_KINDS:
        records = with_late(with_events(records).drop("value").persist(kept), config)
    else:
        records = records.withColumn("late", F.lit(False)).persist(kept)
    tuples, counts = KINDS[config["tuples"]](records, outputs, config)
    if config["tuples"] in RAW_KINDS:
        records = records.where("NOT closing")
    return {
        "records": records.drop(
            "value", "event", "key", "raw", "topic", "timestampType", "closing", "undrained", HEADER
        ),
        "tuples": tuples,
        "counts": counts,
    }


def _reference_header(config: Config) -> str | None:
    """Return the header by which an output references its input."""
    if config["tuples"] == "nexmark":
        return "newest"
    return {"newest": "newest", "header": HEADER}.get(config.get("reflects", ""))


def write(frame: DataFrame, target: Path) -> None:
    """Write one Parquet file at `target`; replace that of an earlier try of the same attempt."""
    folder = target.with_suffix(".parts")
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder))
    part = next(folder.glob("part-*.parquet"))
    part.rename(target)
    shutil.rmtree(folder)


def task_count(batches: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of tasks for the input of these batches."""
    ends: dict[str, int] = {}
    for batch in batches:
        ends |= {partition: max(end, ends.get(partition, 0)) for partition, end in batch["end_offsets"].items()}
    return max(MIN_TASKS, -(-sum(ends.values()) // RECORDS_PER_TASK))


def harvest_topics(spark: SparkSession, arguments: Sequence[str]) -> None:
    """Run the program on an existing Spark session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    options, _ = parser.parse_known_args(arguments)
    config: Config = json.loads(options.config.read_text())
    known = json.loads(Path(config["batches"]).read_text())
    batches = known["batches"]
    target = Path(config["target"])
    target.mkdir(parents=True, exist_ok=True)

    pieces = task_count(batches)
    # Set for each harvest, because the session may be persistent.
    spark.conf.set("spark.sql.shuffle.partitions", pieces)
    topic = read_topic(spark, config, config["input_topic"], pieces)
    inputs = inputs_of(topic, raw=config["tuples"] in RAW_KINDS)
    written = read_topic(spark, config, config["output_topic"], pieces)
    outputs = outputs_of(written, config.get("emitted_ahead_ms", 0))
    # In large harvests, cached data on the heap would leave no contiguous memory for sorting.
    kept = StorageLevel.DISK_ONLY if pieces > MIN_TASKS else StorageLevel.MEMORY_AND_DISK_DESER
    tables = harvest(with_batches(inputs, batches, known.get("reached")), outputs, config, kept)
    for name, table in tables.items():
        write(table, target / f"{name}.parquet")


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    harvest_topics(spark, sys.argv[1:])
    spark.stop()


# Assignment of input records to state epochs and batches.


def ranges_of(batches: list[dict[str, Any]]) -> list[tuple[int, int, int, int, int]]:
    """Return (lineage, batch, partition, low, high): the offsets [low, high) of each committed batch.

    An epoch starts at the start offsets of its first batch on every partition.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    reached: dict[tuple[int, str], int] = {}
    for item in sorted(batches, key=lambda item: (item["lineage"], item["batch"])):
        lineage = item["lineage"]
        for partition, start in (item.get("start_offsets") or {}).items():
            reached[lineage, partition] = start
        for partition, end in item["end_offsets"].items():
            low = reached.get((lineage, partition), 0)
            if end > low:
                rows.append((lineage, item["batch"], int(partition), low, end))
                reached[lineage, partition] = end
    return rows


def bucket_width(ranges: list[tuple[int, int, int, int, int]]) -> int:
    """Return the mean length of a range, so that buckets cut ranges into at most twice as many pieces."""
    return max(1, -(-sum(high - low for *_, low, high in ranges) // max(1, len(ranges))))


def reached_offsets(batches: list[dict[str, Any]], reached: Mapping[str, int]) -> dict[str, int]:
    """Return by partition the offset up to which input was committed or skipped by a later epoch.

    `reached`: the offsets that the query reports as committed at the end; empty if unknown.
    """
    ends = [item[name] or {} for item in batches for name in ("end_offsets", "start_offsets") if item.get(name)]
    if reached:
        ends = [reached, *(item["start_offsets"] for item in batches if item.get("start_offsets"))]
    furthest: dict[str, int] = {}
    for one in ends:
        furthest |= {partition: max(end, furthest.get(partition, 0)) for partition, end in one.items()}
    return furthest


def is_undrained(reached: Mapping[str, int]) -> Column:
    """Return whether an input record is beyond the last commit: not processed, and not lost."""
    ends = F.from_json(F.lit(json.dumps(reached)), "map<string, bigint>")
    return F.col("offset") >= F.coalesce(F.try_element_at(ends, F.col("partition").cast("string")), F.lit(0))


def with_batches(
    records: DataFrame, batches: list[dict[str, Any]], reached: Mapping[str, int] | None = None
) -> DataFrame:
    """Add lineage and batch, by the first batch whose end offset exceeds the record's, and `undrained`.

    `reached`: as in batches.json. Records that were never committed have nulls. Ranges are cut at buckets of offsets,
    and a record is compared only with the ranges of its bucket; otherwise the time would grow quadratically with the
    run.
    """
    ranges = ranges_of(batches)
    width = bucket_width(ranges)

    def bucket(offset: str) -> Column:
        return F.floor(F.col(offset) / F.lit(width))

    # JSON text instead of Python rows avoids starting a Python worker.
    names = ("lineage", "batch", "taken", "low", "high")
    text = json.dumps([dict(zip(names, row, strict=True)) for row in ranges])
    schema = "array<struct<lineage: int, batch: int, taken: int, low: bigint, high: bigint>>"
    whole = records.sparkSession.range(1).select(F.inline(F.from_json(F.lit(text), schema)))
    pieces = whole.withColumn("last", F.col("high") - 1).withColumn(
        "bucket", F.explode(F.sequence(bucket("low"), bucket("last")))
    )
    inside = (
        (F.col("partition") == F.col("taken"))
        & (bucket("offset") == F.col("bucket"))
        & (F.col("offset") >= F.col("low"))
        & (F.col("offset") < F.col("high"))
    )
    # There are far fewer ranges than records, so they are broadcast.
    known = records.join(F.broadcast(pieces), inside, "left").drop("taken", "low", "high", "last", "bucket")
    return known.withColumn("undrained", is_undrained(reached_offsets(batches, reached or {})))


if __name__ == "__main__":
    main()
