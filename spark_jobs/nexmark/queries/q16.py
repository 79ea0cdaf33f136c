"""Number of bids per channel and day, with numbers of bidders and auctions, by price rank."""

from __future__ import annotations

from nexmark.catalogue import Streams
from nexmark.distinct import COLUMNS, count_distinct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MODE = "update"
KEY = ("channel", "day")


def query(streams: Streams) -> DataFrame:
    """Columns channel, day, minute (the latest, as HH:mm), twelve counts, newest."""
    minute = F.format_string("%02d:%02d", F.expr("minute div 60").cast("int"), F.col("minute") % 60)
    return count_distinct(streams.bid, "channel", shares=4).select(
        F.col("name").alias("channel"), "day", minute.alias("minute"), *COLUMNS, "newest"
    )
