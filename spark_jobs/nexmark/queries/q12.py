"""Number of bids of each bidder in ten seconds of processing time.

A batch belongs to its planning time. This is a module because of its watermark, which drops closed windows.
"""

from __future__ import annotations

from nexmark.catalogue import Streams
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MODE = "update"
KEY = ("bidder", "starttime")


def query(streams: Streams) -> DataFrame:
    """Columns bidder, bid_count, starttime, endtime, newest."""
    bids = streams.bid.select("bidder", "n", F.current_timestamp().alias("at")).withWatermark("at", "0 seconds")
    counts = bids.groupBy("bidder", F.window("at", "10 seconds").alias("span"))
    return counts.agg(F.count("*").alias("bid_count"), F.max("n").alias("newest")).select(
        "bidder", "bid_count", F.col("span.start").alias("starttime"), F.col("span.end").alias("endtime"), "newest"
    )
