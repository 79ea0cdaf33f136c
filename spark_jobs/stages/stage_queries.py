"""One stage of the chain as a streaming query that can be started, held, and replaced by one of another parallelism."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from workload_runner import LINEAGE_HEADER, JsonLinesWriter, header, milliseconds, newest_batch, newest_commit

from .admission import AdmissionLimits, asked, asked_at, put
from .frontier import Reached
from .persist_sink import PersistSink
from .replay import EDEN, SPACES
from .source import NAME

HOLD_LIMIT_S = 120.0
REHEARSED_RECORDS = 500
POLL_S = 0.02
RATE_BATCHES = 5


@dataclass(frozen=True)
class StagePlan:
    """What a stage is told. `inputs`: queue -> topic, of `partitions` partitions each. `output`: topic, or None for
    the last stage, which persists. `sink_options`: of Spark's Kafka sink, beside where it is. `groups`: partitions of
    its state. `failing`: of `failing.Failing`, or None.
    """

    name: str
    bootstrap: str
    inputs: dict[str, str]
    partitions: int
    output: str | None
    folder: Path
    checkpoint_interval_s: float
    groups: int
    failing: dict[str, Any] | None
    ends_chain: bool
    sink_options: dict[str, str] = field(default_factory=dict)


@dataclass
class StageProgress:
    """What a stage's query last reported: how far it read each queue, the rate at which tuples are taken in while there
    are any (the greatest of some batches), which generation of the query it was, how many batches have ended, and how
    many tuples came of each (one, before that is known).
    """

    position: dict[str, dict[str, int]] = field(default_factory=dict)
    rows_per_s: float = 0.0
    generation: int = 0
    batches: int = 0
    fan_out: float = 1.0


class Stage:
    """Keeps the query of one stage. Every start counts as a generation, whose queries are named `<stage>-<number>`."""

    def __init__(self, spark: SparkSession, plan: StagePlan, parallelism: int, persisting: PersistSink | None) -> None:
        self._spark, self.plan, self.parallelism = spark, plan, parallelism
        self._persisting = persisting
        self._generation = 0
        self._told = AdmissionLimits()
        self._planned = -1
        self._telling = threading.Lock()
        self._orders = plan.folder / f"{plan.name}.orders"
        self._rates: deque[float] = deque(maxlen=RATE_BATCHES)
        self._emitted: deque[tuple[int, int]] = deque(maxlen=RATE_BATCHES)
        self._checkpoint = plan.folder / plan.name
        # What a replacement made of it outlives the program, and so does what is known of its tuples.
        self._kept = plan.folder / f"{plan.name}.parallelism"
        if self._kept.exists():
            self.parallelism = int(self._kept.read_text())
        self._kept_fan_out = plan.folder / f"{plan.name}.fan_out"
        fan_out = float(self._kept_fan_out.read_text()) if self._kept_fan_out.exists() else 1.0
        self.wanted = self.parallelism
        if persisting is None:
            self._begin: dict[str, int] = {}
            self.progress = StageProgress(committed_position(self._checkpoint), fan_out=fan_out)
        else:
            # The store knows where to begin, so what an earlier checkpoint says must not count.
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            self._begin = persisting.position
            self.progress = StageProgress({EDEN: self._begin} if self._begin else {}, fan_out=fan_out)
        self.query: StreamingQuery | None = None
        # What an earlier program ordered, such as a hold, must not outlive it.
        self._told.write(self._orders)

    @property
    def name(self) -> str:
        """One of those in `stages`."""
        return self.plan.name

    @property
    def is_settled(self) -> bool:
        """Whether a batch of the present generation has ended."""
        return self.progress.generation == self._generation

    def taken(self) -> dict[str, dict[str, int]]:
        """How far it has taken its queues in, with the batch that is in work. For one thread."""
        self._planned, position = planned_position(self._checkpoint, self._planned)
        return position or self.progress.position

    def limit(self, limit: float | None) -> None:
        """Records/s that the stage may take in from the next batch on; None: no limit."""
        self._tell(limit=limit)

    def limit_batches(self, most: int | None) -> None:
        """Records that a batch may have from the next one on; None: no limit."""
        self._tell(most=most)

    def leave_room(self, most: int) -> None:
        """Records that a batch may have so that what comes of it fits into an empty queue below."""
        self._tell(room=most)

    def start(self) -> None:
        """Starts the query where its checkpoint, or the store, says that it had come to."""
        self._generation += 1
        asked(self._orders).unlink(missing_ok=True)
        # Tasks of all stages take turns, instead of those of one batch going first.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        tuples = self._tuples(self._begin, self._orders, self.parallelism, self.plan.failing)
        writer = self._writer(tuples, self.parallelism).option("checkpointLocation", str(self._checkpoint))
        self.query = (
            writer.queryName(f"{self.name}-{self._generation}")
            .trigger(processingTime=milliseconds(self.plan.checkpoint_interval_s))
            .start()
        )

    def reported(
        self, position: dict[str, dict[str, int]], rows: int, emitted: int | None, seconds: float, generation: int
    ) -> None:
        """The query of this generation ended a batch of so many rows, which had been in work for `seconds` and put out
        `emitted` (None: nobody knows).
        """
        self._rates.append(rows / max(seconds, self.plan.checkpoint_interval_s))
        fan_out = self.progress.fan_out
        if rows and emitted is not None:
            # Reports come late, so one batch's tuples may count for the one before: the sums of some are right.
            self._emitted.append((rows, emitted))
            fan_out = sum(put_out for _, put_out in self._emitted) / sum(taken for taken, _ in self._emitted)
            put(self._kept_fan_out, str(fan_out))
        self.progress = StageProgress(position, max(self._rates), generation, self.progress.batches + 1, fan_out)

    def stop(self) -> None:
        """Ends the query, in the midst of a batch if need be."""
        if self.query is not None:
            self.query.stop()

    def replace(self, parallelism: int, *, warm: bool) -> float:
        """Goes on with another parallelism from the same checkpoint; seconds from the old query's last commit until
        the new one planned its first batch.

        `warm`: the new plan has run on a few records beforehand, and the old query ends at a batch boundary. Otherwise
        it is stopped and started, and what its last batch had done is done again.
        """
        if warm:
            self._rehearse(parallelism)
            self._await_boundary()
        self.stop()
        committed_ns = last_commit_ns(self._checkpoint)
        self.parallelism = parallelism
        put(self._kept, str(parallelism))
        self._tell(hold=False)
        self.start()
        deadline = time.monotonic() + HOLD_LIMIT_S
        while not asked(self._orders).exists() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return 0.0 if committed_ns is None else (asked_at(self._orders) - committed_ns) / 1e9

    def _await_boundary(self) -> None:
        """Lets the batch in work end, and no other begin."""
        self._tell(hold=True)
        assert self.query is not None
        deadline = time.monotonic() + HOLD_LIMIT_S
        while self.query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _rehearse(self, parallelism: int) -> None:
        """Runs the new plan on the last records of the input, beside the old one, into nothing."""
        begin = {part: max(0, at - REHEARSED_RECORDS) for part, at in self.progress.position.get(EDEN, {}).items()}
        if not any(begin.values()):
            return
        checkpoint = self.plan.folder / f"{self.name}-rehearsal"
        shutil.rmtree(checkpoint, ignore_errors=True)
        orders = self.plan.folder / f"{self.name}-rehearsal.orders"
        # Without a limit it would read all that waits, and that is much when a stage is to be replaced.
        AdmissionLimits(most=REHEARSED_RECORDS).write(orders)
        tuples = self._tuples(begin, orders, parallelism, None)
        query = QUERIES.get(self.name)
        rows = tuples if query is None else query(tuples, parallelism)
        writer = rows.writeStream.format("noop").outputMode("update")
        rehearsal = writer.option("checkpointLocation", str(checkpoint)).start()
        deadline = time.monotonic() + HOLD_LIMIT_S
        while rehearsal.lastProgress is None and rehearsal.isActive and time.monotonic() < deadline:
            time.sleep(POLL_S)
        rehearsal.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)

    def _tuples(
        self, begin: dict[str, int], orders: Path, parallelism: int, failing: dict[str, Any] | None
    ) -> DataFrame:
        plan = self.plan
        options = {
            "bootstrap": plan.bootstrap,
            "topics": json.dumps(plan.inputs),
            "partitions": plan.partitions,
            "orders": str(orders),
            "roles": str(plan.folder / "roles"),
            "parallelism": parallelism,
            "text": TEXT[self.name],
            "fresh": str(self.name == SOURCE).lower(),
            "begin": json.dumps(begin),
            "failing": json.dumps(failing),
        }
        return self._spark.readStream.format(NAME).options(**options).load()

    def _writer(self, tuples: DataFrame, parallelism: int) -> DataStreamWriter:
        plan = self.plan
        if self.name == PERSIST:
            assert self._persisting is not None
            return tuples.writeStream.foreachBatch(self._persisting)
        rows = QUERIES[self.name](tuples, parallelism)
        if plan.ends_chain:
            rows = rows.withColumn("headers", F.array(header(LINEAGE_HEADER, F.lit("0"))))
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", plan.bootstrap)
        return writer.options(**plan.sink_options).option("topic", plan.output or "").outputMode("update")

    def _tell(self, **changes: Any) -> None:
        """Changes some of the orders; limit and hold come from threads of their own."""
        with self._telling:
            told = replace(self._told, **changes)
            if told != self._told:
                told.write(self._orders)
            self._told = told


# What each stage of the chain computes: tuples of its input (`source.SCHEMA`) to records of its output.
#
# source    takes lines out of the queues, as they are
# split     a line becomes its words
# count     counts words with full history; its state lies in as many partitions as the stage can have tasks
# persist   has no query: its rows go to the store (see `persisting`)
#
# Between stages a tuple is a record: the key is the number of its attempts and the value the line, or, from `split`
# on, the key is the word and the value its number: attempts, or behind `count` its count.


SOURCE, SPLIT, COUNT, PERSIST = "source", "split", "count", "persist"


def source(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Lines with their attempts."""
    return tuples.select(F.col("number").cast("string").alias("key"), F.col("text").alias("value"))


def split(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Words with their attempts. A word that failed comes back as a line of one word."""
    return tuples.select(F.explode(F.split("text", " ")).alias("key"), F.col("number").cast("string").alias("value"))


def count(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Each changed word with its count so far; as many tasks as the parallelism, whatever the state's partitions."""
    counts = tuples.groupBy("text").count().coalesce(parallelism)
    return counts.select(F.col("text").alias("key"), F.col("count").cast("string").alias("value"))


QUERIES: dict[str, Callable[[DataFrame, int], DataFrame]] = {SOURCE: source, SPLIT: split, COUNT: count}
# Where a stage finds the text of its tuples.
TEXT = {SOURCE: "value", SPLIT: "value", COUNT: "key", PERSIST: "key"}


# What the chain leaves behind: its frontier in the files of a Structured Streaming checkpoint.


class FrontierLog:
    """The frontier as batches: offsets/<n> is as old as the plan of the first input in it, commits/<n> as its end."""

    def __init__(self, checkpoint: Path, topic: str, listener: JsonLinesWriter, run_id: str) -> None:
        self._offsets, self._commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)
        self._topic, self._listener, self._run_id = topic, listener, run_id
        self._batch = newest_commit(checkpoint) + 1
        self._ends: dict[str, int] = {}
        if self._batch:
            text = (self._offsets / str(self._batch - 1)).read_text().splitlines()[2]
            self._ends = json.loads(text)[self._topic]

    def commit(self, reached: Reached) -> None:
        """Writes the next batch, unless nothing is new in it."""
        if reached.ends == self._ends:
            return
        lines = ["v1", json.dumps({"batchTimestampMs": reached.planned_ns // 1_000_000})]
        lines.append(json.dumps({self._topic: reached.ends}))
        put(self._offsets / str(self._batch), "\n".join(lines), reached.planned_ns)
        put(self._commits / str(self._batch), "v1\n{}", time.time_ns())
        self._listener.write(
            "progress",
            run_id=self._run_id,
            batch=self._batch,
            trigger_wall_ms=reached.planned_ns // 1_000_000,
            duration_ms={},
            num_input_rows=sum(reached.ends.values()) - sum(self._ends.values()),
            start_offsets=self._ends,
            end_offsets=reached.ends,
            state={"rows": 0, "rows_updated": 0, "memory_bytes": 0, "custom": {}},
        )
        self._ends = reached.ends
        self._batch += 1


def by_queue(document: str | Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """End offsets by queue and partition, out of a position as Spark keeps and reports it."""
    words = json.loads(document) if isinstance(document, str) else document
    return {queue: dict(words[queue]) for queue in (EDEN, *SPACES) if queue in words}


def committed_position(checkpoint: Path) -> dict[str, dict[str, int]]:
    """How far the query of a checkpoint has come; {} before its first commit."""
    return _position(checkpoint, newest_commit(checkpoint))


def planned_position(checkpoint: Path, batch: int = -1) -> tuple[int, dict[str, dict[str, int]]]:
    """The newest batch that the query of a checkpoint has planned, and what it has taken in with it: -1 and {} before
    the first one. `batch`: what the last look found, from which on this one looks; the folder grows all the time.
    """
    log = checkpoint / "offsets"
    if batch < 0:
        batch = newest_batch(log)
    while (log / str(batch + 1)).exists():
        batch += 1
    return batch, _position(checkpoint, batch)


def _position(checkpoint: Path, batch: int) -> dict[str, dict[str, int]]:
    return {} if batch < 0 else by_queue((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def last_commit_ns(checkpoint: Path) -> int | None:
    """When the query of a checkpoint committed last; None before its first commit."""
    newest = newest_commit(checkpoint)
    return None if newest < 0 else (checkpoint / "commits" / str(newest)).stat().st_mtime_ns
