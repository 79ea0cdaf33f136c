"""Mean of the highest prices so far of the auctions in each category.

Bids are joined with their auctions; both are kept. Spark does not chain updating aggregations, so `transformWithState`
keeps the highest price of each auction, and count and sum of each category.
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


class HighestPrices(StatefulProcessor):
    """Highest price by auction of one category, with count and sum of them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._prices = handle.getMapState("prices", "auction LONG", "price LONG")
        self._mean = handle.getValueState("mean", "count LONG, total LONG")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        count, total = self._mean.get() or (0, 0)
        newest, best = 0, {}
        for part in rows:
            newest = max(newest, int(part["newest"].max()))
            for auction, price in part.groupby("id")["price"].max().items():
                best[auction] = max(int(price), best.get(auction, 0))
        changed = False
        for auction, price in best.items():
            known = self._prices.getValue((int(auction),))
            if known is None or known[0] < price:
                self._prices.updateValue((int(auction),), (price,))
                count, total = count + (known is None), total + price - (known[0] if known else 0)
                changed = True
        if changed:
            self._mean.update((count, total))
            yield pd.DataFrame({"category": [key[0]], "final": [total // count], "newest": [newest]})


def query(streams: Streams) -> DataFrame:
    """Columns category, final, newest; a row for each category with a new highest price, in each batch."""
    auction, bid = streams.auction.alias("auction"), streams.bid.alias("bid")
    joined = bid.join(
        auction,
        F.expr("auction.id = bid.auction AND bid.dateTime BETWEEN auction.dateTime AND auction.expires"),
    ).select("category", "id", "price", F.greatest("auction.n", "bid.n").alias("newest"))
    return joined.groupBy("category").transformWithStateInPandas(
        HighestPrices(), "category LONG, final LONG, newest LONG", outputMode="Append", timeMode="None"
    )
