"""Spark's executor logs: when tasks were launched, state was loaded, and snapshots were saved.

The run's log4j2 pattern is `instant level [thread] logger: message`, instants in UTC with
milliseconds. The thread name of a task carries its index, stage and TID. RocksDB's logger name
carries the store (`operatorId=0, partitionId=1, storeName=default`), so its lines name the partition;
where they do not, the task's index is the partition, because state is partitioned as the shuffle is.

Spark 4.2 logs `Loading N` and `Loaded N` for every batch, also when the store is open at that very
version and nothing is read. A load is *real* when, in the same thread between the two lines, files
came from the checkpoint, the database was opened or a changelog was replayed; and the first load of
a store in an executor is always real, since a fresh process has nothing open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline.engines.spark.rest import spark_instant_ns

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
    """A task began to run on an executor."""

    wall_ns: int
    executor: str
    tid: int
    stage: int
    index: int


@dataclass(frozen=True)
class StateLoad:
    """A task finished loading the state of one store; `real` when something was read for it."""

    wall_ns: int
    executor: str
    tid: int | None
    store: str
    partition: int | None
    version: int
    real: bool


@dataclass(frozen=True)
class LogSnapshot:
    """A snapshot of one store reached the checkpoint."""

    wall_ns: int
    executor: str
    partition: int | None
    version: int


@dataclass(frozen=True)
class ExecutorEvents:
    """What all executors of an attempt logged, by kind, in order of time."""

    launches: tuple[TaskLaunch, ...] = ()
    loads: tuple[StateLoad, ...] = ()
    snapshots: tuple[LogSnapshot, ...] = ()


@dataclass
class ExecutorLogReader:
    """State of reading one executor's log: loads under way by thread, stores seen before."""

    executor: str
    launches: list[TaskLaunch] = field(default_factory=list)
    loads: list[StateLoad] = field(default_factory=list)
    snapshots: list[LogSnapshot] = field(default_factory=list)
    under_way: dict[str, bool] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    @property
    def events(self) -> ExecutorEvents:
        """The events of the lines that were read so far."""
        return ExecutorEvents(tuple(self.launches), tuple(self.loads), tuple(self.snapshots))

    def read(self, text: str) -> None:
        """Take in the next line; one of any other form is passed over."""
        match = _LINE.match(text)
        if match is None:
            return
        instant, thread, logger, message = match.groups()
        if logger.startswith("RocksDB"):
            self._store_line(instant, thread, logger, message)
        elif _RUNNING.match(message) and (task := _TASK.search(message)):
            index, stage, _, tid = map(int, task.groups())
            self.launches.append(TaskLaunch(spark_instant_ns(instant), self.executor, tid, stage, index))

    def _store_line(self, instant: str, thread: str, logger: str, message: str) -> None:
        own = not logger.startswith("RocksDBFileManager")
        if own and _LOADING.match(message):
            self.under_way[thread] = False
        elif own and (loaded := _LOADED.match(message)):
            self._loaded(instant, thread, f"{logger} {message}", int(loaded.group(1)))
        elif saved := _SAVED.match(message):
            _, partition = _store(f"{logger} {message}", thread)
            version = int(saved.group(1))
            self.snapshots.append(LogSnapshot(spark_instant_ns(instant), self.executor, partition, version))
        elif thread in self.under_way and _READS_STATE.match(message):
            self.under_way[thread] = True

    def _loaded(self, instant: str, thread: str, text: str, version: int) -> None:
        store, partition = _store(text, thread)
        real = self.under_way.pop(thread, False) or store not in self.seen
        self.seen.add(store)
        task = _TASK.search(thread)
        tid = int(task.group(4)) if task else None
        self.loads.append(StateLoad(spark_instant_ns(instant), self.executor, tid, store, partition, version, real))


def _store(text: str, thread: str) -> tuple[str, int | None]:
    """Name of the store and its partition, from the logger's text, else from the task's index."""
    if match := _STORE.search(text):
        return f"{match.group(1)}/{match.group(2)}/{match.group(3)}", int(match.group(2))
    if task := _TASK.search(thread):
        return f"task/{task.group(1)}", int(task.group(1))
    return f"thread/{thread}", None


def is_event(line: str) -> bool:
    """Whether a line of the log is one of those that events are made of."""
    match = _LINE.match(line.rstrip("\n"))
    if match is None:
        return False
    logger, message = match.group(3), match.group(4)
    patterns = (_LOADING, _LOADED, _SAVED, _READS_STATE) if logger.startswith("RocksDB") else (_RUNNING,)
    return any(pattern.match(message) for pattern in patterns)


def parse_executor_log(lines: Iterable[str], executor: str) -> ExecutorEvents:
    """The events of one executor's log; lines of any other form are passed over."""
    reader = ExecutorLogReader(executor)
    for line in lines:
        reader.read(line.rstrip("\n"))
    return reader.events


def read_executor_logs(directory: Path) -> ExecutorEvents:
    """Events of `directory`/<application>/<executor>/stderr for all executors; empty without logs."""
    parsed = []
    for path in sorted(directory.glob("*/*/stderr")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            parsed.append(parse_executor_log(lines, f"{path.parent.parent.name}/{path.parent.name}"))
    return merge_events(parsed)


def merge_events(parsed: Sequence[ExecutorEvents]) -> ExecutorEvents:
    """The events of several executors, each kind in order of time."""
    return ExecutorEvents(
        tuple(sorted((item for one in parsed for item in one.launches), key=lambda item: item.wall_ns)),
        tuple(sorted((item for one in parsed for item in one.loads), key=lambda item: item.wall_ns)),
        tuple(sorted((item for one in parsed for item in one.snapshots), key=lambda item: item.wall_ns)),
    )
