"""CPU time of generating Nexmark events in this JVM, with discarded results.

    spark-submit nexmark_generation_cost.py --config FILE

The configuration: rules (of `nexmark.events.EventRules`), events, warm_ups, repetitions, reads (a list of lists of
kinds), target. The target receives a JSON list of {"reads", "cpu_s"} with one entry per repetition, without warm-ups,
during which Java compiles.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil
from nexmark.events import EventRules, NexmarkEventSource
from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> psutil.Process:
    """Return Spark's process, which is driver and executor."""
    return psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def cpu_s(jvm: psutil.Process) -> float:
    """Return its used CPU time in s."""
    used = jvm.cpu_times()
    return float(used.user + used.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    options, _ = parser.parse_known_args()
    config = json.loads(options.config.read_text())
    spark = SparkSession.builder.getOrCreate()
    numbers = spark.range(0, config["events"], 1, 2).withColumnRenamed("id", "n")
    rules, jvm = EventRules.of(config["rules"]), jvm_of(spark)
    found = []
    for reads in config["reads"]:
        events = NexmarkEventSource(numbers, rules, reads)
        for repetition in range(config["warm_ups"] + config["repetitions"]):
            before = cpu_s(jvm)
            for name in reads:
                getattr(events, name)().write.format("noop").mode("append").save()
            if repetition >= config["warm_ups"]:
                found.append({"reads": reads, "cpu_s": cpu_s(jvm) - before})
    Path(config["target"]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
