"""Events as JSON records, as `generators/nexmark.py` sends them: one object with `n` and the fields of its kind."""

from __future__ import annotations

from nexmark.catalogue import Streams
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
