"""What making Nexmark's events costs by itself: CPU time of this JVM for so many numbers, the results thrown away.

    spark-submit nexmark_source.py --config FILE

The configuration: rules (of `nexmark.events.Rules`), events, repetitions, reads (a list of lists of kinds), target.
Written to `target` as JSON: a list of {"reads", "cpu_s"}, one entry for each repetition; the first run of each list of
kinds, in which Java still compiles, is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nexmark.events import Events, Rules
from pyspark.sql import SparkSession


def cpu_s(spark: SparkSession) -> float:
    """CPU seconds that this JVM has used."""
    factory = spark._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    return float(factory.getOperatingSystemMXBean().getProcessCpuTime()) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    options, _ = parser.parse_known_args()
    config = json.loads(options.config.read_text())
    spark = SparkSession.builder.getOrCreate()
    numbers = spark.range(0, config["events"], 1, 2).withColumnRenamed("id", "n")
    rules = Rules.of(config["rules"])
    found = []
    for reads in config["reads"]:
        events = Events(numbers, rules, reads)
        for repetition in range(config["repetitions"] + 1):
            before = cpu_s(spark)
            for name in reads:
                getattr(events, name)().write.format("noop").mode("append").save()
            if repetition:
                found.append({"reads": reads, "cpu_s": cpu_s(spark) - before})
    Path(config["target"]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
