"""Repeat each line as configured. Output: key = value = the line."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, run


def echo(lines: DataFrame, config: Config) -> DataFrame:
    """Repeat lines. Input: Kafka records, whose `value` is a line. Output: key, value."""
    repeated = F.array_repeat(F.col("value").cast("string"), config["echoes"])
    return lines.select(F.explode(repeated).alias("value")).select(F.col("value").alias("key"), "value")


if __name__ == "__main__":
    run(echo, __doc__)
