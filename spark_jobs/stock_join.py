"""What each user's holdings are worth: the sum of STOCK.lastPrice x POSITION.openInterest over sliding windows.

A stream-stream join: every position meets every quote of its stock in the same window. Spark keeps both sides of
each open window as state, besides one row a user and window of the sums. Records that are later than the watermark
allows are left out by Spark, which counts them. Output records, at each change: key =
`<userID>|<window start in epoch ms>`, value = `<n> <sum>`, n being joined pairs.

    spark-submit stock_join.py --config FILE
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from running import Config, run
from stock_events import POSITION, STOCK, result_key, result_value, watermarked, windows


def stock_join(records: DataFrame, config: Config) -> DataFrame:
    """Input: Kafka records, of which those of the streams STOCK and POSITION count. Output: key, value."""
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


if __name__ == "__main__":
    run(stock_join, __doc__)
