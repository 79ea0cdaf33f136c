"""Ten Nexmark queries in Flink's SQL, in the meaning of the suite, over JSON events of one Kafka topic.

The suite's SQL is the model (github.com/nexmark/nexmark): q4, q7 and q9 keep all events and emit every change.
"""

from __future__ import annotations

from collections.abc import Mapping

from faultline.engines.flink.sql import quoted

_EVENTS = """\
CREATE TABLE events (
  `dateTime` BIGINT,
  person ROW<id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, extra STRING>,
  auction ROW<id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, expires BIGINT,
    seller BIGINT, category BIGINT, extra STRING>,
  bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING>,
  ts AS TO_TIMESTAMP_LTZ(`dateTime`, 3),
  WATERMARK FOR ts AS ts - INTERVAL '{watermark_s}' SECOND
) WITH ({options});
CREATE VIEW person_events AS SELECT person.id, person.name, person.city, person.state, ts FROM events
  WHERE person IS NOT NULL;
CREATE VIEW auctions AS SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve,
  ts, TO_TIMESTAMP_LTZ(auction.expires, 3) AS expires, auction.seller, auction.category, auction.extra FROM events
  WHERE auction IS NOT NULL;
CREATE VIEW bids AS SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, ts, bid.extra FROM events
  WHERE bid IS NOT NULL;
"""

_COUNTS = (
    "SELECT auction, COUNT(*) AS num, window_start, window_end FROM "
    "HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND) "
    "GROUP BY auction, window_start, window_end"
)
_TENS = "TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '10' SECOND)"
_JOINED = "auctions AS a JOIN bids AS b ON a.id = b.auction"
_IN_TIME = "b.ts BETWEEN a.ts AND a.expires"

# By query: columns of the result, and the SELECT.
QUERIES: Mapping[str, tuple[str, str]] = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, ts TIMESTAMP_LTZ(3), extra STRING",
        "SELECT auction, bidder, price, ts, extra FROM bids",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DECIMAL(16, 3), ts TIMESTAMP_LTZ(3), extra STRING",
        "SELECT auction, bidder, 0.908 * CAST(price AS DECIMAL(12)), ts, extra FROM bids",
    ),
    "q3": (
        "name STRING, city STRING, state STRING, id BIGINT",
        "SELECT p.name, p.city, p.state, a.id FROM auctions AS a JOIN person_events AS p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    ),
    "q4": (
        "category BIGINT, final BIGINT, PRIMARY KEY (category) NOT ENFORCED",
        "SELECT category, AVG(final) FROM ("
        f"SELECT a.id, a.category, MAX(b.price) AS final FROM {_JOINED} WHERE {_IN_TIME} GROUP BY a.id, a.category"
        ") GROUP BY category",
    ),
    "q5": (
        "auction BIGINT, num BIGINT",
        f"SELECT c.auction, c.num FROM ({_COUNTS}) AS c JOIN ("
        f"SELECT MAX(num) AS most, window_start, window_end FROM ({_COUNTS}) GROUP BY window_start, window_end"
        ") AS m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most",
    ),
    "q7": (
        "auction BIGINT, price BIGINT, bidder BIGINT, ts TIMESTAMP_LTZ(3), extra STRING",
        "SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM bids AS b JOIN ("
        f"SELECT MAX(price) AS price, window_end FROM {_TENS.format(table='bids')} GROUP BY window_start, window_end"
        ") AS m ON b.price = m.price "
        "WHERE b.ts BETWEEN CAST(m.window_end AS TIMESTAMP_LTZ(3)) - INTERVAL '10' SECOND "
        "AND CAST(m.window_end AS TIMESTAMP_LTZ(3))",
    ),
    "q8": (
        "id BIGINT, name STRING, starttime TIMESTAMP(3)",
        "SELECT p.id, p.name, p.window_start FROM ("
        f"SELECT id, name, window_start, window_end FROM {_TENS.format(table='person_events')} "
        "GROUP BY id, name, window_start, window_end) AS p JOIN ("
        f"SELECT seller, window_start, window_end FROM {_TENS.format(table='auctions')} "
        "GROUP BY seller, window_start, window_end) AS a "
        "ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
    ),
    "q9": (
        "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, opened TIMESTAMP_LTZ(3), "
        "expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING, auction BIGINT, bidder BIGINT, "
        "price BIGINT, bid_at TIMESTAMP_LTZ(3), bid_extra STRING, PRIMARY KEY (id) NOT ENFORCED",
        "SELECT id, itemName, description, initialBid, reserve, opened, expires, seller, category, extra, auction, "
        "bidder, price, bid_at, bid_extra FROM ("
        "SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.ts AS opened, a.expires, a.seller, "
        "a.category, a.extra, b.auction, b.bidder, b.price, b.ts AS bid_at, b.extra AS bid_extra, "
        "ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts ASC) AS place "
        f"FROM {_JOINED} WHERE {_IN_TIME}) WHERE place = 1",
    ),
    "q18": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP_LTZ(3), extra STRING, "
        "PRIMARY KEY (bidder, auction) NOT ENFORCED",
        "SELECT auction, bidder, price, channel, url, ts, extra FROM (SELECT *, "
        "ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS place FROM bids) WHERE place = 1",
    ),
    "q20": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, bid_at TIMESTAMP_LTZ(3), "
        "bid_extra STRING, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
        "opened TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING",
        "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.ts, b.extra, a.itemName, a.description, "
        f"a.initialBid, a.reserve, a.ts, a.expires, a.seller, a.category, a.extra FROM {_JOINED} WHERE a.category = 10",
    ),
}


def script(query: str, source: Mapping[str, str], sink: Mapping[str, str], watermark_s: float) -> str:
    """Return the script of one query. `source`, `sink`: options of the two tables."""
    columns, select = QUERIES[query]
    events = _EVENTS.format(watermark_s=f"{watermark_s:g}", options=_options(source))
    return (
        f"SET 'pipeline.name' = {quoted(query)};\n{events}"
        f"CREATE TABLE results ({columns}) WITH ({_options(sink)});\nINSERT INTO results {select};\n"
    )


def _options(given: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} = {quoted(value)}" for name, value in given.items())
