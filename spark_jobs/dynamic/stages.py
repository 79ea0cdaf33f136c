"""What each stage of the chain computes: tuples of its input (`source.SCHEMA`) to records of its output.

source    takes lines out of the queues, as they are
split     a line becomes its words
count     counts words with full history; its state lies in as many partitions as the stage can have tasks
persist   has no query: its rows go to the store (see `persisting`)

Between stages a tuple is a record: the key is the number of its attempts and the value the line, or, from `split` on,
the key is the word and the value its number: attempts, or behind `count` its count.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SOURCE, SPLIT, COUNT, PERSIST = "source", "split", "count", "persist"


def source(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Lines with their attempts."""
    return tuples.select(F.col("number").cast("string").alias("key"), F.col("text").alias("value"))


def split(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Words with their attempts. A word that failed comes back as a line of one word."""
    return tuples.select(F.explode(F.split("text", " ")).alias("key"), F.col("number").cast("string").alias("value"))


def count(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Each changed word with its count so far; as many tasks as the parallelism, whatever the state's partitions."""
    counts = tuples.groupBy("text").count().coalesce(parallelism)
    return counts.select(F.col("text").alias("key"), F.col("count").cast("string").alias("value"))


QUERIES: dict[str, Callable[[DataFrame, int], DataFrame]] = {SOURCE: source, SPLIT: split, COUNT: count}
# Where a stage finds the text of its tuples.
TEXT = {SOURCE: "value", SPLIT: "value", COUNT: "key", PERSIST: "key"}
