"""Reads an experiment's input and output topics once and writes what the judge needs.

One Spark job per harvest: starting Spark costs seconds, so per-tuple latency, the audit's batch
recomputation and the record table are all made here. What can be summed up from these tables in
memory is left to `faultline.records.judge.judge`. Definitions: docs/reference/metrics.md.

    spark-submit harvest.py --config FILE

The configuration is JSON: bootstrap, kafka_options (how to log in there), input_topic, output_topic, batches (path of
batches.json), tuples (what a tuple is, see KINDS), target (folder to write); for `group` and `join` also window_s,
slide_s, late_ms; for `nexmark` also query; undrained, how many offsets of the input were not committed (none: 0);
emitted_ahead_ms, where the outputs were stamped by a clock that was so many ms ahead of the generator's; for `query`
what the job declares, and its file.
Written, each as one Parquet file:

- records: one row an input record: partition, offset, timestamp_ms, primer, lineage, batch, late
- tuples: lineage, batch, produced_ms, emitted_ms (null: never reflected), primer, n
- counts: key, expected (null: a key the input does not hold), undrained (how much of it is of input beyond the last
  commit, which is not lost), final (null: never emitted; the sum over state lineages, each at its last output),
  outputs, reemitted, unreadable (outputs whose value is not what the workload writes, or not what the input adds up
  to); of words also drawn (how often outside the primer); of summed words also expected_high, expected_low, final_high
  and final_low, the sums of hashes (see word_count.py), expected of what is drained
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
from output_matching import harvest_ids, harvest_pi, harvest_ranked_words, harvest_summed_words, harvest_words
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from workload_runner import FETCH_WAIT_MS, LINEAGE_HEADER, NEWEST_HEADER, Config

# What a tuple is -> (records, outputs, configuration) -> (tuples, counts).
KINDS: dict[str, Callable[[DataFrame, DataFrame, Config], tuple[DataFrame, DataFrame]]] = {
    "words": harvest_words,  # each word of a record
    "summed_words": harvest_summed_words,  # the same, where outputs carry the sums of hashes
    "ranked_words": harvest_ranked_words,  # each word of a record, by the order of its occurrences
    "id": harvest_ids,  # a record, known by partition and offset
    "pi": harvest_pi,  # a record, known by the id that it carries
    "group": harvest_group,  # a record in one of its windows
    "join": harvest_join,  # what a batch changed of a user's window
    "nexmark": harvest_nexmark,  # a result
    "query": harvest_query,  # what a job of the user's says
}
# What asks for records as they came from Kafka.
WITH_RAW = ("query",)
# Of records of a program that carries it on.
HEADER = "faultline"
# Of records beside the schedule, as generators/producer.py names it.
PHASE, CLOSING = "faultline-phase", b"closing"
WITH_EVENT_TIME = ("group", "join")
# Records of a text that one task takes in. A task that sorts more than its memory holds writes runs to disk, and reads
# all of them at once through buffers of megabytes: memory would grow with the length of a run after all.
RECORDS_A_PIECE = 500_000
FEWEST_PIECES = 2


def read_topic(spark: SparkSession, config: Config, topic: str, pieces: int) -> DataFrame:
    """Every record of a topic, with headers, by at least so many tasks."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .options(**config.get("kafka_options", {}))
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .option("minPartitions", str(pieces))
        # The end of a partition is looked for once more, which by default waits half a second for more to come.
        .option("kafka.fetch.max.wait.ms", str(FETCH_WAIT_MS))
        .load()
    )


def inputs_of(topic: DataFrame, *, raw: bool = False) -> DataFrame:
    """partition, offset, timestamp_ms, primer, value (text) of the input topic's records.

    Without those that only close windows: nobody waits for them. `raw`: with them, as `closing` says, and with key, raw
    (the value's bytes), topic, timestampType and faultline (the header of that name; null: none).
    """
    as_came = ("key", F.col("value").alias("raw"), "topic", "timestampType", named(HEADER).alias(HEADER))
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
    """Whether a record of the input topic is one of those sent after the schedule to close what is open."""
    closing = F.exists("headers", lambda header: (header.key == PHASE) & (header.value == CLOSING))
    return F.coalesce(closing, F.lit(False))


def named(name: str) -> Column:
    """The first header of this name, as text; null where there is none."""
    found = F.get(F.filter("headers", lambda header: header.key == name), F.lit(0)).getField("value")
    return found.cast("string")


def outputs_of(topic: DataFrame, ahead_ms: int = 0) -> DataFrame:
    """key, value (text), emitted_ms, offset, lineage of the output topic's records, with newest and faultline, which
    are null where they are not named. `ahead_ms`: see `emitted_ahead_ms`."""
    stamped = F.unix_millis("timestamp")
    return topic.select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        (stamped - ahead_ms if ahead_ms else stamped).alias("emitted_ms"),
        "offset",
        # Engines without state lineages of their own name none: all of their outputs belong to the first.
        F.coalesce(named(LINEAGE_HEADER).cast("int"), F.lit(0)).alias("lineage"),
        named(NEWEST_HEADER).cast("long").alias("newest"),
        named(HEADER).alias(HEADER),
    )


def harvest(
    records: DataFrame, outputs: DataFrame, config: Config, kept: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER
) -> dict[str, DataFrame]:
    """The three tables by name.

    `records`: as `inputs_of` returns them, with lineage, batch and undrained; without what is unused here, and what
    only closes windows, they are the table. `outputs`: as `outputs_of` returns them. `kept`: where both are kept, which
    are read more than once.
    """
    # Finding a header costs as much as reading the record, and the cache would keep what nobody asks for.
    unused = {"newest", HEADER} - {_header_read(config)}
    outputs, records = outputs.drop(*unused).persist(kept), records.drop(*unused)
    if config["tuples"] in WITH_EVENT_TIME:
        records = with_late(with_events(records).drop("value").persist(kept), config)
    else:
        records = records.withColumn("late", F.lit(False)).persist(kept)
    tuples, counts = KINDS[config["tuples"]](records, outputs, config)
    if config["tuples"] in WITH_RAW:
        records = records.where("NOT closing")
    return {
        "records": records.drop(
            "value", "event", "key", "raw", "topic", "timestampType", "closing", "undrained", HEADER
        ),
        "tuples": tuples,
        "counts": counts,
    }


def _header_read(config: Config) -> str | None:
    """The header by which an output tells what it is of."""
    if config["tuples"] == "nexmark":
        return "newest"
    return {"newest": "newest", "header": HEADER}.get(config.get("reflects", ""))


def write(frame: DataFrame, target: Path) -> None:
    """Writes one Parquet file at `target`, replacing an earlier try of the same attempt."""
    folder = target.with_suffix(".parts")
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder))
    part = next(folder.glob("part-*.parquet"))
    part.rename(target)
    shutil.rmtree(folder)


def pieces_of(batches: Sequence[Mapping[str, Any]]) -> int:
    """How many tasks share the work on the input that these batches took."""
    ends: dict[str, int] = {}
    for batch in batches:
        ends |= {partition: max(end, ends.get(partition, 0)) for partition, end in batch["end_offsets"].items()}
    return max(FEWEST_PIECES, -(-sum(ends.values()) // RECORDS_A_PIECE))


def harvest_topics(spark: SparkSession, arguments: Sequence[str]) -> None:
    """The program on a Spark that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    options, _ = parser.parse_known_args(arguments)
    config: Config = json.loads(options.config.read_text())
    known = json.loads(Path(config["batches"]).read_text())
    batches = known["batches"]
    target = Path(config["target"])
    target.mkdir(parents=True, exist_ok=True)

    pieces = pieces_of(batches)
    # Set for each harvest: the session may be one that stays.
    spark.conf.set("spark.sql.shuffle.partitions", pieces)
    topic = read_topic(spark, config, config["input_topic"], pieces)
    inputs = inputs_of(topic, raw=config["tuples"] in WITH_RAW)
    written = read_topic(spark, config, config["output_topic"], pieces)
    outputs = outputs_of(written, config.get("emitted_ahead_ms", 0))
    # What is kept in the heap takes the room of what a task sorts, and leaves no piece of it that is large enough.
    kept = StorageLevel.DISK_ONLY if pieces > FEWEST_PIECES else StorageLevel.MEMORY_AND_DISK_DESER
    tables = harvest(with_batches(inputs, batches, known.get("reached")), outputs, config, kept)
    for name, table in tables.items():
        write(table, target / f"{name}.parquet")


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    harvest_topics(spark, sys.argv[1:])
    spark.stop()


# Which state lineage and batch took each input record: the first batch whose end offset exceeds the record's; and
# what lies beyond all that was committed.


def ranges_of(batches: list[dict[str, Any]]) -> list[tuple[int, int, int, int, int]]:
    """(lineage, batch, partition, low, high): the offsets [low, high) that each committed batch took.

    A lineage begins where its first batch says it started, on every partition, whatever that batch took.
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
    """Offsets in a bucket: the mean length of a range, so that there are at most twice as many pieces as ranges."""
    return max(1, -(-sum(high - low for *_, low, high in ranges) // max(1, len(ranges))))


def reached_of(batches: list[dict[str, Any]], reached: Mapping[str, int]) -> dict[str, int]:
    """By partition: up to which offset the input was committed, or passed over by a lineage that began behind it.

    `reached`: what the query says that it committed at the end; empty where it does not.
    """
    ends = [item[name] or {} for item in batches for name in ("end_offsets", "start_offsets") if item.get(name)]
    if reached:
        ends = [reached, *(item["start_offsets"] for item in batches if item.get("start_offsets"))]
    furthest: dict[str, int] = {}
    for one in ends:
        furthest |= {partition: max(end, furthest.get(partition, 0)) for partition, end in one.items()}
    return furthest


def is_undrained(reached: Mapping[str, int]) -> Column:
    """Whether an input record lies beyond what was committed: then it was not processed, and is no loss."""
    ends = F.from_json(F.lit(json.dumps(reached)), "map<string, bigint>")
    return F.col("offset") >= F.coalesce(F.try_element_at(ends, F.col("partition").cast("string")), F.lit(0))


def with_batches(
    records: DataFrame, batches: list[dict[str, Any]], reached: Mapping[str, int] | None = None
) -> DataFrame:
    """Adds lineage and batch: the first batch whose end offset on the partition exceeds the offset; and `undrained`,
    as `is_undrained` says. `reached`: as in batches.json.

    Records that were never committed keep nulls. Each range is cut at the borders of buckets of offsets, and a record
    meets only the ranges of its bucket: to compare it with all of its partition would take time that grows with the
    square of a run's length.
    """
    ranges = ranges_of(batches)
    width = bucket_width(ranges)

    def bucket(offset: str) -> Column:
        return F.floor(F.col(offset) / F.lit(width))

    # As JSON text rather than as Python rows, which would cost the start of a Python worker.
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
    # The ranges are few beside the records, so they are broadcast.
    known = records.join(F.broadcast(pieces), inside, "left").drop("taken", "low", "high", "last", "bucket")
    return known.withColumn("undrained", is_undrained(reached_of(batches, reached or {})))


if __name__ == "__main__":
    main()
