"""Harvest of `pi`: outputs carry the id of their record, so each tuple is looked up by itself.

The sums are computed again in another way than the workload does it: as rows, term by term.
"""

from __future__ import annotations

from counts import FILLED, number_alike
from pi import work
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from running import Config

# Two ways of adding up to 10^7 terms were seen to differ by 2e-12; one term left out makes at least 2e-7.
TOLERANCE = 1e-11
# Terms that are rows at once, so that a long series takes no more memory than a short one.
CHUNK = 65_536


def harvest_pi(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet; a tuple is reflected by its id's first output."""
    identity, terms = work(F.col("value"))
    asked = records.select(
        "lineage", "batch", "primer", "undrained", "timestamp_ms", identity.alias("key"), terms.alias("terms")
    ).where("terms > 0")
    first = outputs.groupBy("key").agg(F.min("emitted_ms").alias("emitted_ms"))
    tuples = asked.drop("undrained").join(first, "key", "left").withColumnRenamed("timestamp_ms", "produced_ms")
    return number_alike(tuples), _counts(asked, outputs)


def _counts(asked: DataFrame, outputs: DataFrame) -> DataFrame:
    """Per id: expected and final are 1, every output beyond the first is a repetition."""
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
            # An id that the input does not hold is wrong as it is: no sum, no comparison.
            F.count_if(F.col("value").try_cast("double").isNull() | ~(off <= TOLERANCE)).alias("unreadable"),
        )
    )
    known = expected.select("key", F.lit(1).cast("long").alias("expected"), "undrained")
    return known.join(final, "key", "full_outer").fillna(0, FILLED)


def sums(terms: DataFrame) -> DataFrame:
    """terms, sum: the first `terms` terms of 4 - 4/3 + 4/5 - ..., each added as a row of its own."""
    chunks = terms.select("terms", F.explode(F.sequence(F.lit(0), F.col("terms") - 1, F.lit(CHUNK))).alias("begin"))
    end = F.least(F.col("begin") + (CHUNK - 1), F.col("terms") - 1)
    rows = chunks.select("terms", F.explode(F.sequence("begin", end)).alias("k"))
    term = F.when(F.col("k") % 2 == 0, 4.0).otherwise(-4.0) / (2.0 * F.col("k") + 1.0)
    return rows.groupBy("terms").agg(F.sum(term).alias("sum"))
