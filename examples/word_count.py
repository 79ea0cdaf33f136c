"""Words of a text, each with its running count: the smallest job that says which output reflects which input.

./faultline job check examples/word_count.py
./faultline run query job=examples/word_count.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# Read, and never run: how it writes, and what of an output tells which input it is of.
JOB = {"output_mode": "update", "reflects": "count"}


def words(records: DataFrame) -> DataFrame:
    """partition, offset, key: one row for each word of each record."""
    split = F.explode(F.split(F.col("value").cast("string"), " "))
    return records.select("partition", "offset", split.alias("key"))


def query(records: DataFrame, config: dict[str, str]) -> DataFrame:
    """key: the word; value: how often it came so far."""
    counts = words(records).groupBy("key").count()
    return counts.select("key", F.col("count").cast("string").alias("value"))


def tuples(records: DataFrame) -> DataFrame:
    """What is counted: the n-th row with a key is reflected by the first output of that key that counts n or more."""
    return words(records)
