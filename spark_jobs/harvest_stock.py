"""Harvest of the stock queries: which records are late, which windows hold the others, and what they add up to.

`group`: a tuple is one (record, window) pair, counted under its stock and window. `join`: a tuple is one refresh, the
change of a user's window by a batch; it was produced when its newest record was. Late records are no tuples, as the
engine is to leave them out.
"""

from __future__ import annotations

from output_matching import batch_counts, count_sums, group_tuples, reflected
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from stock import POSITION, STOCK, TRANSACTION, event_of, result_key, windows
from workload_runner import Config

# The share of `late_ms` beyond which a record is late. Disorder is at most half of it: half of a watermark of at most
# an hour. The rest is left for the primer, whose records are up to some minutes off the schedule.
LATE_SHARE = 0.75
# `<n> <sum>` as the queries write it.
RESULT = r"^\d{1,18} \d{1,30}\.\d\d$"


def with_events(records: DataFrame) -> DataFrame:
    """Adds `event`, the record's fields."""
    return records.withColumn("event", event_of(F.col("value")))


def with_late(records: DataFrame, config: Config) -> DataFrame:
    """Adds `late`: whether the record happened `late_ms` before its time of production says.

    The market's clock and the machine's run at the same speed, so all records that are on time are as far from their
    time of production; the record that is farthest ahead shows how far. The primer's records are close enough to that
    to tell an hour, so it is found even when all others are late.
    """
    ahead = F.unix_millis("event.eventTime") - F.col("timestamp_ms")
    market = records.agg(F.max(ahead).alias("ahead")).collect()[0]["ahead"]
    behind = F.lit(market) - ahead
    return records.withColumn("late", F.coalesce(behind > LATE_SHARE * config["late_ms"], F.lit(False)))


def harvest_group(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet of stock_group_by."""
    trades = _in_windows(records, TRANSACTION, config).select(
        "lineage",
        "batch",
        "produced_ms",
        "primer",
        "undrained",
        result_key("szcode").alias("key"),
        (F.col("Price") * F.col("Turnover")).alias("amount"),
    )
    expected = trades.groupBy("key").agg(
        F.count("*").alias("expected"), F.count_if("undrained").alias("undrained"), _drained("amount").alias("total")
    )
    results = with_results(outputs)
    tuples = group_tuples(trades.drop("amount", "undrained"), reflected(batch_counts(trades), results))
    return tuples, count_sums(expected, results)


def harvest_join(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet of stock_join."""
    pairs = joined(records, config).cache()
    undrained = F.coalesce(F.sum(F.when(F.col("undrained"), F.col("n"))), F.lit(0)).alias("undrained")
    expected = pairs.groupBy("key").agg(F.sum("n").alias("expected"), undrained, _drained("amount").alias("total"))
    refreshes = pairs.groupBy("lineage", "batch", "key").agg(
        F.sum("n").alias("n"), F.max("produced_ms").alias("produced_ms"), F.bool_and("primer").alias("primer")
    )
    results = with_results(outputs)
    emissions = reflected(refreshes.where("batch is not null"), results)
    return group_tuples(refreshes, emissions), count_sums(expected, results)


def joined(records: DataFrame, config: Config) -> DataFrame:
    """Pairs of positions and quotes, as many to a row as have all of its columns in common.

    lineage, batch (the later of both; null: no lineage took both), key, n, amount, produced_ms (of the newest record
    of that batch), primer, undrained (either is). Records are counted before they are joined: what is paired are a
    stock's records of a batch, so the work grows with the records and the batches of a window, not with the pairs.
    """
    opened = ["lineage", "batch", "undrained", "window", "szcode"]
    about = (F.count("*").alias("n"), F.max("produced_ms").alias("newest"), F.bool_and("primer").alias("primer"))
    quotes = _in_windows(records, STOCK, config).groupBy(*opened).agg(*about, F.sum("lastPrice").alias("amount"))
    positions = _in_windows(records, POSITION, config).groupBy(*opened, "userID")
    held = positions.agg(*about, F.sum("openInterest").alias("amount"))
    p, q = held.alias("p"), quotes.alias("q")
    together = F.coalesce((F.col("p.lineage") == F.col("q.lineage")), F.lit(False))
    batch = F.when(together, F.greatest("p.batch", "q.batch"))
    newest = F.greatest(
        F.when(~together | (F.col("p.batch") >= F.col("q.batch")), F.col("p.newest")),
        F.when(~together | (F.col("q.batch") >= F.col("p.batch")), F.col("q.newest")),
    )
    return p.join(q, ["window", "szcode"]).select(
        F.when(together, F.col("p.lineage")).alias("lineage"),
        batch.alias("batch"),
        result_key("userID").alias("key"),
        (F.col("p.n") * F.col("q.n")).alias("n"),
        (F.col("p.amount") * F.col("q.amount")).cast("decimal(33,2)").alias("amount"),
        newest.alias("produced_ms"),
        (F.col("p.primer") & F.col("q.primer")).alias("primer"),
        (F.col("p.undrained") | F.col("q.undrained")).alias("undrained"),
    )


def _drained(amount: str) -> Column:
    """The sum over what is drained; 0 where nothing is."""
    return F.coalesce(F.sum(F.when(~F.col("undrained"), F.col(amount))), F.lit(0))


def with_results(outputs: DataFrame) -> DataFrame:
    """Adds `count` and `total` of values `<n> <sum>`; both null where the value is none."""
    readable = F.col("value").rlike(RESULT)
    count, total = (F.split_part("value", F.lit(" "), F.lit(place)) for place in (1, 2))
    return outputs.withColumns(
        {
            "count": F.when(readable, count.try_cast("bigint")),
            "total": F.when(readable, total.try_cast("decimal(32,2)")),
        }
    )


def _in_windows(records: DataFrame, stream: str, config: Config) -> DataFrame:
    """A row for each window that holds an event of the stream that is not late, with the event's fields."""
    kept = records.where((F.col("event.stream") == stream) & ~F.col("late"))
    return kept.select(
        "lineage",
        "batch",
        "primer",
        "undrained",
        F.col("timestamp_ms").alias("produced_ms"),
        windows(F.col("event.eventTime"), config).alias("window"),
        "event.*",
    )
