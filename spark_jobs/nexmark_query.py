"""Runs one query of Nexmark.

    spark-submit nexmark_query.py --config FILE

With `source` engine over events that the engine makes, as fast as it can; the results are thrown away. A batch has a
fixed number of events and follows the one before it at once. With `preload_events` the query first fills its state with
so many, ends, and begins again from its checkpoint. With `source` kafka between two topics, like the other workloads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nexmark.catalogue import NexmarkQuery, Streams, load, output, parsed, plain
from nexmark.events import EventRules, NexmarkEventSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from workload_runner import Config, ProgressLog, await_executors, milliseconds, newest_commit, run

POLL_S = 0.1
RETAINED = "spark.sql.streaming.minBatchesToRetain"
# While the state is filled no batch is evidence, and every version of a large state would fill the disk.
RETAINED_WHILE_FILLING = 5


def streams(spark: SparkSession, config: Config, query: NexmarkQuery) -> Streams:
    """The events of the configuration as three streams, with watermarks where the query needs them."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", config["batch_events"])
        .option("numPartitions", config["slots"])
        .load()
        .select(F.col("value").alias("n"))
    )
    events = NexmarkEventSource(numbers, EventRules.of(config["rules"]), config["reads"])
    made = Streams(events.person(), events.auction(), events.bid())
    return query.timed(made, milliseconds(config["watermark_s"]))


def start(spark: SparkSession, config: Config) -> StreamingQuery:
    """The query, from its checkpoint if there is one."""
    query = load(config["query"])
    results = plain(query.build(spark, streams(spark, config, query)), query)
    writer = results.writeStream.format("noop").outputMode(query.mode).queryName(query.name)
    writer = writer.option("checkpointLocation", config["checkpoint"])
    return writer.trigger(processingTime="0 seconds").start()


def committed(checkpoint: Path) -> int:
    """How many batches the checkpoint has seen committed, older ones that were purged included."""
    return newest_commit(checkpoint) + 1


def preload(spark: SparkSession, config: Config, batches: int, end: Path) -> None:
    """Runs the query until it has committed so many batches, and ends it. Raises what the query raises."""
    measured = spark.conf.get(RETAINED)
    spark.conf.set(RETAINED, RETAINED_WHILE_FILLING)
    running = start(spark, config)
    while committed(Path(config["checkpoint"])) < batches and not end.exists():
        running.awaitTermination(POLL_S)
    running.stop()
    spark.conf.set(RETAINED, measured)


def through_kafka(config: Config) -> None:
    """The life of the other workloads: warm-up, the measured query, the stop file."""
    query = load(config["query"])

    def results(records: DataFrame, config: Config) -> DataFrame:
        taken = query.timed(parsed(records), milliseconds(config["watermark_s"]))
        return output(query.build(records.sparkSession, taken), query)

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
    await_executors(spark, config["executors"])
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    filling, end = config["preload_batches"], Path(config["stop_file"])
    # A driver that was started again finds the state filled.
    if committed(Path(config["checkpoint"])) < filling:
        preload(spark, config, filling, end)
    running = start(spark, config)
    while not running.awaitTermination(POLL_S):
        if end.exists():
            running.stop()
    spark.stop()


if __name__ == "__main__":
    main()
