"""Harvest of the stock queries: late records, windows of the other records, and their sums.

`group`: a tuple is a (record, window) pair, counted by stock and window. `join`: a tuple is a refresh, the change of a
user's window by a batch, produced with its newest record. Late records are not tuples, because the engine drops them.
"""

from __future__ import annotations

from output_matching import batch_counts, count_sums, first_emissions, group_tuples
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from stock import POSITION, SCHEMA, STOCK, TRANSACTION, result_key, windows
from workload_runner import Config

# Share of `late_ms` beyond which a record is late. Disorder is at most half of it: half of a watermark of at most an
# hour. The rest covers preload records, which are up to some minutes off the schedule.
LATE_SHARE = 0.75
# Value `<n> <sum>` of the queries.
RESULT = r"^\d{1,18} \d{1,30}\.\d\d$"


def with_events(records: DataFrame) -> DataFrame:
    """Add `event`, the record's fields."""
    return records.withColumn("event", F.from_json("value", SCHEMA))


def with_late(records: DataFrame, config: Config) -> DataFrame:
    """Add `late`: whether the event time is at least `late_ms` before the production time.

    The clocks of market and machine run at the same speed, so punctual records have a constant difference, and the
    largest difference shows it. Preload records are close enough to it to be found even if all others are late.
    """
    ahead = F.unix_millis("event.eventTime") - F.col("timestamp_ms")
    market = records.agg(F.max(ahead).alias("ahead")).collect()[0]["ahead"]
    behind = F.lit(market) - ahead
    return records.withColumn("late", F.coalesce(behind > LATE_SHARE * config["late_ms"], F.lit(False)))


def harvest_group(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts of stock_group_by."""
    trades = _events_by_window(records, TRANSACTION, config).select(
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
    tuples = group_tuples(trades.drop("amount", "undrained"), first_emissions(batch_counts(trades), results))
    return tuples, count_sums(expected, results)


def harvest_join(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts of stock_join."""
    pairs = joined(records, config).cache()
    undrained = F.coalesce(F.sum(F.when(F.col("undrained"), F.col("n"))), F.lit(0)).alias("undrained")
    expected = pairs.groupBy("key").agg(F.sum("n").alias("expected"), undrained, _drained("amount").alias("total"))
    refreshes = pairs.groupBy("lineage", "batch", "key").agg(
        F.sum("n").alias("n"), F.max("produced_ms").alias("produced_ms"), F.bool_and("primer").alias("primer")
    )
    results = with_results(outputs)
    emissions = first_emissions(refreshes.where("batch is not null"), results)
    return group_tuples(refreshes, emissions), count_sums(expected, results)


def joined(records: DataFrame, config: Config) -> DataFrame:
    """Return pairs of positions and quotes, grouped by equal columns.

    Columns: lineage, batch (the later of both; null: no epoch took both), key, n, amount, produced_ms (of the newest
    record of that batch), primer, undrained (of either). Records are counted before the join, so the work grows with
    records and batches of a window instead of pairs.
    """
    opened = ["lineage", "batch", "undrained", "window", "szcode"]
    about = (F.count("*").alias("n"), F.max("produced_ms").alias("newest"), F.bool_and("primer").alias("primer"))
    quotes = _events_by_window(records, STOCK, config).groupBy(*opened).agg(*about, F.sum("lastPrice").alias("amount"))
    positions = _events_by_window(records, POSITION, config).groupBy(*opened, "userID")
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
    """Return the sum over drained input; 0 if there is none."""
    return F.coalesce(F.sum(F.when(~F.col("undrained"), F.col(amount))), F.lit(0))


def with_results(outputs: DataFrame) -> DataFrame:
    """Add `count` and `total` of values `<n> <sum>`; both null if the value is invalid."""
    readable = F.col("value").rlike(RESULT)
    count, total = (F.split_part("value", F.lit(" "), F.lit(place)) for place in (1, 2))
    return outputs.withColumns(
        {
            "count": F.when(readable, count.try_cast("bigint")),
            "total": F.when(readable, total.try_cast("decimal(32,2)")),
        }
    )


def _events_by_window(records: DataFrame, stream: str, config: Config) -> DataFrame:
    """Return a row per window of each punctual event of the stream, with the event's fields."""
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
