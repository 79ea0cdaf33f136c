"""The winning bid of each auction, once the auction is over: what queries 4, 6 and 9 have in common.

The suite joins bids to auctions and ranks them. Here both are one stream, grouped by auction and session: an auction
opens a session as long as it lasts, and a bid falls into it or stands alone. So Spark keeps one row for an auction that
is open instead of all of its bids, and forgets it when the watermark has passed its end.
"""

from __future__ import annotations

from nexmark.catalogue import Streams
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# The shortest time that Spark knows: a bid's session touches that of an auction only when it lies inside, since event
# times are whole milliseconds.
_INSTANT_S = 0.000001


def winning_bids(streams: Streams, auction: tuple[str, ...], bid: tuple[str, ...]) -> DataFrame:
    """One row for each auction that is over and got a bid: the columns `auction` and `bid` are structs with the fields
    asked for, `newest` the number of the newest event in it. Of equal prices the earlier bid wins. Bids before the
    auction begins or after it expires do not count.
    """
    seconds = F.col("expires").cast("double") - F.col("dateTime").cast("double")
    opened = streams.auction.select(
        # An instant longer, as if a bid came just as it ends: so an auction is over when it expires, bid or no bid.
        F.col("id").alias("item"), F.col("dateTime").alias("at"), _length(seconds + _INSTANT_S),
        F.struct(*auction).alias("auction"), F.lit(None).alias("bid"), "n",
    )  # fmt: skip
    # The largest of these is the winner: the price first, then who came first.
    rank = [
        F.col("price").alias("by_price"),
        (-F.unix_micros("dateTime")).alias("by_time"),
        (-F.col("n")).alias("by_n"),
    ]
    made = streams.bid.select(
        F.col("auction").alias("item"), F.col("dateTime").alias("at"), _length(F.lit(_INSTANT_S)),
        F.lit(None).alias("auction"), F.struct(*rank, *bid).alias("bid"), "n",
    )  # fmt: skip
    sessions = opened.unionByName(made).groupBy("item", F.session_window("at", F.col("length")))
    # A session has one auction, and `max` passes over the nulls.
    over = sessions.agg(F.max("auction").alias("auction"), F.max("bid").alias("bid"), F.max("n").alias("newest"))
    return over.where("auction IS NOT NULL AND bid IS NOT NULL")


def _length(seconds: Column) -> Column:
    zero = F.lit(0)
    return F.make_interval(zero, zero, zero, zero, zero, zero, seconds.cast("decimal(18,6)")).alias("length")
