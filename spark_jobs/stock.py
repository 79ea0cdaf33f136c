"""Stock queries over sliding event-time windows: trades of each stock, and value of users' positions.

    spark-submit stock.py --config FILE

Spark drops and counts records later than the watermark allows. Output records, on each change: key = `<szcode or
userID>|<window start in epoch ms>`, value = `<n> <sum>`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, milliseconds, parse_json, read_config, run

STOCK, TRANSACTION, POSITION = "STOCK", "TRANSACTION", "POSITION"
# Fields of all three streams; a record has only those of its stream.
SCHEMA = (
    "stream string, szcode string, userID bigint, eventTime timestamp, lastPrice decimal(12,2), Price decimal(12,2), "
    "Turnover int, openInterest int"
)


def watermarked(records: DataFrame, config: Config) -> DataFrame:
    """Return the events of Kafka records, with the watermark on their event time."""
    events = parse_json(records, SCHEMA).select("event.*")
    return events.where("eventTime is not null").withWatermark("eventTime", milliseconds(config["watermark_s"]))


def windows(event_time: Column | str, config: Config) -> Column:
    """Return the windows of `window_s`, every `slide_s`, that contain the event; one row each when selected."""
    return F.window(event_time, milliseconds(config["window_s"]), milliseconds(config["slide_s"]))


def result_key(name: str) -> Column:
    """Return `<name>|<start of the column `window` in epoch ms>`."""
    return F.concat_ws("|", F.col(name).cast("string"), F.unix_millis("window.start").cast("string"))


def result_value() -> Column:
    """Return `<n> <sum>` of the columns `n` and `sum`."""
    return F.concat_ws(" ", F.col("n").cast("string"), F.col("sum").cast("string"))


def stock_group_by(records: DataFrame, config: Config) -> DataFrame:
    """Sum Price x Turnover of each stock. State is one row per stock and open window.

    Input: Kafka records; only the stream TRANSACTION counts. Output: key, value.
    """
    trades = watermarked(records, config).where(F.col("stream") == TRANSACTION)
    sums = trades.groupBy(windows("eventTime", config), "szcode").agg(
        F.count("*").alias("n"), F.sum(F.col("Price") * F.col("Turnover")).alias("sum")
    )
    return sums.select(result_key("szcode").alias("key"), result_value().alias("value"))


def stock_join(records: DataFrame, config: Config) -> DataFrame:
    """Sum STOCK.lastPrice x POSITION.openInterest of each user; `n` counts joined pairs.

    A stream-stream join pairs every position with every quote of its stock in the same window. Spark keeps both sides
    of each open window as state, and one row per user and window of the sums. Input: Kafka records of the streams STOCK
    and POSITION. Output: key, value.
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
    run(QUERIES[read_config(__doc__)["query"]], __doc__)
