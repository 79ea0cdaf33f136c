"""Progress of a query on Spark, read from its checkpoint."""

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

# Poll interval for HDFS.
HDFS_POLL_S = 0.02


@dataclass(frozen=True)
class CheckpointProgress:
    """Progress of the query with this checkpoint and listener journal.

    See `faultline.engines.protocol.Progress`. `hdfs`: the HDFS folder from which `checkpoint` is copied before each
    read. `topic`: the input topic.
    """

    checkpoint: Path
    listener: Path
    hdfs: HdfsFolder | None = None
    topic: str | None = None

    def committed(self) -> Offsets:
        return on_disk.latest_offsets(self._refreshed(), self.topic)

    def covering(self, offsets: Offsets) -> int:
        return sum(one.covers(offsets) for one in on_disk.committed_batches(self._refreshed(), topic=self.topic))

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        return on_disk.committed_batches(self._refreshed(), since_ns=wall_ns, topic=self.topic)

    def runs(self) -> int:
        lines = read_journal(self.listener)
        started = [line["run_id"] for line in events(lines, "started")]
        committed = {line["run_id"] for line in events(lines, "progress")}
        return len(started) if started and started[-1] in committed else max(0, len(started) - 1)

    def last_commit_ns(self) -> int:
        return on_disk.last_commit_ns(self._refreshed())

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        if self.hdfs is None:
            return await_cycle(self.checkpoint, cycle, not_before_ns, until_mono_ns)

        self._refreshed(cycle)

        def wait(_: float) -> None:
            time.sleep(HDFS_POLL_S)
            self._refreshed(cycle)

        return await_cycle(self.checkpoint, cycle, not_before_ns, until_mono_ns, sleep=wait)

    def _refreshed(self, cycle: str = "checkpoint") -> Path:
        """Return the checkpoint after copying the files that show this cycle."""
        if self.hdfs is not None:
            copy_logs(self.hdfs, self.checkpoint)
            if cycle == "snapshot":
                copy_state(self.hdfs, self.checkpoint, operators=SNAPSHOT_OPERATORS)
        return self.checkpoint


POLL_S = 0.003
# Operators whose snapshots start a cycle.
SNAPSHOT_OPERATORS = ("0",)


def cycle_files(checkpoint: Path, cycle: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files whose creation starts a cycle: `commits/<k>`, or a partition's `<version>.zip`."""
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
    """Return when the first `cycle` at or after `not_before_wall_ns` started; None if none did in time.

    It checks at least once, even if the time is over.
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
                continue  # renamed concurrently
            known.add(entry.path)
            if began >= not_before_wall_ns:
                found.append(began)
        if found:  # folder listings are unordered
            return min(found)
        if time.monotonic_ns() >= until_mono_ns:
            return None
        sleep(POLL_S)
