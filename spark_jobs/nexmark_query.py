"""Program of one Nexmark query.

    spark-submit nexmark_query.py --config FILE

With `source` engine, the engine generates events as fast as it can, and results are discarded. Batches have a fixed
number of events and follow each other immediately. With `preload_events` the query first fills its state with that
number of events, stops, and restarts from its checkpoint. With `source` kafka it runs between two topics like other
workloads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nexmark.catalogue import NexmarkQuery, Streams, load, parse_events, result_columns, to_kafka_records
from nexmark.events import EventRules, NexmarkEventSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from workload_runner import Config, ProgressLog, await_executors, milliseconds, newest_commit, run

POLL_S = 0.1
RETAINED_BATCHES = "spark.sql.streaming.minBatchesToRetain"
# During the preload no batch is evidence, and many versions of a large state would fill the disk.
PRELOAD_RETAINED_BATCHES = 5


def streams(spark: SparkSession, config: Config, query: NexmarkQuery) -> Streams:
    """Return the configured events as three streams, with watermarks if the query needs them."""
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
    """Start the query, from its checkpoint if there is one."""
    query = load(config["query"])
    results = result_columns(query.build(spark, streams(spark, config, query)), query)
    writer = results.writeStream.format("noop").outputMode(query.mode).queryName(query.name)
    writer = writer.option("checkpointLocation", config["checkpoint"])
    return writer.trigger(processingTime="0 seconds").start()


def committed(checkpoint: Path) -> int:
    """Return the number of committed batches, including purged ones."""
    return newest_commit(checkpoint) + 1


def preload(spark: SparkSession, config: Config, batches: int, end: Path) -> None:
    """Run the query until it has committed this number of batches.

    Raises the errors of the query.
    """
    measured = spark.conf.get(RETAINED_BATCHES)
    spark.conf.set(RETAINED_BATCHES, PRELOAD_RETAINED_BATCHES)
    running = start(spark, config)
    while committed(Path(config["checkpoint"])) < batches and not end.exists():
        running.awaitTermination(POLL_S)
    running.stop()
    spark.conf.set(RETAINED_BATCHES, measured)


def run_through_kafka(config: Config) -> None:
    """Run the query like other workloads: warm-up, measured query, stop file."""
    query = load(config["query"])

    def results(records: DataFrame, config: Config) -> DataFrame:
        taken = query.timed(parse_events(records), milliseconds(config["watermark_s"]))
        return to_kafka_records(query.build(records.sparkSession, taken), query)

    run(results, __doc__, output_mode=query.mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: Config = json.loads(options.config.read_text())
    if config["source"] == "kafka":
        run_through_kafka(config)
        return
    spark = SparkSession.builder.getOrCreate()
    await_executors(spark, config["executors"])
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    filling, end = config["preload_batches"], Path(config["stop_file"])
    # A restarted driver finds the state filled.
    if committed(Path(config["checkpoint"])) < filling:
        preload(spark, config, filling, end)
    running = start(spark, config)
    while not running.awaitTermination(POLL_S):
        if end.exists():
            running.stop()
    spark.stop()


if __name__ == "__main__":
    main()
