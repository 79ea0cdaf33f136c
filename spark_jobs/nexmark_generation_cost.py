"""What making Nexmark's events costs by itself: CPU time of this JVM for so many numbers, the results thrown away.

    spark-submit nexmark_source.py --config FILE

The configuration: rules (of `nexmark.events.Rules`), events, warm_ups, repetitions, reads (a list of lists of kinds),
target. Written to `target` as JSON: a list of {"reads", "cpu_s"}, one entry for each repetition; the warm-ups, in which
Java still compiles, are left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil
from nexmark.events import EventRules, NexmarkEventSource
from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> psutil.Process:
    """The process that Spark runs in: driver and executor in one."""
    return psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def cpu_s(jvm: psutil.Process) -> float:
    """CPU seconds that it has used."""
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
