"""What the chain leaves behind: its frontier in the files of a Structured Streaming checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from progress import Journal
from running import newest_batch, newest_commit

from .files import put
from .frontier import Reached
from .replay import EDEN, SPACES


class FrontierLog:
    """The frontier as batches: offsets/<n> is as old as the plan of the first input in it, commits/<n> as its end."""

    def __init__(self, checkpoint: Path, topic: str, listener: Journal, run_id: str) -> None:
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
