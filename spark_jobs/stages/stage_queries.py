"""Stages of the chain as streaming queries that can be started, held, and replaced with another parallelism."""

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

from .admission import AdmissionLimits, planned_at_ns, planning_file, write_atomically
from .frontier import Reached
from .persist_sink import PersistSink
from .replay import EDEN, SPACES
from .source import NAME

HOLD_LIMIT_S = 120.0
WARM_UP_RECORDS = 500
POLL_S = 0.02
RATE_BATCHES = 5


@dataclass(frozen=True)
class StagePlan:
    """Plan of a stage.

    `inputs`: queue -> topic, of `partitions` partitions each. `output`: topic; None for the last stage, which persists.
    `sink_options`: further options of Spark's Kafka sink. `groups`: partitions of its state. `failing`: of
    `failure_injection.FailureInjector`, or None.
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
    """Last reported progress of a stage's query.

    `position`: of each queue. `rows_per_s`: the highest input rate of recent batches. `generation`: of the query.
    `batches`: completed batches. `fan_out`: tuples emitted per tuple; 1 until known.
    """

    position: dict[str, dict[str, int]] = field(default_factory=dict)
    rows_per_s: float = 0.0
    generation: int = 0
    batches: int = 0
    fan_out: float = 1.0


class Stage:
    """Query of one stage. Every start is a generation, whose query is named `<stage>-<number>`."""

    def __init__(self, spark: SparkSession, plan: StagePlan, parallelism: int, persisting: PersistSink | None) -> None:
        self._spark, self.plan, self.parallelism = spark, plan, parallelism
        self._persisting = persisting
        self._generation = 0
        self._limits = AdmissionLimits()
        self._planned = -1
        self._limits_lock = threading.Lock()
        self._orders = plan.folder / f"{plan.name}.orders"
        self._rates: deque[float] = deque(maxlen=RATE_BATCHES)
        self._emitted: deque[tuple[int, int]] = deque(maxlen=RATE_BATCHES)
        self._checkpoint = plan.folder / plan.name
        # The parallelism and fan-out of a replaced stage survive the program.
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
            # The store determines the start, so an earlier checkpoint must not apply.
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            self._begin = persisting.position
            self.progress = StageProgress({EDEN: self._begin} if self._begin else {}, fan_out=fan_out)
        self.query: StreamingQuery | None = None
        # Limits of an earlier program, such as a hold, must not persist.
        self._limits.write(self._orders)

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.plan.name

    @property
    def is_settled(self) -> bool:
        """Whether a batch of the current generation has ended."""
        return self.progress.generation == self._generation

    def taken(self) -> dict[str, dict[str, int]]:
        """Return the position of each queue, including the running batch. Not thread-safe."""
        self._planned, position = planned_position(self._checkpoint, self._planned)
        return position or self.progress.position

    def limit(self, limit: float | None) -> None:
        """Limit the stage's input in records/s from the next batch on; None: no limit."""
        self._update_limits(limit=limit)

    def limit_batches(self, most: int | None) -> None:
        """Limit the records per batch from the next one on; None: no limit."""
        self._update_limits(most=most)

    def leave_room(self, most: int) -> None:
        """Limit the records per batch so that their output fits into an empty queue below."""
        self._update_limits(room=most)

    def start(self) -> None:
        """Start the query from its checkpoint or the store's position."""
        self._generation += 1
        planning_file(self._orders).unlink(missing_ok=True)
        # A pool per stage interleaves tasks of all stages.
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
        """Record a completed batch of a generation.

        `emitted`: tuples emitted; None if unknown. `seconds`: duration of the batch.
        """
        self._rates.append(rows / max(seconds, self.plan.checkpoint_interval_s))
        fan_out = self.progress.fan_out
        if rows and emitted is not None:
            # Reports are delayed, so tuples may count for the previous batch; sums over several batches are correct.
            self._emitted.append((rows, emitted))
            fan_out = sum(put_out for _, put_out in self._emitted) / sum(taken for taken, _ in self._emitted)
            write_atomically(self._kept_fan_out, str(fan_out))
        self.progress = StageProgress(position, max(self._rates), generation, self.progress.batches + 1, fan_out)

    def stop(self) -> None:
        """Stop the query, even during a batch."""
        if self.query is not None:
            self.query.stop()

    def replace(self, parallelism: int, *, warm: bool) -> float:
        """Restart with another parallelism from the same checkpoint.

        Returns the seconds from the old query's last commit to the new one's first planned batch. `warm`: the new plan
        is warmed up on a few records, and the old query ends at a batch boundary. Otherwise the query is stopped and
        restarted, and repeats its last batch.
        """
        if warm:
            self._warm_up(parallelism)
            self._await_boundary()
        self.stop()
        committed_ns = last_commit_ns(self._checkpoint)
        self.parallelism = parallelism
        write_atomically(self._kept, str(parallelism))
        self._update_limits(hold=False)
        self.start()
        deadline = time.monotonic() + HOLD_LIMIT_S
        while not planning_file(self._orders).exists() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return 0.0 if committed_ns is None else (planned_at_ns(self._orders) - committed_ns) / 1e9

    def _await_boundary(self) -> None:
        """Wait for the running batch to end, without starting another one."""
        self._update_limits(hold=True)
        assert self.query is not None
        deadline = time.monotonic() + HOLD_LIMIT_S
        while self.query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _warm_up(self, parallelism: int) -> None:
        """Run the new plan on the last input records, in parallel with the old query, with discarded output."""
        begin = {part: max(0, at - WARM_UP_RECORDS) for part, at in self.progress.position.get(EDEN, {}).items()}
        if not any(begin.values()):
            return
        checkpoint = self.plan.folder / f"{self.name}-rehearsal"
        shutil.rmtree(checkpoint, ignore_errors=True)
        orders = self.plan.folder / f"{self.name}-rehearsal.orders"
        # The limit matters, because the queue is long when a stage is replaced.
        AdmissionLimits(most=WARM_UP_RECORDS).write(orders)
        tuples = self._tuples(begin, orders, parallelism, None)
        query = QUERIES.get(self.name)
        rows = tuples if query is None else query(tuples, parallelism)
        writer = rows.writeStream.format("noop").outputMode("update")
        warm_up = writer.option("checkpointLocation", str(checkpoint)).start()
        deadline = time.monotonic() + HOLD_LIMIT_S
        while warm_up.lastProgress is None and warm_up.isActive and time.monotonic() < deadline:
            time.sleep(POLL_S)
        warm_up.stop()
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

    def _update_limits(self, **changes: Any) -> None:
        """Change the limits; several threads call this."""
        with self._limits_lock:
            limits = replace(self._limits, **changes)
            if limits != self._limits:
                limits.write(self._orders)
            self._limits = limits


# Queries of the stages, from input tuples (`source.SCHEMA`) to output records:
#
# source    forwards lines from the queues
# split     splits a line into words
# count     counts words with full history; its state has one partition per possible task
# persist   has no query: its rows go to the store (see `persist_sink`)
#
# Between stages, the key of a record is the number of attempts and the value the line. After `split`, the key is the
# word and the value the number of attempts, or after `count` its count.


SOURCE, SPLIT, COUNT, PERSIST = "source", "split", "count", "persist"


def source(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Return lines with their attempts."""
    return tuples.select(F.col("number").cast("string").alias("key"), F.col("text").alias("value"))


def split(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Return words with their attempts. A failed word comes back as a line of one word."""
    return tuples.select(F.explode(F.split("text", " ")).alias("key"), F.col("number").cast("string").alias("value"))


def count(tuples: DataFrame, parallelism: int) -> DataFrame:
    """Return each changed word with its count, in as many tasks as the parallelism."""
    counts = tuples.groupBy("text").count().coalesce(parallelism)
    return counts.select(F.col("text").alias("key"), F.col("count").cast("string").alias("value"))


QUERIES: dict[str, Callable[[DataFrame, int], DataFrame]] = {SOURCE: source, SPLIT: split, COUNT: count}
# Field with the text of a stage's tuples.
TEXT = {SOURCE: "value", SPLIT: "value", COUNT: "key", PERSIST: "key"}


class FrontierLog:
    """Frontier as batches in the format of a Structured Streaming checkpoint.

    The time of offsets/<n> is the planning of its first input, and that of commits/<n> its end.
    """

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
        """Write the next batch, unless it contains nothing new."""
        if reached.ends == self._ends:
            return
        lines = ["v1", json.dumps({"batchTimestampMs": reached.planned_ns // 1_000_000})]
        lines.append(json.dumps({self._topic: reached.ends}))
        write_atomically(self._offsets / str(self._batch), "\n".join(lines), reached.planned_ns)
        write_atomically(self._commits / str(self._batch), "v1\n{}", time.time_ns())
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


def offsets_by_queue(document: str | Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return end offsets by queue and partition from a position in Spark's format."""
    offsets = json.loads(document) if isinstance(document, str) else document
    return {queue: dict(offsets[queue]) for queue in (EDEN, *SPACES) if queue in offsets}


def committed_position(checkpoint: Path) -> dict[str, dict[str, int]]:
    """Return the committed position of a checkpoint; {} before its first commit."""
    return _position(checkpoint, newest_commit(checkpoint))


def planned_position(checkpoint: Path, batch: int = -1) -> tuple[int, dict[str, dict[str, int]]]:
    """Return the newest planned batch of a checkpoint and its position; -1 and {} before the first.

    `batch`: the result of the previous call, from which the search starts, because the folder keeps growing.
    """
    log = checkpoint / "offsets"
    if batch < 0:
        batch = newest_batch(log)
    while (log / str(batch + 1)).exists():
        batch += 1
    return batch, _position(checkpoint, batch)


def _position(checkpoint: Path, batch: int) -> dict[str, dict[str, int]]:
    return {} if batch < 0 else offsets_by_queue((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def last_commit_ns(checkpoint: Path) -> int | None:
    """Return the time of the last commit of a checkpoint; None before the first."""
    newest = newest_commit(checkpoint)
    return None if newest < 0 else (checkpoint / "commits" / str(newest)).stat().st_mtime_ns
