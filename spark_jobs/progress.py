"""Writes what the streaming query reports, one flushed JSON line an event.

Spark has no REST endpoint for streaming queries, so a listener is the only way to see each batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Journal:
    """One flushed JSON line an event, with wall and monotonic time in ns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Appends a line."""
        line = {"event": event, **fields, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class ProgressLog(StreamingQueryListener):
    """Appends `started`, `progress` and `terminated` events to `path`."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        self._journal.write("started", query_id=str(event.id), run_id=str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        sources = progress.get("sources") or []
        operators = progress.get("stateOperators") or []
        self._journal.write(
            "progress",
            run_id=progress["runId"],
            batch=progress["batchId"],
            trigger_wall_ms=_epoch_ms(progress["timestamp"]),
            duration_ms=progress.get("durationMs", {}),
            num_input_rows=progress.get("numInputRows", 0),
            start_offsets=_offsets([source.get("startOffset") for source in sources]),
            end_offsets=_offsets([source.get("endOffset") for source in sources]),
            state={
                "rows": sum(operator.get("numRowsTotal", 0) for operator in operators),
                "rows_updated": sum(operator.get("numRowsUpdated", 0) for operator in operators),
                # Rows, not records: a late record is one in each of its windows, and those of a key arrive as one.
                "rows_dropped": sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
                "memory_bytes": sum(operator.get("memoryUsedBytes", 0) for operator in operators),
                "custom": operators[0].get("customMetrics", {}) if operators else {},
            },
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._journal.write("terminated", run_id=str(event.runId), exception=event.exception)


def _epoch_ms(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)


def _offsets(values: Sequence[Any]) -> dict[str, int] | None:
    """Offsets by partition of the first source that has some; None for the start of the first batch."""
    for value in values:
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, dict) and isinstance(value.get("offset"), int):
            return {"0": value["offset"]}  # events that the engine numbers itself, in one row
        if isinstance(value, dict) and value:
            ends = next(iter(value.values()))
            return ends if isinstance(ends, dict) else None
    return None
