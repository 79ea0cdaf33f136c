"""Each auction with its winning bid, once it is over."""

from __future__ import annotations

from nexmark.catalogue import Streams, winning_bids
from nexmark.events import AUCTION
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MODE = "append"
EVENT_TIME = True


def query(streams: Streams) -> DataFrame:
    """All columns of the auction, then those of the bid: auction, bidder, price, bid_dateTime, bid_extra, newest."""
    winners = winning_bids(streams, AUCTION, ("auction", "bidder", "price", "dateTime", "extra"))
    return winners.select(
        "auction.*", "bid.auction", "bid.bidder", "bid.price",
        F.col("bid.dateTime").alias("bid_dateTime"), F.col("bid.extra").alias("bid_extra"), "newest",
    )  # fmt: skip
