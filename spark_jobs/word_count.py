"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word. As `word_count` the whole computation runs in Spark's native columns,
so no Python worker is started; as `word_count_python` a Python function splits the lines, on purpose:
it is the same topology with Python workers in it, which faults can hit and whose cost can be seen.
Output records: key = word, value = its count so far, header `lineage`, in update mode; the Kafka sink
is at-least-once, so a batch that is tried again emits its counts again.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from progress import ProgressLog  # beside this file, which spark-submit puts on the path
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S = 0.2


def split_in_python(line: Column) -> Column:
    """The words of a line, split by a Python function in Arrow batches."""

    def split(text: str) -> list[str]:
        return text.split(" ")

    return F.udf(split, "array<string>", useArrow=True)(line)


def word_count(lines: DataFrame, *, python: bool) -> DataFrame:
    """Input: Kafka records, whose `value` holds words separated by single spaces. Output: key, value."""
    line = F.col("value").cast("string")
    words = lines.select(F.explode(split_in_python(line) if python else F.split(line, " ")).alias("word"))
    counts = words.groupBy("word").count()
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


def counting(
    spark: SparkSession,
    config: dict[str, Any],
    topic: str,
    checkpoint: str,
    source_options: dict[str, str],
    lineage: int = 0,
) -> DataStreamWriter:
    """The whole query, from the input topic to `topic`; the caller sets the trigger.

    Only lineage 0 begins at the start of the topic: a later one stands for a job that lost everything.
    """
    lines = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("subscribe", config["input_topic"])
        .option("startingOffsets", "latest" if lineage else "earliest")
        .options(**source_options)
        .load()
    )
    mark = F.struct(F.lit("lineage").alias("key"), F.lit(str(lineage)).cast("binary").alias("value"))
    return (
        word_count(lines, python=config["python"])
        .withColumn("headers", F.array(mark))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
    )


def warm_up(spark: SparkSession, config: dict[str, Any]) -> None:
    """Works through the primer in small batches, with a throw-away topic and checkpoint.

    The same plan on the same executors, so that the measured query starts with compiled code. Only
    the first incarnation does it: a restarted driver is measured as cold as it is.
    """
    plan = config["warm_up"]
    options = {"maxOffsetsPerTrigger": str(plan["records_per_batch"])}
    writer = counting(spark, config, plan["topic"], plan["checkpoint"], options).trigger(availableNow=True)
    # Planning took as long as the executors' start; now all of them are to be warmed.
    await_executors(spark, config["executors"])
    writer.start().awaitTermination()


def await_executors(spark: SparkSession, executors: int) -> None:
    """Returns when all executors have registered: a state that settled on fewer would move later."""
    context = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]  # PySpark has no public count
    while context.getExecutorMemoryStatus().size() <= executors:  # the driver is counted too
        time.sleep(0.05)


class Lineages:
    """The state lineage that the workload supervisor asks for (commit mode `none`); otherwise always 0.

    The supervisor writes {"lineage": n, "stop": bool} to `control`; this program answers that lineage n
    has stopped by writing n to `stopped`, and starts the next one once it is told its number.
    """

    def __init__(self, paths: dict[str, str] | None) -> None:
        """`paths`: {"control", "stopped"}, or None for the other commit modes."""
        self._control = Path(paths["control"]) if paths else None
        self._stopped = Path(paths["stopped"]) if paths else None

    def wanted(self) -> tuple[int, bool]:
        """Number of the lineage, and whether it is to stop."""
        if self._control is None:
            return 0, False
        word = json.loads(self._control.read_text())
        return int(word["lineage"]), bool(word["stop"])

    def confirm(self, lineage: int) -> None:
        """Says that `lineage` has stopped."""
        if self._stopped is not None:
            self._stopped.write_text(str(lineage))


def start(spark: SparkSession, config: dict[str, Any], lineage: int) -> StreamingQuery:
    """The measured query on its trigger."""
    checkpoint = f"{config['checkpoint']}/lineage-{lineage}" if config["lineages"] else config["checkpoint"]
    return (
        counting(spark, config, config["output_topic"], checkpoint, {}, lineage)
        .trigger(processingTime=f"{round(config['trigger_s'] * 1000)} milliseconds")
        .start()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: dict[str, Any] = json.loads(options.config.read_text())

    spark = SparkSession.builder.getOrCreate()
    if config["first"] and not Path(config["first"]).exists():
        Path(config["first"]).touch()
        warm_up(spark, config)
    await_executors(spark, config["executors"])
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    lineages = Lineages(config["lineages"])
    lineage, _ = lineages.wanted()
    query = start(spark, config, lineage)
    end = Path(config["stop_file"])
    # awaitTermination raises the query's own error, which ends this program with status 1.
    while not query.awaitTermination(POLL_S):
        if end.exists():
            query.stop()
            continue
        wanted, stop = lineages.wanted()
        if stop and wanted == lineage:
            query.stop()
            lineages.confirm(lineage)
            while (wanted := lineages.wanted()[0]) == lineage and not end.exists():
                time.sleep(POLL_S / 10)
            lineage = wanted
            query = start(spark, config, lineage)
    spark.stop()


if __name__ == "__main__":
    main()
