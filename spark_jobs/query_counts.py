"""Comparison of a user query's outputs with a batch over the same input: by count, last row or row."""

from __future__ import annotations

from output_matching import ZERO_DEFAULT_COLUMNS, count_keys, expected_range
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from workload_runner import NEWEST

# Count at the start of a value, or in the field `count` of a JSON object.
COUNTED = r"^\s*(\d{1,18})(?:\s|$)"


def count_in(value: str) -> Column:
    """Return the count in a value; null if there is none."""
    plain = F.nullif(F.regexp_extract(value, COUNTED, 1), F.lit(""))
    return F.coalesce(plain, F.get_json_object(value, "$.count")).try_cast("bigint")


def counts_of(again: DataFrame, whole: DataFrame, outputs: DataFrame, *, every_batch: bool) -> DataFrame:
    """Return the counts by key; a last value with the expected count but other content is wrong.

    `whole`: the batch over all input. `every_batch`: each batch outputs all rows, so none of them is a repetition.
    """
    counted = outputs.withColumn("count", count_in("value"))
    expected = again.select("key", count_in("value").alias("expected"), F.col("value").alias("row"))
    least, most = (one.select("key", count_in("value").alias("n")) for one in (again, whole))
    counts = count_keys(expected_range(least, most), counted, value=("value",))
    # Only for keys of one epoch, because no value contains the sum of several.
    last = outputs.groupBy("key").agg(
        F.max_by("value", "offset").alias("last"), F.count_distinct("lineage").alias("lineages")
    )
    other = (
        expected.join(last.where("lineages = 1"), "key")
        .where((F.col("row") != F.col("last")) & F.col("expected").eqNullSafe(count_in("last")))
        .select("key", F.lit(1).cast("long").alias("other"))
    )
    if every_batch:
        counts = counts.withColumn("reemitted", F.lit(0).cast("long"))
    return (
        counts.join(other, "key", "left")
        .withColumn("unreadable", F.col("unreadable") + F.coalesce("other", F.lit(0)))
        .drop("other")
    )


def without_deleted(outputs: DataFrame, again: DataFrame) -> DataFrame:
    """Remove the outputs of deleted keys: the last value is null, and the batch lacks the key."""
    last = outputs.groupBy("key").agg(F.max_by(F.struct("value"), "offset").alias("last"))
    deleted = last.where("last.value IS NULL").join(again, "key", "left_anti").select("key")
    return outputs.join(deleted, "key", "left_anti")


def last_rows_of(again: DataFrame, whole: DataFrame, outputs: DataFrame, *, every_batch: bool) -> DataFrame:
    """Return by key whether its last value is that of the batch.

    A key is not judged if input beyond the last commit, which `whole` includes, changes its row. An output that equals
    the previous one of its key is a repetition, because a retried batch writes its rows again. `every_batch`: each
    batch outputs all rows, so none of them is a repetition.
    """
    reason = F.struct(
        "value", *({NEWEST} & set(outputs.columns))
    )  # an equal row with a newer event is not a repetition
    before = F.lag(reason).over(Window.partitionBy("key").orderBy("offset"))
    repeated = F.lit(0).cast("long") if every_batch else F.sum((reason.eqNullSafe(F.col("before"))).cast("long"))
    last = (
        outputs.withColumn("before", before)
        .groupBy("key")
        .agg(
            F.max_by("value", "offset").alias("last"),
            F.lit(1).cast("long").alias("final"),
            F.count("*").alias("outputs"),
            repeated.alias("reemitted"),
        )
    )
    least, most = (one.groupBy("key").agg(F.count("*").alias("n")) for one in (again, whole))
    rows, after = (
        one.groupBy("key").agg(F.first("value").alias(name)) for one, name in ((again, "row"), (whole, "new"))
    )
    both = (
        expected_range(least, most).join(rows, "key", "left").join(after, "key", "left").join(last, "key", "full_outer")
    )
    settled = F.col("row").eqNullSafe(F.col("new")) & F.col("expected").isNotNull()
    wrong = settled & F.col("final").isNotNull() & ~F.col("row").eqNullSafe(F.col("last"))
    counts = both.withColumn("unreadable", wrong.cast("long")).fillna(0, ZERO_DEFAULT_COLUMNS)
    return counts.select("key", "expected", "undrained", "final", "outputs", "reemitted", "unreadable")


def rows_of(again: DataFrame, whole: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return the counts by row, for outputs that do not replace each other; surplus rows are repetitions.

    `whole`: the batch over all input.
    """
    row = F.concat_ws(" ", "key", "value").alias("key")
    least, most = (one.select(row).groupBy("key").agg(F.count("*").alias("n")) for one in (again, whole))
    came = outputs.select(row).groupBy("key").agg(F.count("*").alias("outputs"))
    both = expected_range(least, most).join(came, "key", "full_outer")
    return both.select(
        "key",
        "expected",
        F.coalesce("undrained", F.lit(0)).alias("undrained"),
        # Rows that are not in the batch are wrong, with their number (`least` ignores nulls).
        F.when(F.col("outputs").isNotNull(), F.least("outputs", "expected")).alias("final"),
        F.coalesce("outputs", F.lit(0)).cast("long").alias("outputs"),
        F.greatest(F.col("outputs") - F.col("expected"), F.lit(0)).cast("long").alias("reemitted"),
        F.lit(0).cast("long").alias("unreadable"),
    ).fillna(0, ["reemitted"])


def without_closing(counts: DataFrame, closed: DataFrame) -> DataFrame:
    """Remove rows that result from closing records.

    `closed`: results of a batch over all records; rows in excess of the expected ones result from closing records.
    """
    most = closed.select(F.concat_ws(" ", "key", "value").alias("key")).groupBy("key").agg(F.count("*").alias("most"))
    of_them = F.greatest(F.coalesce("most", F.lit(0)) - F.coalesce("expected", F.lit(0)), F.lit(0))
    left = counts.join(most, "key", "left").withColumn("of_them", of_them)
    return (
        left.where("expected IS NOT NULL OR of_them = 0")
        .withColumn("outputs", F.col("outputs") - F.least("reemitted", "of_them"))
        .withColumn("reemitted", F.col("reemitted") - F.least("reemitted", "of_them"))
        .drop("most", "of_them")
    )
