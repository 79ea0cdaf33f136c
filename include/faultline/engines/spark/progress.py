"""How far a query on Spark has come, by the checkpoint that it writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.engines.protocol import Commit, Offsets
from faultline.engines.spark import checkpoint as on_disk
from faultline.engines.spark.hdfs import HdfsFolder, copy_logs, copy_state
from faultline.system.journal import events, read_journal

# Between two looks at what is asked for over HTTP.
HDFS_POLL_S = 0.02


@dataclass(frozen=True)
class CheckpointProgress:
    """Of the query with this checkpoint and this journal of its listener; see `faultline.engines.protocol.Progress`.

    `there`: what `checkpoint` is a copy of, brought up to date before each look. `topic`: that of the input.
    """

    checkpoint: Path
    listener: Path
    there: HdfsFolder | None = None
    topic: str | None = None

    def committed(self) -> Offsets:
        return on_disk.latest_offsets(self._looked_at(), self.topic)

    def covering(self, offsets: Offsets) -> int:
        return sum(one.covers(offsets) for one in on_disk.committed_batches(self._looked_at(), topic=self.topic))

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        return on_disk.committed_batches(self._looked_at(), since_ns=wall_ns, topic=self.topic)

    def runs(self) -> int:
        lines = read_journal(self.listener)
        begun = [line["run_id"] for line in events(lines, "started")]
        committed = {line["run_id"] for line in events(lines, "progress")}
        return len(begun) if begun and begun[-1] in committed else max(0, len(begun) - 1)

    def last_commit_ns(self) -> int:
        return on_disk.last_commit_ns(self._looked_at())

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        if self.there is None:
            return await_cycle(self.checkpoint, cycle, not_before_ns, until_mono_ns)

        self._looked_at(cycle)

        def wait(_: float) -> None:
            time.sleep(HDFS_POLL_S)
            self._looked_at(cycle)

        return await_cycle(self.checkpoint, cycle, not_before_ns, until_mono_ns, sleep=wait)

    def _looked_at(self, cycle: str = "checkpoint") -> Path:
        """The checkpoint, with what shows that this cycle began."""
        if self.there is not None:
            copy_logs(self.there, self.checkpoint)
            if cycle == "snapshot":
                copy_state(self.there, self.checkpoint, operators=SNAPSHOT_OPERATORS)
        return self.checkpoint


# Cycles of the engine that a fault can be aimed at: between checkpoints, and between state snapshots.


POLL_S = 0.003
# The operators whose snapshots are waited for.
SNAPSHOT_OPERATORS = ("0",)


def cycle_files(checkpoint: Path, cycle: str) -> Iterator[os.DirEntry[str]]:
    """The files whose appearance begins a cycle: `commits/<k>`, or a partition's `<version>.zip`."""
    folders = [checkpoint / "commits"]
    if cycle == "snapshot":
        folders = [one for name in SNAPSHOT_OPERATORS for one in sorted((checkpoint / "state" / name).glob("[0-9]*"))]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                yield from (entry for entry in entries if _starts_cycle(entry.name, cycle))
        except FileNotFoundError:
            continue


def _starts_cycle(name: str, cycle: str) -> bool:
    return name.isdigit() if cycle == "checkpoint" else name[0].isdigit() and name.endswith(".zip")


def await_cycle(
    checkpoint: Path,
    cycle: str,
    not_before_wall_ns: int,
    until_mono_ns: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int | None:
    """Wall instant at which the first `cycle` at or after `not_before_wall_ns` began; None when none did in time.

    Looks at least once, however short the time.
    """
    known: set[str] = set()
    while True:
        found: list[int] = []
        for entry in cycle_files(checkpoint, cycle):
            if entry.path in known:
                continue
            try:
                began = entry.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # it was still under its temporary name
            known.add(entry.path)
            if began >= not_before_wall_ns:
                found.append(began)
        if found:  # a folder names its files in no order
            return min(found)
        if time.monotonic_ns() >= until_mono_ns:
            return None
        sleep(POLL_S)
