"""Mean of each seller's last eleven winning prices, as each auction ends.

The suite specifies a window of ten rows before the current one, in the order of the winning bids; Flink SQL cannot run
it. In a stream the order is that in which auctions end, as in Apache Beam's version. The winners (see `winning_bids`)
go to `transformWithState`, which keeps eleven prices per seller. Sellers with neighbouring ids share a state, because
Python calls per seller would cost more than the computation.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pandas as pd
from nexmark.catalogue import Streams, winning_bids
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

MODE = "append"
EVENT_TIME = True
KEPT = 11
NEIGHBOURS = 1024


class LastPrices(StatefulProcessor):
    """The last winning prices of the sellers of one group."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("last", "rows BINARY")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        names = ["seller", "at", "item", "price"]
        new = pd.concat([part[[*names, "newest"]] for part in rows]).assign(fresh=True)
        before = self._state.get()
        parts = [pickle.loads(before[0]).assign(fresh=False, newest=0), new] if before else [new]
        ordered = pd.concat(parts).sort_values(["seller", "at", "item"], kind="stable", ignore_index=True)
        means = ordered.groupby("seller")["price"].rolling(KEPT, min_periods=1).mean().reset_index(drop=True)
        self._state.update((pickle.dumps(ordered[names].groupby("seller").tail(KEPT)),))
        made = {"seller": ordered["seller"], "avg_price": means.astype("int64"), "newest": ordered["newest"]}
        yield pd.DataFrame(made)[ordered["fresh"]]


def query(streams: Streams) -> DataFrame:
    """Columns seller, avg_price, newest; a row for each auction that is over and got a bid."""
    winners = winning_bids(streams, ("id", "seller", "expires"), ("price",)).select(
        "auction.seller", F.unix_micros("auction.expires").alias("at"), F.col("auction.id").alias("item"), "bid.price",
        "newest", F.expr(f"auction.seller div {NEIGHBOURS}").alias("neighbours"),
    )  # fmt: skip
    return winners.groupBy("neighbours").transformWithStateInPandas(
        LastPrices(), "seller LONG, avg_price LONG, newest LONG", outputMode="Append", timeMode="None"
    )
