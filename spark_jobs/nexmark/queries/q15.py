"""Number of bids per day, with numbers of bidders and auctions, by price rank."""

from __future__ import annotations

from nexmark.catalogue import Streams
from nexmark.distinct import COLUMNS, count_distinct
from pyspark.sql import DataFrame

MODE = "update"
KEY = ("day",)


def query(streams: Streams) -> DataFrame:
    """Columns day, twelve counts, newest."""
    return count_distinct(streams.bid, "''", shares=1).select("day", *COLUMNS, "newest")
