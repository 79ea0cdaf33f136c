"""Running counts and sums: which output reflects a tuple, and what a batch job would have counted.

Frames, here and in the modules of each kind:

- tuples: lineage, batch (both null: never committed), key, produced_ms, primer
- expected: key, expected and how much of it is undrained: of input beyond the last commit
- outputs: lineage, key, offset, emitted_ms, count (null: unreadable) and for sums `total`
"""

from __future__ import annotations

from pi import work
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from word_count import SUMS, halves, tuple_hash
from workload_runner import Config

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


# Harvest of counted keys: a record holds many words, or is one, known by its partition and offset.


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


# Harvest of `pi`: outputs carry the id of their record, so each tuple is looked up by itself.
#
# The sums are computed again in another way than the workload does it: as rows, term by term.


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
