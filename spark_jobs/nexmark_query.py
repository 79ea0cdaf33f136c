"""Runs one query of Nexmark.

    spark-submit nexmark_query.py --config FILE

With `source` engine over events that the engine makes, as fast as it can; the results are thrown away. A batch has a
fixed number of events and follows the one before it at once. With `preload_events` the query first fills its state with
so many, ends, and begins again from its checkpoint. With `source` kafka between two topics, like the other workloads.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from nexmark.catalogue import NEWEST, Query, Streams, load, output
from nexmark.events import Events, Rules
from nexmark.json_events import parsed
from progress import ProgressLog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from running import run

POLL_S = 0.1

Config = dict[str, Any]


def streams(spark: SparkSession, config: Config, query: Query) -> Streams:
    """The events of the configuration as three streams, with watermarks where the query needs them."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", config["batch_events"])
        .option("numPartitions", config["slots"])
        .load()
        .select(F.col("value").alias("n"))
    )
    events = Events(numbers, Rules.of(config["rules"]))
    made = Streams(events.person(), events.auction(), events.bid())
    return made.with_watermark(f"{config['rules']['watermark_s']} seconds") if query.event_time else made


def start(spark: SparkSession, config: Config) -> StreamingQuery:
    """The query, from its checkpoint if there is one."""
    query = load(config["query"])
    results = query.build(spark, streams(spark, config, query)).drop(NEWEST)
    writer = results.writeStream.format("noop").outputMode(query.mode).queryName(query.name)
    writer = writer.option("checkpointLocation", config["checkpoint"])
    return writer.trigger(processingTime="0 seconds").start()


def preload(running: StreamingQuery, checkpoint: Path, batches: int) -> None:
    """Lets the query commit so many batches, and ends it. Raises what the query raises."""
    while not (checkpoint / "commits" / str(batches - 1)).exists():
        running.awaitTermination(POLL_S)
    running.stop()


def through_kafka(config: Config) -> None:
    """The life of the other workloads: warm-up, the measured query, the stop file."""
    query = load(config["query"])

    def results(records: DataFrame, config: Config) -> DataFrame:
        streams = parsed(records)
        if query.event_time:
            streams = streams.with_watermark(f"{config['rules']['watermark_s']} seconds")
        return output(query.build(records.sparkSession, streams), query)

    run(results, __doc__, output_mode=query.mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: Config = json.loads(options.config.read_text())
    if config["source"] == "kafka":
        through_kafka(config)
        return
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]  # PySpark has no public count
    while context.getExecutorMemoryStatus().size() <= config["executors"]:  # the driver is counted too
        time.sleep(POLL_S)
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    running = start(spark, config)
    filling = -(-config["preload_events"] // config["batch_events"])
    if filling:
        preload(running, Path(config["checkpoint"]), filling)
        running = start(spark, config)
    while not running.awaitTermination(POLL_S):
        if Path(config["stop_file"]).exists():
            running.stop()
    spark.stop()


if __name__ == "__main__":
    main()
