"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word: its count, and the sum of the hashes of what was counted (see hash_sums.py). As
`word_count` the whole computation runs in Spark's native columns, so no Python worker is started; as
`word_count_python` a Python function splits the lines, on purpose: it is the same topology with Python workers in it,
which faults can hit and whose cost can be seen. Output records: key = word, value = `<count> <high> <low>` so far.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

from hash_sums import SUMS, halves, summed, tuple_hash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from running import Config, run


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


if __name__ == "__main__":
    run(word_count, __doc__)
