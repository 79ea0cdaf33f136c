"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word. The whole computation runs in Spark's native columns, so no
Python worker is started. Output records: key = word, value = its count so far, in update mode;
the Kafka sink is at-least-once, so a batch that is tried again emits its counts again.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from progress import ProgressLog  # beside this file, which spark-submit puts on the path
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter


def word_count(lines: DataFrame) -> DataFrame:
    """Input: Kafka records, whose `value` holds words separated by single spaces. Output: key, value."""
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    counts = words.groupBy("word").count()
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


def counting(
    spark: SparkSession, config: dict[str, Any], topic: str, checkpoint: str, source_options: dict[str, str]
) -> DataStreamWriter:
    """The whole query, from the input topic to `topic`; the caller sets the trigger."""
    lines = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("subscribe", config["input_topic"])
        .option("startingOffsets", "earliest")
        .options(**source_options)
        .load()
    )
    return (
        word_count(lines)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: dict[str, Any] = json.loads(options.config.read_text())

    spark = SparkSession.builder.getOrCreate()
    if not Path(config["checkpoint"]).exists():
        warm_up(spark, config)
    await_executors(spark, config["executors"])
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    query = (
        counting(spark, config, config["output_topic"], config["checkpoint"], {})
        .trigger(processingTime=f"{round(config['trigger_s'] * 1000)} milliseconds")
        .start()
    )
    stop = Path(config["stop_file"])
    # awaitTermination raises the query's own error, which ends this program with status 1.
    while not query.awaitTermination(0.2):
        if stop.exists():
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
