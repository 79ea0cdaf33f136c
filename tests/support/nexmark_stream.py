"""Nexmark queries over batches of events, with results in files; a query can block in a batch, to be killed there.

    nexmark_stream.py FOLDER EVENTS BATCH [--hold BATCH] QUERY…

A query is `q4` or, in its updating form, `q4-updating`. Writes FOLDER/out/QUERY/batch=N for each batch, and
FOLDER/done/QUERY when all events are processed. With --hold, the query blocks in that batch before it is written; the
file FOLDER/held/QUERY then exists.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "spark_jobs"))

from nexmark.catalogue import UPDATING, NexmarkQuery, Streams, load  # noqa: E402
from nexmark.events import EventRules, NexmarkEventSource  # noqa: E402

# From 18:59:50: ten dense seconds with many events per millisecond, then 5.5 hours with a few events per second, so
# that hours and days end, sessions expire, and events are out of order. The closing events are dense again.
RULES = EventRules(
    seed=7,
    rate=10_000.0,
    disorder=0.2,
    start_ms=1_760_036_390_000,
    curve=((0.0, 10.0, 10_000.0, 10_000.0), (10.0, 20_010.0, 5.0, 5.0), (20_010.0, 20_011.0, 10_000.0, 10_000.0)),
)
DELAY = "4 seconds"
# Advance of event time after the last event, so that all windows close.
AFTERWARDS_S = 3600
MAX_PARALLEL = 3


def load_form(name: str) -> NexmarkQuery:
    """Return the query of a name, in the named form."""
    number, _, form = name.partition("-")
    return load(number, updating=form == UPDATING)


def numbers(rows: DataFrame, events: int, *, closing: bool) -> DataFrame:
    """Return event numbers below `events`; with `closing`, also later ones whose event times close all windows."""
    n = F.col("value")
    if not closing:
        return rows.select(n.alias("n")).where(n < events)
    ahead = int(RULES.rate * AFTERWARDS_S) // RULES.total * RULES.total
    return rows.select(F.when(n < events, n).otherwise(n + ahead).alias("n")).where(n < events + 2 * RULES.total)


def streams(rows: DataFrame) -> Streams:
    events = NexmarkEventSource(rows, RULES)
    return Streams(events.person(), events.auction(), events.bid())


class Run:
    """One query over all events."""

    def __init__(self, spark: SparkSession, folder: Path, events: int, batch: int, hold: int | None) -> None:
        self._spark, self._folder, self._hold = spark, folder, hold
        self._events, self._batch = events, batch
        # Queries use the same view names, so only one is planned at a time.
        self._planning = threading.Lock()

    def query(self, name: str) -> None:
        last = -(-self._events // self._batch) + 2
        query = load_form(name)
        session = self._spark.newSession()
        rows = (
            session.readStream.format("rate-micro-batch").option("rowsPerBatch", self._batch)
            .option("numPartitions", 2).option("startTimestamp", 0).load()
        )  # fmt: skip
        made = query.timed(streams(numbers(rows, self._events, closing=query.event_time)), DELAY)
        with self._planning:
            frame = query.build(session, made)

        def write(part: DataFrame, number: int) -> None:
            if self._hold is not None and number >= self._hold:
                part.count()
                (self._folder / "held" / name).touch()
                time.sleep(600)
            part.write.mode("overwrite").parquet(str(self._folder / "out" / name / f"batch={number}"))

        writer = frame.writeStream.foreachBatch(write).outputMode(query.mode).queryName(name)
        checkpoint = str(self._folder / "checkpoints" / name)
        running = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        commits = self._folder / "checkpoints" / name / "commits"
        while not running.awaitTermination(0.1):
            if (commits / str(last)).exists():
                running.stop()
        if not (commits / str(last)).exists():
            raise RuntimeError(f"{name}: ended before its last batch")
        (self._folder / "done" / name).touch()
        print(f"{time.strftime('%X')} {name} done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("events", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--hold", type=int)
    parser.add_argument("queries", nargs="+")
    given = parser.parse_args()
    for name in ("held", "done", "out", "checkpoints"):
        (given.folder / name).mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.getOrCreate()
    if not (given.folder / "events").exists():
        made = streams(spark.range(given.events).withColumnRenamed("id", "n"))
        for stream, name in ((made.person, "person"), (made.auction, "auction"), (made.bid, "bid")):
            stream.coalesce(1).write.parquet(str(given.folder / "events" / name))
    run = Run(spark, given.folder, given.events, given.batch, given.hold)
    parallel = MAX_PARALLEL if given.hold is None else len(given.queries)  # held queries must all be started
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(run.query, given.queries))
    spark.stop()


if __name__ == "__main__":
    main()
