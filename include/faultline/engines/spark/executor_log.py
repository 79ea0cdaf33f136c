"""Executor logs: task starts, state loads and saved snapshots.

The log4j2 pattern is `instant level [thread] logger: message`, with instants in UTC and milliseconds. The thread name
of a task contains its index, stage and TID. RocksDB's logger name contains the store (`operatorId=0, partitionId=1,
storeName=default`). Without it, the task index is the partition, because state is partitioned like the shuffle.

Spark 4.2 logs `Loading N` and `Loaded N` for every batch, even if the store is already open at that version. A load is
*real* if files are fetched, the database is opened, or a changelog is replayed between the two lines in the same
thread. The first load of a store in an executor is always real, because a new process has no open store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline.system.journal import log_instant_ns

_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) \w+ \[([^\]]*)\] (.*?): (.*)$")
_TASK = re.compile(r"task (\d+)\.\d+ in stage (\d+)\.(\d+) \(TID (\d+)\)")
_STORE = re.compile(r"op(?:erator)?Id=(\d+),\s*part(?:ition)?Id=(\d+),\s*(?:storeN|n)ame=([^\s,)\]]+)")
_LOADING = re.compile(r"^Loading (\d+)\b")
_LOADED = re.compile(r"^Loaded (\d+)\b")
_RUNNING = re.compile(r"^Running task ")
_SAVED = re.compile(r"^Saved checkpoint files? for version (\d+)")
_READS_STATE = re.compile(r"^(?:Opened DB|[Rr]eplaying changelog|Loading checkpoint files|Copied .* from DFS)")


@dataclass(frozen=True)
class TaskLaunch:
    """Start of a task on an executor."""

    wall_ns: int
    executor: str
    tid: int
    stage: int
    index: int


@dataclass(frozen=True)
class StateLoad:
    """Load of one store's state by a task; `real` if data was read."""

    wall_ns: int
    executor: str
    tid: int | None
    store: str
    partition: int | None
    version: int
    real: bool


@dataclass(frozen=True)
class LogSnapshot:
    """Snapshot of one store that reached the checkpoint."""

    wall_ns: int
    executor: str
    partition: int | None
    version: int


@dataclass(frozen=True)
class ExecutorEvents:
    """Events of all executors of an attempt by kind, sorted by time."""

    launches: tuple[TaskLaunch, ...] = ()
    loads: tuple[StateLoad, ...] = ()
    snapshots: tuple[LogSnapshot, ...] = ()


@dataclass
class ExecutorLogReader:
    """Incremental reader of one executor's log; it remembers the pending loads by thread and the loaded stores."""

    executor: str
    launches: list[TaskLaunch] = field(default_factory=list)
    loads: list[StateLoad] = field(default_factory=list)
    snapshots: list[LogSnapshot] = field(default_factory=list)
    pending: dict[str, bool] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)

    @property
    def events(self) -> ExecutorEvents:
        """Events of the lines read so far."""
        return ExecutorEvents(tuple(self.launches), tuple(self.loads), tuple(self.snapshots))

    def read(self, text: str) -> None:
        """Read the next line; other lines are skipped."""
        match = _LINE.match(text)
        if match is None:
            return
        instant, thread, logger, message = match.groups()
        if logger.startswith("RocksDB"):
            self._store_line(instant, thread, logger, message)
        elif _RUNNING.match(message) and (task := _TASK.search(message)):
            index, stage, _, tid = map(int, task.groups())
            self.launches.append(TaskLaunch(log_instant_ns(instant), self.executor, tid, stage, index))

    def _store_line(self, instant: str, thread: str, logger: str, message: str) -> None:
        own = not logger.startswith("RocksDBFileManager")
        if own and _LOADING.match(message):
            self.pending[thread] = False
        elif own and (loaded := _LOADED.match(message)):
            self._loaded(instant, thread, f"{logger} {message}", int(loaded.group(1)))
        elif saved := _SAVED.match(message):
            _, partition = _store(f"{logger} {message}", thread)
            version = int(saved.group(1))
            self.snapshots.append(LogSnapshot(log_instant_ns(instant), self.executor, partition, version))
        elif thread in self.pending and _READS_STATE.match(message):
            self.pending[thread] = True

    def _loaded(self, instant: str, thread: str, text: str, version: int) -> None:
        store, partition = _store(text, thread)
        real = self.pending.pop(thread, False) or store not in self.loaded
        self.loaded.add(store)
        task = _TASK.search(thread)
        tid = int(task.group(4)) if task else None
        self.loads.append(StateLoad(log_instant_ns(instant), self.executor, tid, store, partition, version, real))


def _store(text: str, thread: str) -> tuple[str, int | None]:
    """Return the store name and partition from the logger's text, else from the task index."""
    if match := _STORE.search(text):
        return f"{match.group(1)}/{match.group(2)}/{match.group(3)}", int(match.group(2))
    if task := _TASK.search(thread):
        return f"task/{task.group(1)}", int(task.group(1))
    return f"thread/{thread}", None


def is_event(line: str) -> bool:
    """Return whether a log line contributes to an event."""
    match = _LINE.match(line.rstrip("\n"))
    if match is None:
        return False
    logger, message = match.group(3), match.group(4)
    patterns = (_LOADING, _LOADED, _SAVED, _READS_STATE) if logger.startswith("RocksDB") else (_RUNNING,)
    return any(pattern.match(message) for pattern in patterns)


def parse_executor_log(lines: Iterable[str], executor: str) -> ExecutorEvents:
    """Return the events of one executor's log; other lines are skipped."""
    reader = ExecutorLogReader(executor)
    for line in lines:
        reader.read(line.rstrip("\n"))
    return reader.events


def read_executor_logs(directory: Path) -> ExecutorEvents:
    """Return the events of `directory`/<application>/<executor>/stderr; empty without logs."""
    parsed = []
    for path in sorted(directory.glob("*/*/stderr")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            parsed.append(parse_executor_log(lines, f"{path.parent.parent.name}/{path.parent.name}"))
    return merge_events(parsed)


def merge_events(parsed: Sequence[ExecutorEvents]) -> ExecutorEvents:
    """Return the events of several executors, each kind sorted by time."""
    return ExecutorEvents(
        tuple(sorted((item for one in parsed for item in one.launches), key=lambda item: item.wall_ns)),
        tuple(sorted((item for one in parsed for item in one.loads), key=lambda item: item.wall_ns)),
        tuple(sorted((item for one in parsed for item in one.snapshots), key=lambda item: item.wall_ns)),
    )
