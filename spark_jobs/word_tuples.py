"""Harvest of counted keys: a record holds many words, or is one, known by its partition and offset."""

from __future__ import annotations

from counts import batch_counts, count_keys, group_tuples, number_alike, reflected, reflected_each
from hash_sums import SUMS, halves, tuple_hash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from running import Config

# `<count> <high> <low>` as the query writes it.
SUMMED = r"^\d{1,18} -?\d{1,18} -?\d{1,18}$"


def harvest_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet of texts whose words are counted."""
    return _harvest(records, outputs, F.explode(F.split("value", " ")))


def harvest_summed_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """The same where outputs are `<count> <high> <low>`: both tables, and sums of hashes by key in counts.parquet."""
    counted = with_sums(outputs)
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.posexplode(F.split("value", " ")).alias("position", "key"),
    )  # fmt: skip
    hashed = words.select("key", "primer", "undrained", *halves(tuple_hash("partition", "offset", "position")))
    expected = hashed.groupBy("key").agg(
        *how_many(),
        *(F.sum(F.when(~F.col("undrained"), F.col(name))).alias(f"expected_{name}") for name in SUMS),
    )
    plain = words.drop("partition", "offset", "position", "undrained")
    tuples = group_tuples(plain, reflected(batch_counts(plain), counted))
    return tuples, count_keys(expected, counted, value=("count", *SUMS), sums=SUMS)


def with_sums(outputs: DataFrame) -> DataFrame:
    """Adds `count` and SUMS of values `<count> <high> <low>`; all null where the value is none."""
    parts = {name: F.split_part("value", F.lit(" "), F.lit(place)) for place, name in enumerate(("count", *SUMS), 1)}
    readable = F.col("value").rlike(SUMMED)
    return outputs.withColumns({name: F.when(readable, part.try_cast("bigint")) for name, part in parts.items()})


def harvest_ranked_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """The same for a chain of stages, which has no batch of its own that all tuples pass through: the k-th occurrence
    of a word, in the order of their production, is reflected by its first output that counts k.
    """
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.explode(F.split("value", " ")).alias("key"),
    )  # fmt: skip
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    expected = words.groupBy("key").agg(*how_many())
    return number_alike(reflected_each(words.drop("undrained"), counted)), count_keys(expected, counted)


def harvest_ids(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """The same where a record is one tuple under the key `<partition>:<offset>`."""
    return _harvest(records, outputs, F.concat_ws(":", "partition", "offset"))


def _harvest(records: DataFrame, outputs: DataFrame, key: Column) -> tuple[DataFrame, DataFrame]:
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), key.alias("key")
    )
    expected = words.groupBy("key").agg(*how_many())
    words = words.drop("undrained")
    tuples = group_tuples(words, reflected(batch_counts(words), counted))
    return tuples, count_keys(expected, counted)


def how_many() -> list[Column]:
    """Of a key's words: all, those of undrained records, and those that were drawn by chance, which the primer
    repeats."""
    return [
        F.count("*").alias("expected"),
        F.count_if("undrained").alias("undrained"),
        F.count_if(~F.col("primer")).alias("drawn"),
    ]
