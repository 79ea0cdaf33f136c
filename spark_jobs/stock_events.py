"""The records of the stock streams as columns, their windows, and how results are written: for queries and harvest."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from running import Config, milliseconds

STOCK, TRANSACTION, POSITION = "STOCK", "TRANSACTION", "POSITION"
# The fields of all three streams; a record has those of its own.
SCHEMA = (
    "stream string, szcode string, userID bigint, eventTime timestamp, lastPrice decimal(12,2), Price decimal(12,2), "
    "Turnover int, openInterest int"
)


def event_of(value: Column) -> Column:
    """The record's text as a struct of SCHEMA; its fields are null where the text is no such record."""
    return F.from_json(value, SCHEMA)


def watermarked(records: DataFrame, config: Config) -> DataFrame:
    """The fields of Kafka records that are events, with the watermark on their event time."""
    events = records.select(event_of(F.col("value").cast("string")).alias("event")).select("event.*")
    return events.where("eventTime is not null").withWatermark("eventTime", milliseconds(config["watermark_s"]))


def windows(event_time: Column | str, config: Config) -> Column:
    """The windows of `window_s` that start every `slide_s` and hold the event: a row each, once selected."""
    return F.window(event_time, milliseconds(config["window_s"]), milliseconds(config["slide_s"]))


def result_key(name: str) -> Column:
    """`<name>|<start of the column `window` in epoch ms>`."""
    return F.concat_ws("|", F.col(name).cast("string"), F.unix_millis("window.start").cast("string"))


def result_value() -> Column:
    """`<n> <sum>` of the columns `n` and `sum`."""
    return F.concat_ws(" ", F.col("n").cast("string"), F.col("sum").cast("string"))
