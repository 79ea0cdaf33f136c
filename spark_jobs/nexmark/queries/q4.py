"""Mean of the winning prices in each category.

The winners come from one grouping (see `winning_bids`). Their mean has no window, and Spark does not support chaining
such an aggregation, so `transformWithState` keeps it. Prices and their mean are whole numbers, as in the suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from nexmark.catalogue import Streams, winning_bids
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

MODE = "append"
EVENT_TIME = True
KEY = ("category",)


class CategoryMeans(StatefulProcessor):
    """Count and sum of the prices of one category."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("mean", "count LONG, total LONG")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        count, total = self._state.get() or (0, 0)
        newest = 0
        for part in rows:
            newest = max(newest, int(part["newest"].max()))
            count, total = count + int(part["count"].sum()), total + int(part["total"].sum())
        self._state.update((count, total))
        yield pd.DataFrame({"category": [key[0]], "final": [total // count], "newest": [newest]})


def query(streams: Streams) -> DataFrame:
    """Columns category, final, newest; a row for each category with new winners, in each batch."""
    winners = winning_bids(streams, ("category",), ("price",))
    return category_means(
        winners.select("auction.category", F.lit(1).alias("count"), F.col("bid.price").alias("total"), "newest")
    )


def category_means(changes: DataFrame) -> DataFrame:
    """Columns category, final, newest, from changes of number and sum: category, count, total, newest."""
    return changes.groupBy("category").transformWithStateInPandas(
        CategoryMeans(), "category LONG, final LONG, newest LONG", outputMode="Append", timeMode="None"
    )
