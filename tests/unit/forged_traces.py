"""A run of the engine with known truth as files of Spark: checkpoint, executor log, listener journal.

So the engine left its traces before it had some of its own; Spark's parsers are held against what is known of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faultline.engines.known_truth.traces import Ends
from faultline.system.journal import Journal

APPLICATION = "known_truth"
_VERSION = "v1"


class FileTraces:
    """Writes under `checkpoint`, `spark_logs`/known_truth/<incarnation>/stderr and `listener_log`."""

    def __init__(
        self,
        *,
        checkpoint: Path,
        spark_logs: Path,
        listener_log: Path,
        incarnation: int,
        topic: str,
        partitions: int,
    ) -> None:
        self._offsets, self._commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)
        log = spark_logs / APPLICATION / str(incarnation) / "stderr"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._listener = Journal(listener_log)
        self._run_id = f"{APPLICATION}-{incarnation}"
        self._topic, self._partitions = topic, partitions
        self._tids: dict[tuple[int, int], int] = {}
        self._rows = 0
        self._planned_ms: dict[int, int] = {}
        self._listener.write("started", query_id=APPLICATION, run_id=self._run_id)

    def plan(self, batch: int, ends: Ends, base: Ends | None) -> None:
        """Writes offsets/<batch>: version, metadata, end offsets of the one source."""
        now_ms = time.time_ns() // 1_000_000
        self._planned_ms[batch] = now_ms
        metadata: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}}
        if base is not None:
            metadata["base"] = _by_name(base)
        lines = [_VERSION, json.dumps(metadata), json.dumps({self._topic: _by_name(ends)})]
        _put(self._offsets / str(batch), "\n".join(lines))

    def commit(self, batch: int, starts: Ends, ends: Ends) -> None:
        """Writes commits/<batch>, and what a streaming query would report of it."""
        _put(self._commits / str(batch), f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}')
        records = sum(end - starts.get(partition, 0) for partition, end in ends.items())
        self._rows = sum(ends.values())
        planned_ms = self._planned_ms.pop(batch, 0)
        self._listener.write(
            "progress",
            run_id=self._run_id,
            batch=batch,
            trigger_wall_ms=planned_ms,
            duration_ms={"triggerExecution": time.time_ns() // 1_000_000 - planned_ms},
            num_input_rows=records,
            start_offsets=_by_name(starts),
            end_offsets=_by_name(ends),
            state={"rows": self._rows, "rows_updated": records, "memory_bytes": 0, "custom": {}},
        )

    def launch(self, batch: int) -> None:
        """Logs the launch of a task for each partition."""
        for partition in range(self._partitions):
            self._note(batch, partition, "Executor", f"Running {self._task(batch, partition)}")

    def load(self, batch: int, partition: int, *, from_checkpoint: bool) -> None:
        """Logs what RocksDB does when the state of a partition is loaded, or is open already."""
        store = f"StateStoreId(opId=0,partId={partition},name=default)"
        self._note(batch, partition, f"RocksDB {store}", f"Loading {batch}")
        if from_checkpoint:
            self._note(batch, partition, f"RocksDBFileManager {store}", "Copied 1 files (9 bytes) from DFS to local")
        self._note(batch, partition, f"RocksDB {store}", f"Loaded {batch}")

    def say(self, message: str) -> None:
        """One line on standard error, which the supervisor keeps as the driver's log."""
        print(f"{_instant()} INFO [main] KnownTruth: {message}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The engine ends by itself."""
        self._listener.write("terminated", run_id=self._run_id, exception=None)
        self._listener.close()

    def _task(self, batch: int, partition: int) -> str:
        tid = self._tids.setdefault((batch, partition), len(self._tids))
        return f"task {partition}.0 in stage {batch}.0 (TID {tid})"

    def _note(self, batch: int, partition: int, logger: str, message: str) -> None:
        thread = f"Executor task launch worker for {self._task(batch, partition)}"
        os.write(self._log, f"{_instant()} INFO [{thread}] {logger}: {message}\n".encode())


def _put(path: Path, text: str) -> None:
    """Writes beside and renames: a reader sees nothing or all of it, and its time is that of the writing."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


def _instant() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
