"""Harvest of counted keys: a record holds many words, or is one, known by its partition and offset."""

from __future__ import annotations

from counts import batch_counts, count_keys, group_tuples, number_alike, reflected, reflected_each
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from running import Config


def harvest_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet of texts whose words are counted."""
    return _harvest(records, outputs, F.explode(F.split("value", " ")))


def harvest_ranked_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """The same for a chain of stages, which has no batch of its own that all tuples pass through: the k-th occurrence
    of a word, in the order of their production, is reflected by its first output that counts k.
    """
    words = records.select(
        "lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.explode(F.split("value", " ")).alias("key"),
    )  # fmt: skip
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    expected = words.groupBy("key").agg(F.count("*").alias("expected"), F.count_if(~F.col("primer")).alias("drawn"))
    return number_alike(reflected_each(words, counted)), count_keys(expected, counted)


def harvest_ids(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """The same where a record is one tuple under the key `<partition>:<offset>`."""
    return _harvest(records, outputs, F.concat_ws(":", "partition", "offset"))


def _harvest(records: DataFrame, outputs: DataFrame, key: Column) -> tuple[DataFrame, DataFrame]:
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    words = records.select("lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"), key.alias("key"))
    # The primer repeats words of the schedule, so what was drawn by chance is counted apart.
    expected = words.groupBy("key").agg(F.count("*").alias("expected"), F.count_if(~F.col("primer")).alias("drawn"))
    tuples = group_tuples(words, reflected(batch_counts(words), counted))
    return tuples, count_keys(expected, counted)
