"""Each auction with its best bid so far.

All bids of an auction stay in its row of state. Spark has no ranking of streams, and a join cannot feed an updating
aggregation, so auctions and bids are grouped together.
"""

from __future__ import annotations

from nexmark.catalogue import Streams
from nexmark.events import AUCTION
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MODE = "update"
KEY = ("id",)


def query(streams: Streams) -> DataFrame:
    """All columns of the auction, then those of the bid: auction, bidder, price, bid_dateTime, bid_extra, newest."""
    nothing = F.lit(None)
    auctions = streams.auction.select(
        F.col("id").alias("item"), F.struct(*AUCTION).alias("opened"), nothing.alias("offer"), "n"
    )
    # The greatest struct is the winner: by price, then by time.
    offer = F.struct("price", (-F.unix_micros("dateTime")).alias("by_time"), "bidder", "dateTime", "extra")
    bids = streams.bid.select(F.col("auction").alias("item"), nothing.alias("opened"), offer.alias("offer"), "n")
    kept = (
        auctions.unionByName(bids)
        .groupBy("item")
        .agg(F.max("opened").alias("opened"), F.collect_list("offer").alias("offers"), F.max("n").alias("newest"))
    )
    begun, over = F.col("opened.dateTime"), F.col("opened.expires")
    in_time = F.filter("offers", lambda one: (one["dateTime"] >= begun) & (one["dateTime"] <= over))
    best = kept.where("opened IS NOT NULL").withColumn("best", F.array_max(in_time)).where("best IS NOT NULL")
    return best.select(
        "opened.*", F.col("item").alias("auction"), "best.bidder", "best.price",
        F.col("best.dateTime").alias("bid_dateTime"), F.col("best.extra").alias("bid_extra"), "newest",
    )  # fmt: skip
