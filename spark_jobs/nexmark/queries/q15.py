"""How many bids a day has, and from how many bidders on how many auctions, by rank of price."""

from __future__ import annotations

from nexmark.catalogue import Streams
from nexmark.distinct import COLUMNS, counted
from pyspark.sql import DataFrame

MODE = "update"
KEY = ("day",)


def query(streams: Streams) -> DataFrame:
    """Columns day, twelve counts, newest."""
    return counted(streams.bid, "''", shares=1).select("day", *COLUMNS, "newest")
