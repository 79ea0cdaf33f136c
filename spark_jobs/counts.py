"""Running counts and sums: which output reflects a tuple, and what a batch job would have counted.

Frames, here and in the modules of each kind:

- tuples: lineage, batch (both null: never committed), key, produced_ms, primer
- expected: key, expected and how much of it is undrained: of input beyond the last commit
- outputs: lineage, key, offset, emitted_ms, count (null: unreadable) and for sums `total`
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

# What a key has none of when nothing is known of it.
FILLED = ["undrained", "outputs", "reemitted", "unreadable"]


def batch_counts(tuples: DataFrame) -> DataFrame:
    """lineage, batch, key, n: how often each key was counted in a batch."""
    return tuples.where("batch is not null").groupBy("lineage", "batch", "key").agg(F.count("*").alias("n"))


def reflected(groups: DataFrame, outputs: DataFrame) -> DataFrame:
    """For each (lineage, batch, key): when the first output with count >= k was emitted.

    `groups`: lineage, batch, key, n. k is what was counted of the key in all batches up to this one. Walking
    counts downwards, the earliest emission seen so far is that of the first output that is large enough; outputs
    come before groups of equal count. One sort replaces a join of every group with every output of its key.
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


def reflected_each(tuples: DataFrame, outputs: DataFrame) -> DataFrame:
    """Tuples with the emission that reflects each: the first output of its key that counts at least its rank.

    `tuples` also have partition and offset, which order those that were produced in the same millisecond.
    """
    in_order = Window.partitionBy("key").orderBy("produced_ms", "partition", "offset")
    ranked = tuples.select("*", F.row_number().over(in_order).cast("long").alias("k"))
    nothing = {name: F.lit(None).cast(kind) for name, kind in ranked.dtypes if name not in ("key", "k")}
    seen = outputs.where("count is not null").select("key", F.col("count").alias("k"), "emitted_ms")
    both = ranked.withColumn("emitted_ms", F.lit(None).cast("long")).unionByName(seen.withColumns(nothing))
    downwards = Window.partitionBy("key").orderBy(F.desc("k"), F.col("produced_ms").asc_nulls_first())
    reached = both.withColumn("emitted_ms", F.min("emitted_ms").over(downwards)).where("produced_ms is not null")
    # What was never committed was cut off by the end; only what was not emitted after its commit is unreflected.
    return reached.drop("k", "partition", "offset")


def group_tuples(tuples: DataFrame, emissions: DataFrame) -> DataFrame:
    """Tuples that share batch, production and emission time, with their number.

    `emissions`: as `reflected` returns them.
    """
    return number_alike(tuples.join(emissions, ["lineage", "batch", "key"], "left"))


def number_alike(tuples: DataFrame) -> DataFrame:
    """The rows of tuples.parquet: equal tuples become one row with their number n."""
    return tuples.groupBy("lineage", "batch", "produced_ms", "emitted_ms", "primer").agg(F.count("*").alias("n"))


def count_keys(
    expected: DataFrame, outputs: DataFrame, *, value: tuple[str, ...] = ("count",), sums: tuple[str, ...] = ()
) -> DataFrame:
    """Per key: the count a batch job gives, the last one emitted, and what kinds of outputs there were.

    `expected`: key, expected, undrained. `value`: the columns of an output that make up its value. `sums`: those that
    add up over lineages as the count does; what they come to is `final_<name>`. A new state lineage counts from
    nothing, so what was counted at all is the sum of the lineages' last counts.
    """
    # All outputs of a key stand in one partition, so the highest offset is the last output.
    by_lineage = outputs.groupBy("key", "lineage").agg(
        F.max_by("count", "offset").alias("final"),
        F.count("*").alias("outputs"),
        (F.count("count") - F.count_distinct(*value)).alias("reemitted"),
        (F.count("*") - F.count("count")).alias("unreadable"),
        *(F.max_by(name, "offset").alias(f"final_{name}") for name in sums),
    )
    added = ("final", "outputs", "reemitted", "unreadable", *(f"final_{name}" for name in sums))
    final = by_lineage.groupBy("key").agg(*(F.sum(name).alias(name) for name in added))
    return expected.join(final, "key", "full_outer").fillna(0, FILLED)


def between(least: DataFrame, most: DataFrame) -> DataFrame:
    """key, expected, undrained: what a key comes to by the input that was committed, `least`, and by all of it, `most`,
    both key and n. Where the committed input alone comes to more, as rows that change do, that is what is expected."""
    both = least.withColumnRenamed("n", "low").join(most.withColumnRenamed("n", "high"), "key", "full_outer")
    expected, sure = F.greatest("low", "high"), F.least(F.coalesce("low", F.lit(0)), F.coalesce("high", F.lit(0)))
    return both.select("key", expected.alias("expected"), (expected - sure).alias("undrained"))


def count_sums(expected: DataFrame, outputs: DataFrame) -> DataFrame:
    """As `count_keys`, for values `<n> <sum>`: a key whose n agrees but whose sum does not is one more unreadable.

    `expected`: key, expected, undrained, total (exact decimal, of what is drained).
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
