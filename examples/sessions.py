"""Sessions of each user: clicks separated by less than a pause, with `transformWithState`.

    ./faultline job check examples/sessions.py data=examples/clicks.jsonl data_key=user data_time=at

A record is a click, {"user", "at", "page"}. A result is a session so far: its number, pages and length. Clicks of a
user are on one partition, in order, so sessions do not depend on the batch boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

JOB = {"output_mode": "update", "reflects": "newest", "arguments": {"pause_s": 5}}


class Sessions(StatefulProcessor):
    """State per user: the current session."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("session", "number LONG, pages LONG, began DOUBLE, last DOUBLE")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        clicks = pd.concat(list(rows)).sort_values(["at", "offset"], kind="stable")
        number, pages, began, last = self._state.get() or (0, 0, 0.0, None)
        found: dict[int, tuple[int, float, int]] = {}
        for at, newest in zip(clicks["at"].tolist(), clicks["newest"].tolist(), strict=True):
            if last is None or at - last > self._pause_s:
                number, pages, began = number + 1, 0, at
            pages, last = pages + 1, at
            found[number] = pages, at - began, newest
        self._state.update((number, pages, began, last))
        rows_out = [(f"{key[0]}#{one}", f"{n} pages in {took:g} s", newest) for one, (n, took, newest) in found.items()]
        yield pd.DataFrame(rows_out, columns=["key", "value", "newest"])

    def close(self) -> None:
        pass


def query(records: DataFrame, config: dict[str, str]) -> DataFrame:
    """Return key (user and session number), value (pages and length) and newest (of the last click)."""
    click = F.from_json(F.col("value").cast("string"), "user STRING, at DOUBLE, page STRING")
    clicks = records.select(click.alias("click"), "offset", F.col("number").alias("newest"))
    return (
        clicks.select("click.user", "click.at", "offset", "newest")
        .where("user IS NOT NULL")
        .groupBy("user")
        .transformWithStateInPandas(
            Sessions(float(config["pause_s"])),
            "key STRING, value STRING, newest LONG",
            outputMode="Update",
            timeMode="None",
        )
    )
