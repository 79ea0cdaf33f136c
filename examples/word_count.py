"""Running word count: the smallest job that identifies which output reflects which input.

./faultline job check examples/word_count.py
./faultline run query job=examples/word_count.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# A literal, because Faultline reads it without running the file: output mode, and the value that identifies the input.
JOB = {"output_mode": "update", "reflects": "count"}


def words(records: DataFrame) -> DataFrame:
    """Return one row (partition, offset, key) for each word of each record."""
    split = F.explode(F.split(F.col("value").cast("string"), " "))
    return records.select("partition", "offset", split.alias("key"))


def query(records: DataFrame, config: dict[str, str]) -> DataFrame:
    """Return key (the word) and value (its count so far)."""
    counts = words(records).groupBy("key").count()
    return counts.select("key", F.col("count").cast("string").alias("value"))


def tuples(records: DataFrame) -> DataFrame:
    """Return the counted rows: the first output of a key with a count >= n reflects its n-th row."""
    return words(records)
