"""Reads an experiment's input and output topics once and writes what the judge needs.

One Spark job per harvest: starting Spark costs seconds, so per-tuple latency, the audit's batch
recomputation and the record table are all made here. What can be summed up from these tables in
memory is left to `faultline.judge`. Definitions: docs/metrics.md.

    spark-submit harvest.py --config FILE

The configuration is JSON: bootstrap, input_topic, output_topic, batches (path of batches.json),
tuples (`words`: a record holds many; `id`: a record is one, known by partition and offset), target (folder to
write). Written, each as one Parquet file:

- records: one row an input record: partition, offset, timestamp_ms, primer, lineage, batch
- tuples: lineage, batch, produced_ms, emitted_ms (null: never reflected), primer, n
- counts: key, expected (null: a key the input does not hold), final (null: never emitted; the sum over
  state lineages, each at its last output), outputs, reemitted, unreadable (outputs whose value is not a count)
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F


def read_topic(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Every record of a topic, with headers."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )


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


def batch_ranges(spark: SparkSession, batches: list[dict[str, Any]]) -> DataFrame:
    """The rows of `ranges_of` as a table."""
    rows = ranges_of(batches)
    # As JSON text rather than as Python rows, which would cost the start of a Python worker.
    names = ("lineage", "batch", "partition", "low", "high")
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    schema = "array<struct<lineage: int, batch: int, partition: int, low: bigint, high: bigint>>"
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), schema)))


def with_batches(records: DataFrame, ranges: DataFrame) -> DataFrame:
    """Adds lineage and batch: the first batch whose end offset on the partition exceeds the offset.

    Records that were never committed keep nulls. The ranges are small, so they are broadcast.
    """
    taken = F.broadcast(ranges)
    inside = (
        (records["partition"] == taken["partition"])
        & (records["offset"] >= taken["low"])
        & (records["offset"] < taken["high"])
    )
    return records.join(taken, inside, "left").drop(taken["partition"]).drop("low", "high")


def reflected(words: DataFrame, outputs: DataFrame) -> DataFrame:
    """For each (lineage, batch, key): when the first output with count >= k was emitted.

    k is the key's occurrences in all batches up to this one. Walking counts downwards, the earliest
    emission seen so far is that of the first output that is large enough; outputs come before
    groups of equal count. One sort replaces a join of every group with every output of its key.
    """
    groups = words.where("batch is not null").groupBy("lineage", "batch", "key").agg(F.count("*").alias("n"))
    upto = Window.partitionBy("lineage", "key").orderBy("batch")
    wanted = groups.select(
        "lineage", "key", "batch", F.sum("n").over(upto).alias("k"), F.lit(None).cast("long").alias("emitted_ms")
    )
    seen = outputs.select(
        "lineage",
        "key",
        F.lit(None).cast("int").alias("batch"),
        F.col("count").alias("k"),
        "emitted_ms",
    )
    downwards = Window.partitionBy("lineage", "key").orderBy(F.desc("k"), F.col("batch").asc_nulls_first())
    return (
        seen.unionByName(wanted)
        .withColumn("emitted_ms", F.min("emitted_ms").over(downwards))
        .where("batch is not null")
        .select("lineage", "batch", "key", "emitted_ms")
    )


def group_tuples(words: DataFrame, emissions: DataFrame) -> DataFrame:
    """Tuples that share batch, production and emission time, with their number."""
    return (
        words.join(emissions, ["lineage", "batch", "key"], "left")
        .groupBy("lineage", "batch", "produced_ms", "emitted_ms", "primer")
        .agg(F.count("*").alias("n"))
    )


def count_keys(words: DataFrame, outputs: DataFrame) -> DataFrame:
    """Per key: the count a batch job gives, the last one emitted, and what kinds of outputs there were.

    A new state lineage counts from nothing, so what was counted at all is the sum of the lineages' last counts.
    """
    expected = words.groupBy("key").agg(F.count("*").alias("expected"))
    # All outputs of a key stand in one partition, so the highest offset is the last output.
    by_lineage = outputs.groupBy("key", "lineage").agg(
        F.max_by("count", "offset").alias("final"),
        F.count("*").alias("outputs"),
        (F.count("count") - F.count_distinct("count")).alias("reemitted"),
        (F.count("*") - F.count("count")).alias("unreadable"),
    )
    final = by_lineage.groupBy("key").agg(
        *(F.sum(name).alias(name) for name in ("final", "outputs", "reemitted", "unreadable"))
    )
    return expected.join(final, "key", "full_outer").fillna(0, ["outputs", "reemitted", "unreadable"])


def write(frame: DataFrame, target: Path) -> None:
    """Writes one Parquet file at `target`, replacing an earlier try of the same attempt."""
    folder = target.with_suffix(".parts")
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder))
    part = next(folder.glob("part-*.parquet"))
    part.rename(target)
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    options, _ = parser.parse_known_args()
    config = json.loads(options.config.read_text())
    batches = json.loads(Path(config["batches"]).read_text())["batches"]
    target = Path(config["target"])
    target.mkdir(parents=True, exist_ok=True)

    spark = SparkSession.builder.getOrCreate()
    primer = F.coalesce(F.exists("headers", lambda header: header.key == "phase"), F.lit(False))
    records = with_batches(
        read_topic(spark, config["bootstrap"], config["input_topic"]).select(
            "partition",
            "offset",
            F.unix_millis("timestamp").alias("timestamp_ms"),
            primer.alias("primer"),
            F.col("value").cast("string").alias("value"),
        ),
        batch_ranges(spark, batches),
    ).cache()
    identity = F.concat_ws(":", "partition", "offset")
    words = records.select(
        "lineage",
        "batch",
        "primer",
        F.col("timestamp_ms").alias("produced_ms"),
        (identity if config["tuples"] == "id" else F.explode(F.split("value", " "))).alias("key"),
    )
    # Engines without state lineages of their own name none: all of their outputs belong to the first.
    lineage = F.get(F.filter("headers", lambda header: header.key == "lineage"), F.lit(0)).getField("value")
    outputs = (
        read_topic(spark, config["bootstrap"], config["output_topic"])
        .select(
            F.col("key").cast("string").alias("key"),
            F.expr("try_cast(cast(value as string) as bigint)").alias("count"),
            F.unix_millis("timestamp").alias("emitted_ms"),
            "offset",
            F.coalesce(lineage.cast("string").cast("int"), F.lit(0)).alias("lineage"),
        )
        .cache()
    )

    write(records.drop("value"), target / "records.parquet")
    write(group_tuples(words, reflected(words, outputs.where("count is not null"))), target / "tuples.parquet")
    write(count_keys(words, outputs), target / "counts.parquet")
    spark.stop()


if __name__ == "__main__":
    main()
