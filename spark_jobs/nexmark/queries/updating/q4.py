"""Mean of the highest prices so far of the auctions in each category.

Bids are joined with their auctions; both are kept. Spark does not chain updating aggregations, so two operators in
Python follow. The first keeps the highest price of each auction, in blocks of auctions, since a call per auction would
cost more than the comparison. The second keeps count and sum of each category.

Each `transformWithState` starts a Python process on the driver in every batch, which takes about a second, and Spark
allows `applyInPandasWithState` only once in a query.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pandas as pd
from nexmark.catalogue import Streams
from nexmark.queries.q4 import category_means
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

MODE = "append"
KEY = ("category",)
# Auctions of a block have neighbouring ids.
BLOCK = 1024


def raise_prices(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Keep the highest price of each auction of a block; yield the changes of their number and sum."""
    known: dict[int, int] = pickle.loads(state.get[0]) if state.exists else {}
    count, total, newest = 0, 0, 0
    for part in rows:
        newest = max(newest, int(part["newest"].max()))
        for auction, price in part.groupby("id")["price"].max().items():
            before = known.get(auction)
            if before is None or before < price:
                known[int(auction)] = int(price)
                count, total = count + (before is None), total + int(price) - (before or 0)
    if total:
        state.update((pickle.dumps(known),))
        yield pd.DataFrame({"category": [key[0]], "count": [count], "total": [total], "newest": [newest]})


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
    changes = joined.groupBy("category", "block").applyInPandasWithState(
        raise_prices, "category LONG, count LONG, total LONG, newest LONG", "prices BINARY",
        "append", GroupStateTimeout.NoTimeout,
    )  # fmt: skip
    return category_means(changes)
