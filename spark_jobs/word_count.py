"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word. The whole computation runs in Spark's native columns, so no
Python worker is started. Output records: key = word, value = its count so far, in update mode;
the Kafka sink is at-least-once, so a batch that is tried again emits its counts again.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from progress import ProgressLog  # beside this file, which spark-submit puts on the path
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def word_count(lines: DataFrame) -> DataFrame:
    """Input: Kafka records, whose `value` holds words separated by single spaces. Output: key, value."""
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    counts = words.groupBy("word").count()
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: dict[str, Any] = json.loads(options.config.read_text())

    spark = SparkSession.builder.getOrCreate()
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    lines = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("subscribe", config["input_topic"])
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        word_count(lines)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("topic", config["output_topic"])
        .option("checkpointLocation", config["checkpoint"])
        .outputMode("update")
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
