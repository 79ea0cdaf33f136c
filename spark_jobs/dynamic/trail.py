"""What the chain leaves behind: its frontier in the files of a Structured Streaming checkpoint, and a journal."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .frontier import Reached
from .replay import EDEN, SPACES


class Journal:
    """One JSON line an event, with wall and monotonic time in ns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Appends and flushes a line."""
        line = {"event": event, **fields, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class FrontierLog:
    """The frontier as batches: offsets/<n> is as old as the plan of the first input in it, commits/<n> as its end."""

    def __init__(self, checkpoint: Path, topic: str, listener: Journal, run_id: str) -> None:
        self._offsets, self._commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)
        self._topic, self._listener, self._run_id = topic, listener, run_id
        done = [int(path.name) for path in self._commits.iterdir() if path.name.isdigit()]
        self._batch = max(done, default=-1) + 1
        self._ends: dict[str, int] = {}
        if done:
            text = (self._offsets / str(self._batch - 1)).read_text().splitlines()[2]
            self._ends = json.loads(text)[self._topic]

    @property
    def ends(self) -> dict[str, int]:
        """Where the last batch ended."""
        return self._ends

    def commit(self, reached: Reached) -> None:
        """Writes the next batch, unless nothing is new in it."""
        if reached.ends == self._ends:
            return
        lines = ["v1", json.dumps({"batchTimestampMs": reached.planned_ns // 1_000_000})]
        lines.append(json.dumps({self._topic: reached.ends}))
        _put(self._offsets / str(self._batch), "\n".join(lines), reached.planned_ns)
        _put(self._commits / str(self._batch), "v1\n{}", time.time_ns())
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
    done = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not done:
        return {}
    return by_queue((checkpoint / "offsets" / str(max(done))).read_text().splitlines()[2])


def _put(path: Path, text: str, instant_ns: int) -> None:
    """Writes beside and renames, so that a reader sees nothing or all of it, with the instant as its time."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.utime(temporary, ns=(instant_ns, instant_ns))
    temporary.rename(path)
