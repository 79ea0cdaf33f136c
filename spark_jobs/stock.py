"""Stock queries over sliding windows of event time: trades of each stock, and the worth of users' holdings.

Records that are later than the watermark allows are left out by Spark, which counts them. Output records, at each
change: key = `<szcode or userID>|<window start in epoch ms>`, value = `<n> <sum>`.

    spark-submit stock.py --config FILE
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, configured, milliseconds, run

STOCK, TRANSACTION, POSITION = "STOCK", "TRANSACTION", "POSITION"
# The fields of all three streams; a record has those of its own.
SCHEMA = (
    "stream string, szcode string, userID bigint, eventTime timestamp, lastPrice decimal(12,2), Price decimal(12,2), "
    "Turnover int, openInterest int"
)


def event_of(value: Column) -> Column:
    """The record's text as a struct of SCHEMA; its fields are null where the text is no such record."""
    return F.from_json(value, SCHEMA)


def watermarked(records: DataFrame, config: Config) -> DataFrame:
    """The fields of Kafka records that are events, with the watermark on their event time."""
    events = records.select(event_of(F.col("value").cast("string")).alias("event")).select("event.*")
    return events.where("eventTime is not null").withWatermark("eventTime", milliseconds(config["watermark_s"]))


def windows(event_time: Column | str, config: Config) -> Column:
    """The windows of `window_s` that start every `slide_s` and hold the event: a row each, once selected."""
    return F.window(event_time, milliseconds(config["window_s"]), milliseconds(config["slide_s"]))


def result_key(name: str) -> Column:
    """`<name>|<start of the column `window` in epoch ms>`."""
    return F.concat_ws("|", F.col(name).cast("string"), F.unix_millis("window.start").cast("string"))


def result_value() -> Column:
    """`<n> <sum>` of the columns `n` and `sum`."""
    return F.concat_ws(" ", F.col("n").cast("string"), F.col("sum").cast("string"))


def stock_group_by(records: DataFrame, config: Config) -> DataFrame:
    """Sum Price x Turnover of each stock. State is one row a stock and open window.

    Input: Kafka records, of which those of the stream TRANSACTION count. Output: key, value.
    """
    trades = watermarked(records, config).where(F.col("stream") == TRANSACTION)
    sums = trades.groupBy(windows("eventTime", config), "szcode").agg(
        F.count("*").alias("n"), F.sum(F.col("Price") * F.col("Turnover")).alias("sum")
    )
    return sums.select(result_key("szcode").alias("key"), result_value().alias("value"))


def stock_join(records: DataFrame, config: Config) -> DataFrame:
    """Sum STOCK.lastPrice x POSITION.openInterest of each user; `n` counts joined pairs.

    A stream-stream join: every position meets every quote of its stock in the same window. Spark keeps both sides of
    each open window as state, and one row a user and window of the sums. Input: Kafka records, of which those of the
    streams STOCK and POSITION count. Output: key, value.
    """
    events = watermarked(records, config)
    window = windows("eventTime", config)
    quotes = events.where(F.col("stream") == STOCK).select("szcode", "lastPrice", window.alias("window"))
    positions = events.where(F.col("stream") == POSITION).select(
        "userID", F.col("szcode").alias("held"), "openInterest", window.alias("held_in")
    )
    pairs = positions.join(quotes, (F.col("held") == F.col("szcode")) & (F.col("held_in") == F.col("window")))
    sums = pairs.groupBy("window", "userID").agg(
        F.count("*").alias("n"), F.sum(F.col("lastPrice") * F.col("openInterest")).alias("sum")
    )
    return sums.select(result_key("userID").alias("key"), result_value().alias("value"))


QUERIES = {"group": stock_group_by, "join": stock_join}

if __name__ == "__main__":
    run(QUERIES[configured(__doc__)["query"]], __doc__)
