"""Matching of outputs with tuples for running counts and sums, and their expected values.

Frames, here and in the modules of each kind:

- tuples: lineage, batch (both null: never committed), key, produced_ms, primer
- expected: key, expected, undrained (part of expected from input beyond the last commit)
- outputs: lineage, key, offset, emitted_ms, count (null: unreadable) and `total` for sums
"""

from __future__ import annotations

from pi import parse_request
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from word_count import SUMS, halves, tuple_hash
from workload_runner import Config

# Columns that are 0 if unknown.
ZERO_DEFAULT_COLUMNS = ["undrained", "outputs", "reemitted", "unreadable"]


def batch_counts(tuples: DataFrame) -> DataFrame:
    """Return lineage, batch, key and n: the number of occurrences of each key in a batch."""
    return tuples.where("batch is not null").groupBy("lineage", "batch", "key").agg(F.count("*").alias("n"))


def first_emissions(groups: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return for each (lineage, batch, key) when the first output with count >= k was emitted.

    `groups`: lineage, batch, key, n. k is the count of the key in all batches up to this one. In descending order of
    counts, the minimum emission so far is that of the first sufficient output; outputs precede groups of equal count.
    One sort replaces a join of every group with every output of its key.
    """
    upto = Window.partitionBy("lineage", "key").orderBy("batch")
    wanted = groups.select(
        "lineage", "key", "batch", F.sum("n").over(upto).alias("k"), F.lit(None).cast("long").alias("emitted_ms")
    )
    seen = outputs.where("count is not null").select(
        "lineage",
        "key",
        F.lit(None).cast("int").alias("batch"),
        F.col("count").alias("k"),
        "emitted_ms",
    )
    downwards = Window.partitionBy("lineage", "key").orderBy(F.desc("k"), F.col("batch").asc_nulls_first())
    return (
        seen.unionByName(wanted)
        .withColumn("emitted_ms", F.min("emitted_ms").over(downwards))
        .where("batch is not null")
        .select("lineage", "batch", "key", "emitted_ms")
    )


def with_first_emissions(tuples: DataFrame, outputs: DataFrame) -> DataFrame:
    """Add to each tuple the first emission of its key with a count of at least its rank.

    `tuples` also have partition and offset, which order tuples of the same millisecond.
    """
    in_order = Window.partitionBy("key").orderBy("produced_ms", "partition", "offset")
    ranked = tuples.select("*", F.row_number().over(in_order).cast("long").alias("k"))
    nothing = {name: F.lit(None).cast(kind) for name, kind in ranked.dtypes if name not in ("key", "k")}
    seen = outputs.where("count is not null").select("key", F.col("count").alias("k"), "emitted_ms")
    both = ranked.withColumn("emitted_ms", F.lit(None).cast("long")).unionByName(seen.withColumns(nothing))
    downwards = Window.partitionBy("key").orderBy(F.desc("k"), F.col("produced_ms").asc_nulls_first())
    reached = both.withColumn("emitted_ms", F.min("emitted_ms").over(downwards)).where("produced_ms is not null")
    # Tuples that were never committed count as undrained, not as unreflected.
    return reached.drop("k", "partition", "offset")


def group_tuples(tuples: DataFrame, emissions: DataFrame) -> DataFrame:
    """Return the number of tuples with equal batch, production and emission time.

    `emissions`: as returned by `first_emissions`.
    """
    return count_equal_tuples(tuples.join(emissions, ["lineage", "batch", "key"], "left"))


def count_equal_tuples(tuples: DataFrame) -> DataFrame:
    """Return the rows of tuples.parquet: equal tuples become one row with their number n."""
    return tuples.groupBy("lineage", "batch", "produced_ms", "emitted_ms", "primer").agg(F.count("*").alias("n"))


def count_keys(
    expected: DataFrame, outputs: DataFrame, *, value: tuple[str, ...] = ("count",), sums: tuple[str, ...] = ()
) -> DataFrame:
    """Return by key the expected count, the last emitted count, and numbers of outputs by kind.

    `expected`: key, expected, undrained. `value`: the columns that make up an output's value. `sums`: columns that are
    summed over epochs like the count; their results are `final_<name>`. A new state epoch counts from 0, so the total
    is the sum of the last counts of all epochs.
    """
    # All outputs of a key are in one partition, so the highest offset is the last output.
    by_lineage = outputs.groupBy("key", "lineage").agg(
        F.max_by("count", "offset").alias("final"),
        F.count("*").alias("outputs"),
        (F.count("count") - F.count_distinct(*value)).alias("reemitted"),
        (F.count("*") - F.count("count")).alias("unreadable"),
        *(F.max_by(name, "offset").alias(f"final_{name}") for name in sums),
    )
    added = ("final", "outputs", "reemitted", "unreadable", *(f"final_{name}" for name in sums))
    final = by_lineage.groupBy("key").agg(*(F.sum(name).alias(name) for name in added))
    return expected.join(final, "key", "full_outer").fillna(0, ZERO_DEFAULT_COLUMNS)


def expected_range(least: DataFrame, most: DataFrame) -> DataFrame:
    """Return key, expected and undrained from the counts n of committed input and of all input.

    If the committed input alone gives more, as with rows that change, that is expected.
    """
    both = least.withColumnRenamed("n", "low").join(most.withColumnRenamed("n", "high"), "key", "full_outer")
    expected, sure = F.greatest("low", "high"), F.least(F.coalesce("low", F.lit(0)), F.coalesce("high", F.lit(0)))
    return both.select("key", expected.alias("expected"), (expected - sure).alias("undrained"))


def count_sums(expected: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return `count_keys` for values `<n> <sum>`; equal counts with different sums are unreadable.

    `expected`: key, expected, undrained, total (exact decimal of drained input).
    """
    counts = count_keys(expected.drop("total"), outputs, value=("count", "total"))
    last = outputs.groupBy("key", "lineage").agg(F.max_by(F.struct("count", "total"), "offset").alias("last"))
    final = last.groupBy("key").agg(F.sum("last.count").alias("n"), F.sum("last.total").alias("sum"))
    wrong_sums = (
        expected.join(final, "key")
        .where("expected - undrained = n and total <> sum")
        .select("key", F.lit(1).cast("long").alias("wrong_sum"))
    )
    return (
        counts.join(wrong_sums, "key", "left")
        .withColumn("unreadable", F.col("unreadable") + F.coalesce("wrong_sum", F.lit(0)))
        .drop("wrong_sum")
    )


# Harvest of counted keys: a record contains words, or is one tuple.


# Value `<count> <high> <low>` of the query.
SUMMED = r"^\d{1,18} -?\d{1,18} -?\d{1,18}$"


def harvest_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts of texts whose words are counted."""
    return _harvest(records, outputs, F.explode(F.split("value", " ")))


def harvest_summed_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return both tables for outputs `<count> <high> <low>`, with sums of hashes in counts."""
    counted = with_sums(outputs)
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.posexplode(F.split("value", " ")).alias("position", "key"),
    )  # fmt: skip
    hashed = words.select("key", "primer", "undrained", *halves(tuple_hash("partition", "offset", "position")))
    expected = hashed.groupBy("key").agg(*expected_columns(), *expected_sums())
    plain = words.drop("partition", "offset", "position", "undrained")
    tuples = group_tuples(plain, first_emissions(batch_counts(plain), counted))
    return tuples, count_keys(expected, counted, value=("count", *SUMS), sums=SUMS)


# Factors of offset, partition and position in a tuple's number, and a prime below 2^31, as in the SQL of the query
# (include/faultline/engines/flink/sql.py). Each product is below 2^63.
FACTORS = {"offset": 1_103_515_245, "partition": 69_069, "position": 12_345}
PRIME = 2_147_483_647


def harvest_hashed_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return both tables for outputs `<count> 0 <sum>` of an engine without batches.

    The k-th occurrence of a word, in order of production, is reflected by its first output with count k.
    """
    counted = with_sums(outputs)
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.posexplode(F.split("value", " ")).alias("position", "key"),
    ).withColumn("position", F.col("position") + 1)  # fmt: skip
    hashed = words.select(
        "key", "primer", "undrained", F.lit(0).cast("bigint").alias("high"), cubic_hash().alias("low")
    )
    expected = hashed.groupBy("key").agg(*expected_columns(), *expected_sums())
    tuples = count_equal_tuples(
        with_first_emissions(words.drop("position", "undrained"), counted.select("key", "count", "emitted_ms"))
    )
    return tuples, count_keys(expected, counted, value=("count", *SUMS), sums=SUMS)


def cubic_hash() -> Column:
    """Return the hash of a tuple, below PRIME: the cube of a linear number of partition, offset and position."""
    terms = [F.col(name).cast("bigint") * F.lit(factor) % PRIME for name, factor in FACTORS.items()]
    number = (terms[0] + terms[1] + terms[2]) % PRIME
    return number * number % PRIME * number % PRIME


def expected_sums() -> list[Column]:
    """Return the aggregations of SUMS over drained input."""
    return [F.sum(F.when(~F.col("undrained"), F.col(name))).alias(f"expected_{name}") for name in SUMS]


def with_sums(outputs: DataFrame) -> DataFrame:
    """Add `count` and SUMS of values `<count> <high> <low>`; all null if the value is invalid."""
    parts = {name: F.split_part("value", F.lit(" "), F.lit(place)) for place, name in enumerate(("count", *SUMS), 1)}
    readable = F.col("value").rlike(SUMMED)
    return outputs.withColumns({name: F.when(readable, part.try_cast("bigint")) for name, part in parts.items()})


def harvest_ranked_words(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return both tables for a chain of stages, which has no batch common to all tuples.

    The k-th occurrence of a word, in order of production, is reflected by its first output with count k.
    """
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), "partition", "offset",
        F.explode(F.split("value", " ")).alias("key"),
    )  # fmt: skip
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    expected = words.groupBy("key").agg(*expected_columns())
    return count_equal_tuples(with_first_emissions(words.drop("undrained"), counted)), count_keys(expected, counted)


def harvest_ids(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return both tables for records that are one tuple each, with the key `<partition>:<offset>`."""
    return _harvest(records, outputs, F.concat_ws(":", "partition", "offset"))


def _harvest(records: DataFrame, outputs: DataFrame, key: Column) -> tuple[DataFrame, DataFrame]:
    counted = outputs.withColumn("count", F.col("value").try_cast("bigint"))
    words = records.select(
        "lineage", "batch", "primer", "undrained", F.col("timestamp_ms").alias("produced_ms"), key.alias("key")
    )
    expected = words.groupBy("key").agg(*expected_columns())
    words = words.drop("undrained")
    tuples = group_tuples(words, first_emissions(batch_counts(words), counted))
    return tuples, count_keys(expected, counted)


def expected_columns() -> list[Column]:
    """Return the counts of a key's words: all, undrained, and outside the preload."""
    return [
        F.count("*").alias("expected"),
        F.count_if("undrained").alias("undrained"),
        F.count_if(~F.col("primer")).alias("drawn"),
    ]


# Harvest of `pi`: outputs contain the id of their record. The sums are recomputed independently of the workload, as
# rows of single terms.


# Both computations differ by at most 2e-12 for 10^7 terms; a missing term changes the sum by at least 2e-7.
TOLERANCE = 1e-11
# Terms per chunk, which bounds the memory of long series.
CHUNK = 65_536


def harvest_pi(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts; a tuple is reflected by its id's first output."""
    identity, terms = parse_request(F.col("value"))
    asked = records.select(
        "lineage", "batch", "primer", "undrained", "timestamp_ms", identity.alias("key"), terms.alias("terms")
    ).where("terms > 0")
    first = outputs.groupBy("key").agg(F.min("emitted_ms").alias("emitted_ms"))
    tuples = asked.drop("undrained").join(first, "key", "left").withColumnRenamed("timestamp_ms", "produced_ms")
    return count_equal_tuples(tuples), _counts(asked, outputs)


def _counts(asked: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return the counts by id: expected and final are 1, every further output is a repetition."""
    undrained = F.bool_and("undrained").cast("long").alias("undrained")
    expected = asked.groupBy("key").agg(F.first("terms").alias("terms"), undrained)
    expected = expected.join(F.broadcast(sums(asked.select("terms").distinct())), "terms", "left")
    off = F.abs(F.col("value").try_cast("double") - F.col("sum"))
    final = (
        outputs.join(expected.select("key", "sum"), "key", "left")
        .groupBy("key")
        .agg(
            F.lit(1).cast("long").alias("final"),
            F.count("*").alias("outputs"),
            (F.count("*") - 1).alias("reemitted"),
            # Ids that are not in the input have no sum and count as unreadable.
            F.count_if(F.col("value").try_cast("double").isNull() | ~(off <= TOLERANCE)).alias("unreadable"),
        )
    )
    known = expected.select("key", F.lit(1).cast("long").alias("expected"), "undrained")
    return known.join(final, "key", "full_outer").fillna(0, ZERO_DEFAULT_COLUMNS)


def sums(terms: DataFrame) -> DataFrame:
    """Return terms and sum of the first `terms` terms of 4 - 4/3 + 4/5 - ..., each added as a row."""
    chunks = terms.select("terms", F.explode(F.sequence(F.lit(0), F.col("terms") - 1, F.lit(CHUNK))).alias("begin"))
    end = F.least(F.col("begin") + (CHUNK - 1), F.col("terms") - 1)
    rows = chunks.select("terms", F.explode(F.sequence("begin", end)).alias("k"))
    term = F.when(F.col("k") % 2 == 0, 4.0).otherwise(-4.0) / (2.0 * F.col("k") + 1.0)
    return rows.groupBy("terms").agg(F.sum(term).alias("sum"))
