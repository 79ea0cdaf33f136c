"""The queries by name: SQL where Spark's streams can run it, else a module with a function `query`.

A SQL file begins with comments: what it asks, `mode` (append or update), `event time: yes` where it needs watermarks,
`key` where a row takes the place of an earlier one with the same values there, and `beside` for columns that tell equal
rows apart and are no part of the suite's result. A module says the same in its docstring, MODE, EVENT_TIME and KEY.
Every result has a column `newest`: the number of the newest event that it is made of, by which its latency is known.
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
from workload_runner import NEWEST

QUERIES = Path(__file__).parent / "queries"
SIDE_ROWS = 10_000
_OPTION = re.compile(r"^-- (mode|event time|key|beside): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Streams:
    """Persons, auctions and bids, each with `n`, the number of the event."""

    person: DataFrame
    auction: DataFrame
    bid: DataFrame

    def with_watermark(self, delay: str) -> Streams:
        """The same streams, in which events may come `delay` late by `dateTime`."""
        return Streams(*(one.withWatermark("dateTime", delay) for one in (self.person, self.auction, self.bid)))


@dataclass(frozen=True)
class NexmarkQuery:
    """One query of the suite. `text`: what it asks. `mode`: Spark's output mode. `event_time`: needs watermarks.

    `key`: the columns in which a row replaces an earlier one; empty where each stands for itself. `beside`: columns
    that are no result of the suite's, and tell equal rows apart.
    """

    name: str
    text: str
    mode: str
    event_time: bool
    key: tuple[str, ...]
    beside: tuple[str, ...]
    build: Callable[[SparkSession, Streams], DataFrame]

    def timed(self, streams: Streams, delay: str) -> Streams:
        """The streams as the query takes them: with watermarks where it needs them."""
        return streams.with_watermark(delay) if self.event_time else streams


def names() -> list[str]:
    """All queries, in order."""
    found = {path.stem for path in QUERIES.iterdir() if re.fullmatch(r"q\d+", path.stem)}
    return sorted(found, key=lambda name: int(name[1:]))


def load(name: str) -> NexmarkQuery:
    """The query `name`. Raises KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    path = QUERIES / f"{name}.sql"
    return _from_sql(path) if path.exists() else _from_module(name)


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
    key, beside = (_names(options.get(name, "")) for name in ("key", "beside"))
    return NexmarkQuery(path.stem, what, options["mode"], event_time, key, beside, build)


def _from_module(name: str) -> NexmarkQuery:
    module = importlib.import_module(f"nexmark.queries.{name}")
    # Workers cannot import what stands beside the program: what they run of it goes to them as it is.
    for part in ("nexmark.distinct", module.__name__):
        cloudpickle.register_pickle_by_value(importlib.import_module(part))
    what = (module.__doc__ or "").splitlines()[0]
    event_time, key = getattr(module, "EVENT_TIME", False), getattr(module, "KEY", ())
    return NexmarkQuery(name, what, module.MODE, event_time, key, (), lambda _, streams: module.query(streams))


def plain(results: DataFrame, query: NexmarkQuery) -> DataFrame:
    """What the suite has for a result: without the columns that only tell where it comes from."""
    return results.drop(NEWEST, *query.beside)


def output(results: DataFrame, query: NexmarkQuery) -> DataFrame:
    """Results as records for Kafka: `key` (what a row replaces, or what it is), `value` (JSON), `newest`."""
    row = F.to_json(F.struct(*plain(results, query).columns))
    own = F.concat_ws("|", *(F.col(name).cast("string") for name in (NEWEST, *query.beside)), F.xxhash64(row))
    key = F.to_json(F.struct(*query.key)) if query.key else own
    return results.select(key.alias("key"), row.alias("value"), NEWEST)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


# The suite's user function. A function in SQL is one that the optimiser can see into.
_COUNT_CHAR = """
CREATE OR REPLACE TEMPORARY FUNCTION count_char(text STRING, one STRING) RETURNS BIGINT
RETURN CAST(length(text) - length(replace(text, one, '')) AS BIGINT)
"""


def _side_input(spark: SparkSession) -> None:
    """The bounded table of query 13, with a text for each key."""
    rows = spark.range(SIDE_ROWS).selectExpr("id AS key", "concat('value-', id) AS value")
    rows.createOrReplaceTempView("side_input")


# Events as JSON records, as `generators/nexmark.py` sends them: one object with `n` and the fields of its kind.


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


def parsed(records: DataFrame) -> Streams:
    """The three streams of records whose `value` is such a text; what is none is left out."""
    events = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("event"))
    person, auction, bid = (
        events.where(f"event.{kind} IS NOT NULL").select("event.n", f"event.{kind}.*")
        for kind in ("person", "auction", "bid")
    )
    return Streams(person, auction, bid)


# The winning bid of each auction, once the auction is over: what queries 4, 6 and 9 have in common.
#
# The suite joins bids to auctions and ranks them. Here both are one stream, grouped by auction and session: an
# auction opens a session as long as it lasts, and a bid falls into it or stands alone. So Spark keeps one row for an
# auction that is open instead of all of its bids, and forgets it when the watermark has passed its end.


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
