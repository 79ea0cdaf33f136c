"""How far a query on Spark has come, by the checkpoint that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from faultline.base.journal import events, read_journal
from faultline.engines.base import Offsets
from faultline.engines.spark import checkpoint as on_disk
from faultline.engines.spark.cycles import await_cycle


@dataclass(frozen=True)
class CheckpointProgress:
    """Of the query with this checkpoint and this journal of its listener; see `faultline.engines.base.Progress`."""

    checkpoint: Path
    listener: Path

    def committed(self) -> Offsets:
        return on_disk.latest_offsets(self.checkpoint)

    def covering(self, offsets: Offsets) -> int:
        return sum(commit.covers(offsets) for commit in on_disk.committed_batches(self.checkpoint))

    def runs(self) -> int:
        lines = read_journal(self.listener)
        begun = [line["run_id"] for line in events(lines, "started")]
        committed = {line["run_id"] for line in events(lines, "progress")}
        return len(begun) if begun and begun[-1] in committed else max(0, len(begun) - 1)

    def last_commit_ns(self) -> int:
        return on_disk.last_commit_ns(self.checkpoint)

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        return await_cycle(self.checkpoint, cycle, not_before_ns, until_mono_ns)
