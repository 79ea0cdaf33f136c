"""Reference results of the Nexmark queries: DuckDB over the same events as bounded tables.

The SQL follows the definitions of the suite, independently of the streaming queries. Results are compared as bags of
rows, without the column `newest`. If a stream updates rows, the last row of each key counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pandas as pd

# Bids before the end of their auction, the winner first.
_WINNERS = """
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.n) = 1
"""
_COUNTS = ", ".join(
    f"count({what}) FILTER ({rank}) AS {name}_{thing}"
    for what, thing in (("*", "bids"), ("DISTINCT bidder", "bidders"), ("DISTINCT auction", "auctions"))
    for name, rank in (
        ("total", "true"), ("rank1", "price < 10000"), ("rank2", "price >= 10000 AND price < 1000000"),
        ("rank3", "price >= 1000000"),
    )
)  # fmt: skip
_DAY, _MINUTE = "strftime(dateTime, '%Y-%m-%d')", "strftime(dateTime, '%H:%M')"
_TEN = "time_bucket(INTERVAL 10 SECOND, dateTime)"

ANSWERS = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 AS DECIMAL(3, 3)) * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
             WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, CAST(sum(price) AS BIGINT) // count(*) AS final FROM ({_WINNERS}) GROUP BY category",
    "q5": """WITH hops AS (
                 SELECT auction, time_bucket(INTERVAL 2 SECOND, dateTime) - INTERVAL (2 * hop) SECOND AS starts
                 FROM bid, range(5) AS hops(hop)
             ), counts AS (SELECT auction, starts, count(*) AS num FROM hops GROUP BY auction, starts)
             SELECT auction, num FROM counts QUALIFY num = max(num) OVER (PARTITION BY starts)""",
    "q6": f"""SELECT seller, CAST(floor(avg(price) OVER (PARTITION BY seller ORDER BY expires, id
                  ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)) AS BIGINT) AS avg_price FROM ({_WINNERS})""",
    "q7": f"""WITH highest AS (SELECT {_TEN} AS starts, max(price) AS most FROM bid GROUP BY starts)
              SELECT auction, price, bidder, dateTime, extra FROM bid JOIN highest ON price = most
              WHERE dateTime BETWEEN starts AND starts + INTERVAL 10 SECOND""",
    "q8": f"""SELECT DISTINCT p.id, p.name, p.starttime
              FROM (SELECT id, name, {_TEN} AS starttime FROM person) p
              JOIN (SELECT seller, {_TEN} AS starttime FROM auction) a
              ON p.id = a.seller AND p.starttime = a.starttime""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
                  auction, bidder, price, bid_dateTime, bid_extra FROM ({_WINNERS})""",
    "q10": f"SELECT auction, bidder, price, dateTime, extra, {_DAY} AS dt, {_MINUTE} AS hm FROM bid",
    "q11": """WITH gaps AS (
                  SELECT *, dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime, n) AS gap FROM bid
              ), sessions AS (
                  SELECT *, sum(CASE WHEN gap <= INTERVAL 10 SECOND THEN 0 ELSE 1 END)
                      OVER (PARTITION BY bidder ORDER BY dateTime, n) AS session FROM gaps
              )
              SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
                  max(dateTime) + INTERVAL 10 SECOND AS endtime FROM sessions GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": "SELECT auction, bidder, price, dateTime, 'value-' || (auction % 10000) AS value FROM bid",
    "q14": """SELECT auction, bidder, CAST(0.908 AS DECIMAL(3, 3)) * price AS price,
                  CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                       WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END
                  AS bidTimeType, dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
              FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_COUNTS} FROM bid GROUP BY day",
    "q16": f"SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute, {_COUNTS} FROM bid GROUP BY channel, day",
    "q17": f"""SELECT auction, {_DAY} AS day, count(*) AS total_bids,
                   count(*) FILTER (price < 10000) AS rank1_bids,
                   count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
                   count(*) FILTER (price >= 1000000) AS rank3_bids, min(price) AS min_price, max(price) AS max_price,
                   CAST(sum(price) AS BIGINT) // count(*) AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
               FROM bid GROUP BY auction, day""",
    "q18": """SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
              QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, n DESC) = 1""",
    "q19": """SELECT auction, bidder, price, channel, url, dateTime, extra,
                  row_number() OVER (PARTITION BY auction ORDER BY price DESC, n) AS rank_number FROM bid
              QUALIFY rank_number <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
                  a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires,
                  a.seller, a.category, a.extra AS auction_extra
              FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                  WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                  ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
              FROM bid WHERE url LIKE '%&channel_id=%' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
                  split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """SELECT b.bidder, b.price, b.channel, b.url, b.extra AS bid_extra, p.id AS person_id, p.name,
                  p.emailAddress, p.creditCard, p.city, p.state, p.extra AS person_extra, a.itemName, a.description,
                  a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller, a.category,
                  a.extra AS auction_extra
              FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder""",
}


def answer(events: Path, query: str) -> pd.DataFrame:
    """Return the sorted rows of the query over `events`."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for stream in ("person", "auction", "bid"):
            times = "dateTime, expires" if stream == "auction" else "dateTime"
            plain = ", ".join(f"CAST({time} AS TIMESTAMP) AS {time}" for time in times.split(", "))
            database.execute(f"CREATE VIEW {stream} AS SELECT * REPLACE ({plain}) FROM '{events / stream}/*.parquet'")
        return sort_rows(database.sql(ANSWERS[query]).df())


def streamed(out: Path, query: str, key: Sequence[str], extra: Sequence[str] = ()) -> pd.DataFrame:
    """Return the last row of each key that the stream wrote, sorted, without the columns `extra`."""
    batches = sorted((out / query).glob("batch=*"), key=lambda folder: int(folder.name.partition("=")[2]))
    parts = [pd.read_parquet(folder) for folder in batches]
    rows = pd.concat([part for part in parts if len(part)], ignore_index=True)
    if query == "q12":  # its processing-time windows differ between runs, but their sums do not
        rows = rows.drop_duplicates(list(key), keep="last")
        return sort_rows(rows.groupby("bidder", as_index=False)["bid_count"].sum())
    if key:
        rows = rows.drop_duplicates(list(key), keep="last")
    return sort_rows(rows.drop(columns=["newest", *extra]))


def sort_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows sorted, with times in microseconds and prices in thousandths."""
    for name in rows.columns:
        if isinstance(rows[name].dtype, pd.DatetimeTZDtype):
            rows[name] = rows[name].dt.tz_localize(None)
        if str(rows[name].dtype).startswith("datetime64"):
            rows[name] = rows[name].astype("datetime64[us]")
        elif rows[name].dtype.kind in "iu":
            rows[name] = rows[name].astype("int64")
        elif name == "price" and rows[name].dtype.kind in "Of":  # decimals
            rows[name] = (rows[name].astype("float64") * 1000).round().astype("int64")
    return rows.sort_values(list(rows.columns), ignore_index=True)
