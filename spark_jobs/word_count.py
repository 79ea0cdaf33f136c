"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word: its count, and the sum of the hashes of what was counted (see word_count.py). As
`word_count` the whole computation runs in Spark's native columns, so no Python worker is started; as
`word_count_python` a Python function splits the lines, on purpose: it is the same topology with Python workers in it,
which faults can hit and whose cost can be seen. Output records: key = word, value = `<count> <high> <low>` so far.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, run


def split_in_python(line: Column) -> Column:
    """The words of a line, split by a Python function in Arrow batches."""

    def split(text: str) -> list[str]:
        return text.split(" ")

    return F.udf(split, "array<string>", useArrow=True)(line)


def word_count(lines: DataFrame, config: Config) -> DataFrame:
    """Input: Kafka records, whose `value` holds words separated by single spaces. Output: key, value."""
    line = F.col("value").cast("string")
    split = split_in_python(line) if config["python"] else F.split(line, " ")
    words = lines.select("partition", "offset", F.posexplode(split).alias("position", "word"))
    hashed = words.select("word", *halves(tuple_hash("partition", "offset", "position")))
    counts = hashed.groupBy("word").agg(F.count("*").alias("count"), *summed())
    value = F.concat_ws(" ", *(F.col(name).cast("string") for name in ("count", *SUMS)))
    return counts.select(F.col("word").alias("key"), value.alias("value"))


# Sums of hashes, which show what was counted where a count shows only how much: for this query and for the harvest.
# Each tuple has a hash of 64 bits, of the place that it comes from. A key's sum of them, modulo 2^64, differs when
# one of its tuples was lost and another counted twice, though its count is the same. It is kept as two sums of half a
# hash each, high and low, as signed numbers (a lower half below 0 makes the hash that both stand for 2^32 less, which
# is as good a one). A sum of whole hashes overflows with the second one, which is an error in Spark; one of halves
# takes 2^32 tuples of a key to do so at the very worst, and halves of both signs do not add up so far.


# The columns of a key's sum, in the order in which outputs carry them.
SUMS = ("high", "low")
HALF = 32


def tuple_hash(partition: Column | str, offset: Column | str, position: Column | str) -> Column:
    """The hash of the tuple at `position` (from 0) of the record at (partition, offset) of the input topic.

    Numbers of another width have another hash, so their types are made sure of.
    """
    places = ((partition, "int"), (offset, "bigint"), (position, "int"))
    return F.xxhash64(*((F.col(one) if isinstance(one, str) else one).cast(kind) for one, kind in places))


def halves(hashed: Column) -> list[Column]:
    """The columns SUMS of one hash: its upper and its lower half, each a signed number of 32 bits."""
    low = F.shiftright(F.shiftleft(hashed, HALF), HALF)
    return [F.shiftright(hashed, HALF).alias("high"), low.alias("low")]


def summed() -> list[Column]:
    """What adds up the columns SUMS of a group, under their names."""
    return [F.sum(name).alias(name) for name in SUMS]


if __name__ == "__main__":
    run(word_count, __doc__)
