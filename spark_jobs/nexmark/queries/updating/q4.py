"""Mean of the highest prices so far of the auctions in each category.

Bids are joined with their auctions; both are kept. Spark does not chain updating aggregations, so two operators in
Python follow. The first keeps the highest price of each auction, in blocks of auctions, since each access to a row of
state is a message to the JVM. The second keeps count and sum of each category.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from nexmark.catalogue import Streams
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

MODE = "append"
KEY = ("category",)
# Auctions of a block have neighbouring ids.
BLOCK = 1024


class HighestPrices(StatefulProcessor):
    """Highest price of each auction of a block; returns the changes of their number and sum."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._prices = handle.getValueState("prices", "auctions ARRAY<LONG>, prices ARRAY<LONG>")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        auctions, prices = self._prices.get() or ((), ())
        known = dict(zip(auctions, prices, strict=True))
        count, total, newest = 0, 0, 0
        for part in rows:
            newest = max(newest, int(part["newest"].max()))
            for auction, price in part.groupby("id")["price"].max().items():
                before = known.get(auction)
                if before is None or before < price:
                    known[int(auction)] = int(price)
                    count, total = count + (before is None), total + int(price) - (before or 0)
        if total:
            self._prices.update((list(known), list(known.values())))
            yield pd.DataFrame({"category": [key[0]], "count": [count], "total": [total], "newest": [newest]})


class Means(StatefulProcessor):
    """Mean price of one category."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._mean = handle.getValueState("mean", "count LONG, total LONG")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        count, total = self._mean.get() or (0, 0)
        newest = 0
        for part in rows:
            newest = max(newest, int(part["newest"].max()))
            count, total = count + int(part["count"].sum()), total + int(part["total"].sum())
        self._mean.update((count, total))
        yield pd.DataFrame({"category": [key[0]], "final": [total // count], "newest": [newest]})


def query(streams: Streams) -> DataFrame:
    """Columns category, final, newest; a row for each category with a new highest price, in each batch."""
    auction, bid = streams.auction.alias("auction"), streams.bid.alias("bid")
    joined = bid.join(
        auction,
        F.expr("auction.id = bid.auction AND bid.dateTime BETWEEN auction.dateTime AND auction.expires"),
    ).select(
        "category", "id", F.expr(f"id div {BLOCK}").alias("block"), "price",
        F.greatest("auction.n", "bid.n").alias("newest"),
    )  # fmt: skip
    changes = joined.groupBy("category", "block").transformWithStateInPandas(
        HighestPrices(), "category LONG, count LONG, total LONG, newest LONG", outputMode="Append", timeMode="None"
    )
    return changes.groupBy("category").transformWithStateInPandas(
        Means(), "category LONG, final LONG, newest LONG", outputMode="Append", timeMode="None"
    )
