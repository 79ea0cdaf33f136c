"""Word count with full history, without windows: split lines, count words, emit each changed count.

    spark-submit word_count.py --config FILE

State is one row per distinct word: its count, and the sum of the hashes of its occurrences. `word_count` runs in
Spark's native columns without Python workers. `word_count_python` splits lines in a Python function, which adds Python
workers as fault victims and shows their cost. Output records: key = word, value = `<count> <high> <low>`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, run


def split_in_python(line: Column) -> Column:
    """Return the words of a line, split by a Python function in Arrow batches."""

    def split(text: str) -> list[str]:
        return text.split(" ")

    return F.udf(split, "array<string>", useArrow=True)(line)


def word_count(lines: DataFrame, config: Config) -> DataFrame:
    """Return key and value for Kafka records whose `value` has words separated by single spaces."""
    line = F.col("value").cast("string")
    split = split_in_python(line) if config["python"] else F.split(line, " ")
    words = lines.select("partition", "offset", F.posexplode(split).alias("position", "word"))
    hashed = words.select("word", *halves(tuple_hash("partition", "offset", "position")))
    counts = hashed.groupBy("word").agg(F.count("*").alias("count"), *sum_columns())
    value = F.concat_ws(" ", *(F.col(name).cast("string") for name in ("count", *SUMS)))
    return counts.select(F.col("word").alias("key"), value.alias("value"))


# Sums of hashes, which identify the counted tuples, for this query and the harvest. Each tuple has a 64-bit hash of its
# input position. A key's sum of hashes modulo 2^64 differs if one tuple was lost and another counted twice, although
# the count is equal. The sum is kept as two sums of signed 32-bit halves, high and low, because a sum of whole hashes
# overflows with the second one, which is an error in Spark. A sum of halves overflows after 2^32 tuples of a key at the
# earliest.


# Columns of a key's sum, in the order of output values.
SUMS = ("high", "low")
HALF = 32


def tuple_hash(partition: Column | str, offset: Column | str, position: Column | str) -> Column:
    """Return the hash of the tuple at `position` (from 0) of the record at (partition, offset).

    The types are cast, because the hash depends on the width of numbers.
    """
    places = ((partition, "int"), (offset, "bigint"), (position, "int"))
    return F.xxhash64(*((F.col(one) if isinstance(one, str) else one).cast(kind) for one, kind in places))


def halves(hashed: Column) -> list[Column]:
    """Return the columns SUMS of a hash: its upper and lower half, as signed 32-bit numbers."""
    low = F.shiftright(F.shiftleft(hashed, HALF), HALF)
    return [F.shiftright(hashed, HALF).alias("high"), low.alias("low")]


def sum_columns() -> list[Column]:
    """Return the aggregations of the columns SUMS."""
    return [F.sum(name).alias(name) for name in SUMS]


if __name__ == "__main__":
    run(word_count, __doc__)
