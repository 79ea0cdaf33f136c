"""Nexmark events written to a Kafka topic as JSON.

    spark-submit nexmark_topic.py --config FILE

The configuration: rules (of `nexmark.events.EventRules`), first and last event (last exclusive), partitions, topic,
bootstrap, kafka_options. Event n goes to partition n modulo `partitions`, in order.
"""

from __future__ import annotations

from nexmark.events import EventRules, NexmarkEventSource
from pyspark.sql import SparkSession
from workload_runner import read_config


def main() -> None:
    config = read_config(__doc__)
    first, last, partitions = config["first"], config["last"], config["partitions"]
    each = (last - first) // partitions
    spark = SparkSession.builder.getOrCreate()
    # Each task has a range of its own; its events go to one partition.
    places = spark.range(0, each * partitions, 1, partitions)
    numbers = places.selectExpr(f"{first} + (id % {each}) * {partitions} + id div {each} AS n")
    events = NexmarkEventSource(numbers, EventRules.of(config["rules"])).as_json()
    (
        events.selectExpr("value", f"CAST(n % {partitions} AS INT) AS partition")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .options(**config["kafka_options"])
        .option("topic", config["topic"])
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main()
