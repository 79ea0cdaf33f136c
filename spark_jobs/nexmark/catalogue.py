"""Nexmark queries by name: SQL where Spark's streams support it, else a module with a function `query`.

A SQL file starts with comments: a description, `mode` (append or update), `event time: yes` if it needs watermarks,
`key` if a row replaces an earlier one with the same values there, and `beside` for columns that distinguish equal rows
and are not part of the suite's result. A module has a docstring, MODE, EVENT_TIME and KEY instead. Every result has a
column `newest`: the number of its newest event, from which its latency is derived.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from workload_runner import NEWEST, parse_json

QUERIES = Path(__file__).parent / "queries"
# Forms that keep everything and emit every change, as the suite's SQL does on Flink.
UPDATING = "updating"
SIDE_ROWS = 10_000
_OPTION = re.compile(r"^--\s(mode|event\stime|key|beside):\s(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Streams:
    """Persons, auctions and bids, each with `n`, the number of the event."""

    person: DataFrame
    auction: DataFrame
    bid: DataFrame

    def with_watermark(self, delay: str) -> Streams:
        """Return the same streams, with events up to `delay` late by `dateTime`."""
        return Streams(*(one.withWatermark("dateTime", delay) for one in (self.person, self.auction, self.bid)))


@dataclass(frozen=True)
class NexmarkQuery:
    """Query of the suite. `text`: description. `mode`: Spark's output mode. `event_time`: needs watermarks.

    `key`: the columns in which a row replaces an earlier one; empty if rows do not replace each other. `extra_columns`:
    columns that distinguish equal rows and are not part of the suite's result.
    """

    name: str
    text: str
    mode: str
    event_time: bool
    key: tuple[str, ...]
    extra_columns: tuple[str, ...]
    build: Callable[[SparkSession, Streams], DataFrame]

    def timed(self, streams: Streams, delay: str) -> Streams:
        """Return the streams, with watermarks if the query needs them."""
        return streams.with_watermark(delay) if self.event_time else streams


def names() -> list[str]:
    """Return the names of all queries, in order."""
    found = {path.stem for path in QUERIES.iterdir() if re.fullmatch(r"q\d+", path.stem)}
    return sorted(found, key=lambda name: int(name[1:]))


def load(name: str, *, updating: bool = False) -> NexmarkQuery:
    """Return the query `name`; its updating form if there is one and it is wanted.

    Raises KeyError if it does not exist.
    """
    if name not in names():
        raise KeyError(name)
    for folder in ((UPDATING,) if updating else ()) + ("",):
        if (path := QUERIES / folder / f"{name}.sql").exists():
            return _from_sql(path)
        if path.with_suffix(".py").exists():
            return _from_module(name, ".".join(filter(None, ("nexmark.queries", folder, name))))
    raise KeyError(name)


def _from_sql(path: Path) -> NexmarkQuery:
    text = path.read_text(encoding="utf-8")
    options = dict(_OPTION.findall(text))
    what = text.splitlines()[0].removeprefix("-- ")

    def build(spark: SparkSession, streams: Streams) -> DataFrame:
        for stream in ("person", "auction", "bid"):
            getattr(streams, stream).createOrReplaceTempView(stream)
        _side_input(spark)
        spark.sql(_COUNT_CHAR)
        return spark.sql(text)

    event_time = options.get("event time") == "yes"
    key, extra_columns = (_names(options.get(name, "")) for name in ("key", "beside"))
    return NexmarkQuery(path.stem, what, options["mode"], event_time, key, extra_columns, build)


def _from_module(name: str, path: str) -> NexmarkQuery:
    module = importlib.import_module(path)
    # Workers cannot import modules next to the program, so all of this package are sent by value.
    cloudpickle.register_pickle_by_value(importlib.import_module("nexmark"))
    what = (module.__doc__ or "").splitlines()[0]
    event_time, key = getattr(module, "EVENT_TIME", False), getattr(module, "KEY", ())
    return NexmarkQuery(name, what, module.MODE, event_time, key, (), lambda _, streams: module.query(streams))


def result_columns(results: DataFrame, query: NexmarkQuery) -> DataFrame:
    """Return the suite's result, without columns that identify its origin."""
    return results.drop(NEWEST, *query.extra_columns)


def to_kafka_records(results: DataFrame, query: NexmarkQuery) -> DataFrame:
    """Return results as Kafka records: `key` (of replacement or identity), `value` (JSON), `newest`."""
    row = F.to_json(F.struct(*result_columns(results, query).columns))
    own = F.concat_ws("|", *(F.col(name).cast("string") for name in (NEWEST, *query.extra_columns)), F.xxhash64(row))
    key = F.to_json(F.struct(*query.key)) if query.key else own
    return results.select(key.alias("key"), row.alias("value"), NEWEST)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


# The suite's user function, in SQL, so that the optimiser can inline it.
_COUNT_CHAR = """
CREATE OR REPLACE TEMPORARY FUNCTION count_char(text STRING, one STRING) RETURNS BIGINT
RETURN CAST(length(text) - length(replace(text, one, '')) AS BIGINT)
"""


def _side_input(spark: SparkSession) -> None:
    """Create the bounded side input of query 13: a text for each key."""
    rows = spark.range(SIDE_ROWS).selectExpr("id AS key", "concat('value-', id) AS value")
    rows.createOrReplaceTempView("side_input")


# JSON records of `generators/nexmark.py`: one object with `n` and the fields of its kind.


PERSON = (
    "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, dateTime TIMESTAMP, "
    "extra STRING"
)
AUCTION = (
    "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, dateTime TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
)
BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime TIMESTAMP, extra STRING"
SCHEMA = f"n BIGINT, person STRUCT<{PERSON}>, auction STRUCT<{AUCTION}>, bid STRUCT<{BID}>"


def parse_events(records: DataFrame) -> Streams:
    """Return the three streams of records with JSON events; invalid records are skipped."""
    events = parse_json(records, SCHEMA)
    person, auction, bid = (
        events.where(f"event.{kind} IS NOT NULL").select("event.n", f"event.{kind}.*")
        for kind in ("person", "auction", "bid")
    )
    return Streams(person, auction, bid)


# JSON records of `NexmarkEventSource.as_json`: times are ms since 1970, and the event time is outside its kind.
_TIMED = f"n BIGINT, dateTime BIGINT, person STRUCT<{PERSON}>, auction STRUCT<{AUCTION}>, bid STRUCT<{BID}>"
TIMED_SCHEMA = _TIMED.replace(", dateTime TIMESTAMP", "").replace("expires TIMESTAMP", "expires BIGINT")


def parse_timed_events(records: DataFrame) -> Streams:
    """Return the three streams of records written by `NexmarkEventSource.as_json`."""
    events = parse_json(records, TIMED_SCHEMA)
    at = F.timestamp_millis("event.dateTime").alias("dateTime")
    person, auction, bid = (
        events.where(f"event.{kind} IS NOT NULL").select("event.n", at, f"event.{kind}.*")
        for kind in ("person", "auction", "bid")
    )
    return Streams(person, auction.withColumn("expires", F.timestamp_millis("expires")), bid)


# Winning bids of expired auctions, for queries 4, 6 and 9.
#
# The suite joins bids to auctions and ranks them. Here both are one stream, grouped by auction and session: an auction
# opens a session of its length, and bids fall into it. Thus Spark keeps one row per open auction instead of all bids,
# and drops it when the watermark passes its end.


# Spark's shortest interval: event times are whole milliseconds, so a bid's session only overlaps an auction that
# contains it.
_INSTANT_S = 0.000001


def winning_bids(streams: Streams, auction: tuple[str, ...], bid: tuple[str, ...]) -> DataFrame:
    """Return one row per expired auction with bids: structs `auction` and `bid` with the given fields, `newest`.

    `newest` is the number of the newest event in the row. The earlier of equal bids wins. Bids before the auction
    starts or after it expires do not count.
    """
    seconds = F.col("expires").cast("double") - F.col("dateTime").cast("double")
    opened = streams.auction.select(
        # One instant longer, so that an auction ends at its expiry with or without bids.
        F.col("id").alias("item"), F.col("dateTime").alias("at"), _length(seconds + _INSTANT_S),
        F.struct(*auction).alias("auction"), F.lit(None).alias("bid"), "n",
    )  # fmt: skip
    # The maximum is the winner: by price, then by time.
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
    # A session has one auction, and `max` ignores nulls.
    over = sessions.agg(F.max("auction").alias("auction"), F.max("bid").alias("bid"), F.max("n").alias("newest"))
    return over.where("auction IS NOT NULL AND bid IS NOT NULL")


def _length(seconds: Column) -> Column:
    zero = F.lit(0)
    return F.make_interval(zero, zero, zero, zero, zero, zero, seconds.cast("decimal(18,6)")).alias("length")
