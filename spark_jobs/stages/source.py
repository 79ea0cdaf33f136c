"""Streaming source of a stage: Kafka topics, read with admission, parallelism and replay.

Spark's Kafka source has fixed options. This one reads the current limits before each batch: rate limit, hold, and the
three replay queues. Batches are planned in a Python process on the driver's host, which receives the limits through
files (`admission.AdmissionLimits`); tasks receive theirs with their partition.

Options: `bootstrap`; `topics` (JSON: queue -> topic; `eden` alone, or with `a` and `b`), each with `partitions`;
`orders` (file of the limits); `roles` (file: which space is From); `parallelism`; `text` (`key` or `value`: which holds
the text of a tuple; the other one is its number); `fresh` (`true`: Eden holds the chain's input, whose keys are not
attempts); `begin` (JSON: end offsets to start at); `failing` (JSON of `failure_injection.FailureInjector`, or null).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from .admission import AdmissionLimits, RateBudget, record_planning, write_atomically
from .failure_injection import FailureInjector
from .kafka import RecordRange, TopicEnds, read_range
from .replacement import groups_of
from .replay import EDEN, SPACES, Position, places, plan

NAME = "faultline_stage"
# `text`: the tuple. `number`: its attempts, or a count. `part`, `at`: its input position.
SCHEMA = "text string, number long, part int, at long"


class StageSource(DataSource):
    """Data source `faultline_stage`; see the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> StageReader:
        return StageReader(dict(self.options))


class _Task(InputPartition):
    """Input of one task: (topic, partition, first offset, end offset, queue), and the space of failed tuples."""

    def __init__(self, ranges: Sequence[tuple[str, int, int, int, str]], failed_to: str) -> None:
        super().__init__((tuple(ranges), failed_to))


class StageReader(DataSourceStreamReader):
    """Reader that plans batches on the driver and reads them in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._bootstrap = options["bootstrap"]
        self._topics: dict[str, str] = json.loads(options["topics"])
        self._partitions = int(options["partitions"])
        self._orders, self._roles = Path(options["orders"]), Path(options["roles"])
        self._parallelism = int(options["parallelism"])
        self._text_is_key = options["text"] == "key"
        self._fresh = options["fresh"] == "true"
        self._begin: dict[str, int] = json.loads(options["begin"])
        failing = json.loads(options["failing"])
        self._failing = None if failing is None else FailureInjector(**failing)
        self._allowance = RateBudget()
        self._ends: TopicEnds | None = None
        self._is_recorded = False
        self._from = ""

    def initialOffset(self) -> dict[str, Any]:
        begin = dict.fromkeys(map(str, range(self._partitions)), 0) | self._begin
        return Position({EDEN: begin, **{space: dict.fromkeys(begin, 0) for space in SPACES}}).document()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch under the current limits; `start` itself for no batch."""
        orders = AdmissionLimits.read(self._orders)
        if orders.hold:
            return start
        budget = self._allowance.take(time.monotonic(), orders)
        self._record_planning()
        if self._ends is None:
            self._ends = TopicEnds(self._bootstrap, self._topics.values(), self._partitions)
        found = self._ends.read()
        ends = {queue: found.get(self._topics.get(queue, ""), {}) for queue in (EDEN, *SPACES)}
        end = plan(Position.of(start), ends, budget)
        if SPACES[0] in self._topics and end.from_ != self._from:
            write_atomically(self._roles, end.from_)
            self._from = end.from_
        return end.document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each group of partitions that has records."""
        self._record_planning()
        first, last = Position.of(start), Position.of(end)
        ranges = [
            (self._topics[queue], int(partition), low, high, queue)
            for queue, partition, low, high in places(first, last)
        ]
        # If the roles change meanwhile, failed tuples are read one turn later.
        failed_to = self._failed_to() if self._failing and self._failing.replay else SPACES[0]
        tasks: list[InputPartition] = []
        for task in range(self._parallelism):
            mine = set(groups_of(task, self._parallelism, self._partitions))
            found = [one for one in ranges if one[1] in mine]
            if found:
                tasks.append(_Task(found, failed_to))
        return tasks

    def _failed_to(self) -> str:
        """Return the space that is From, as the source's planner recorded it; initially the first."""
        try:
            return self._roles.read_text()
        except FileNotFoundError:
            return Position({}).from_

    def _record_planning(self) -> None:
        # A batch that was planned but not committed before a restart is read again without `latestOffset`.
        if not self._is_recorded:
            self._is_recorded = True
            record_planning(self._orders)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a task, without those that fail."""
        ranges, failed_to = partition.value
        for topic, number, first, end, queue in ranges:
            for chunk in read_range(self._bootstrap, topic, number, first, end):
                texts, numbers = self._columns(chunk, fresh=self._fresh and queue == EDEN)
                at = pa.array(chunk.offsets, pa.int64())
                part = pa.array([number] * len(texts), pa.int32())
                batch = pa.RecordBatch.from_arrays([texts, numbers, part, at], names=["text", "number", "part", "at"])
                if self._failing is not None:
                    batch = self._failing.sift(batch, chunk.timestamps_ms, self._bootstrap, failed_to)
                yield batch

    def _columns(self, chunk: RecordRange, *, fresh: bool) -> tuple[pa.Array, pa.Array]:
        """Return text and number of each record."""
        text, number = (chunk.keys, chunk.values) if self._text_is_key else (chunk.values, chunk.keys)
        texts = pa.array(text, pa.binary()).cast(pa.string())
        if fresh:
            return texts, pa.array(np.zeros(len(texts), dtype=np.int64))
        return texts, pa.array(number, pa.binary()).cast(pa.string()).cast(pa.int64())
