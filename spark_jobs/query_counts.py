"""What came of a user's query held against a batch over the same input: by count, by last row, and by row."""

from __future__ import annotations

from output_matching import FILLED, between, count_keys
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from workload_runner import NEWEST

# A count at the beginning of a value, or in a field `count` of a JSON object.
COUNTED = r"^\s*(\d{1,18})(?:\s|$)"


def count_in(value: str) -> Column:
    """The count in a value; null where there is none."""
    plain = F.nullif(F.regexp_extract(value, COUNTED, 1), F.lit(""))
    return F.coalesce(plain, F.get_json_object(value, "$.count")).try_cast("bigint")


def counts_of(again: DataFrame, whole: DataFrame, outputs: DataFrame, *, every_batch: bool) -> DataFrame:
    """By key: how much was counted; a last value that counts as much, and is another than the batch's, is wrong.
    `whole`: the batch over all input. `every_batch`: all rows come out with each batch, so that none of them is a
    repetition."""
    counted = outputs.withColumn("count", count_in("value"))
    expected = again.select("key", count_in("value").alias("expected"), F.col("value").alias("row"))
    least, most = (one.select("key", count_in("value").alias("n")) for one in (again, whole))
    counts = count_keys(between(least, most), counted, value=("value",))
    # Only of one lineage: those of several add up to what no value says.
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


def last_rows_of(again: DataFrame, whole: DataFrame, outputs: DataFrame, *, every_batch: bool) -> DataFrame:
    """By key: expected once, and its last value is the batch's, unless input beyond the last commit, which `whole` has,
    changes that. An output is a repetition when it is the one of its key
    before it once more: a batch that is tried again writes its rows anew, and a value may come back by itself.
    `every_batch`: all rows come out with each batch, so that none of them is a repetition."""
    reason = F.struct("value", *({NEWEST} & set(outputs.columns)))  # the same row for a newer reason is none
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
    both = between(least, most).join(rows, "key", "left").join(after, "key", "left").join(last, "key", "full_outer")
    settled = F.col("row").eqNullSafe(F.col("new")) & F.col("expected").isNotNull()
    wrong = settled & F.col("final").isNotNull() & ~F.col("row").eqNullSafe(F.col("last"))
    counts = both.withColumn("unreadable", wrong.cast("long")).fillna(0, FILLED)
    return counts.select("key", "expected", "undrained", "final", "outputs", "reemitted", "unreadable")


def rows_of(again: DataFrame, whole: DataFrame, outputs: DataFrame) -> DataFrame:
    """By row, where each output stands for itself: as many as the batch has; more of one are repetitions. `whole`: of
    all input."""
    row = F.concat_ws(" ", "key", "value").alias("key")
    least, most = (one.select(row).groupBy("key").agg(F.count("*").alias("n")) for one in (again, whole))
    came = outputs.select(row).groupBy("key").agg(F.count("*").alias("outputs"))
    both = between(least, most).join(came, "key", "full_outer")
    return both.select(
        "key",
        "expected",
        F.coalesce("undrained", F.lit(0)).alias("undrained"),
        # A row that the batch does not have is wrong, and as often as it came. (`least` passes over nulls.)
        F.when(F.col("outputs").isNotNull(), F.least("outputs", "expected")).alias("final"),
        F.coalesce("outputs", F.lit(0)).cast("long").alias("outputs"),
        F.greatest(F.col("outputs") - F.col("expected"), F.lit(0)).cast("long").alias("reemitted"),
        F.lit(0).cast("long").alias("unreadable"),
    ).fillna(0, ["reemitted"])


def without_closing(counts: DataFrame, closed: DataFrame) -> DataFrame:
    """By row what is left without those made of the records that only close windows. `closed`: the results of a batch
    over all records: what it has more often than is expected was made of them."""
    most = closed.select(F.concat_ws(" ", "key", "value").alias("key")).groupBy("key").agg(F.count("*").alias("most"))
    of_them = F.greatest(F.coalesce("most", F.lit(0)) - F.coalesce("expected", F.lit(0)), F.lit(0))
    left = counts.join(most, "key", "left").withColumn("of_them", of_them)
    return (
        left.where("expected IS NOT NULL OR of_them = 0")
        .withColumn("outputs", F.col("outputs") - F.least("reemitted", "of_them"))
        .withColumn("reemitted", F.col("reemitted") - F.least("reemitted", "of_them"))
        .drop("most", "of_them")
    )
