"""Word count with full history, no window: split lines, count words, emit each changed count.

State is one row a distinct word. As `word_count` the whole computation runs in Spark's native columns,
so no Python worker is started; as `word_count_python` a Python function splits the lines, on purpose:
it is the same topology with Python workers in it, which faults can hit and whose cost can be seen.
Output records: key = word, value = its count so far.

    spark-submit word_count.py --config FILE
"""

from __future__ import annotations

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
    words = lines.select(F.explode(split_in_python(line) if config["python"] else F.split(line, " ")).alias("word"))
    counts = words.groupBy("word").count()
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


if __name__ == "__main__":
    run(word_count, __doc__)
