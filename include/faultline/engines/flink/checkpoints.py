"""Checkpoints of a job on disk: which are complete, and the source offsets in each.

Flink writes `<folder>/<job id>/chk-<number>/_metadata` when a checkpoint completes. The file holds the state of Kafka's
source reader: for each split the topic (length and text), the partition (int), the next offset (long) and the stopping
offset (long). The enumerator keeps each split as well, with its initial offset; the reader's is the larger one.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

METADATA = "_metadata"
PREFIX = "chk-"
# Stopping offset of a split without an end, as KafkaPartitionSplit.NO_STOPPING_OFFSET.
_NO_STOP = struct.pack(">q", -(2**63))
_SPLIT = struct.Struct(">iq")


@dataclass(frozen=True)
class Checkpoint:
    """Completed checkpoint. `completed_ns`: modification time of its metadata, which the kernel's clock rounds down."""

    number: int
    folder: Path
    completed_ns: int

    def offsets(self, topic: str) -> dict[str, int]:
        """Return the next offset of each partition of `topic`; empty for a partition that was not read yet."""
        found: dict[str, int] = {}
        for file in sorted(self.folder.iterdir()):
            for partition, offset in _splits(file.read_bytes(), topic):
                found[partition] = max(offset, found.get(partition, 0))
        return found


def _splits(content: bytes, topic: str) -> Iterator[tuple[str, int]]:
    name = topic.encode()
    key = struct.pack(">H", len(name)) + name
    at = content.find(key)
    while at >= 0:
        begin = at + len(key)
        end = begin + _SPLIT.size
        if content[end : end + len(_NO_STOP)] == _NO_STOP:
            partition, offset = _SPLIT.unpack(content[begin:end])
            yield str(partition), offset
        at = content.find(key, at + 1)


def numbers_in(folder: Path) -> dict[int, Path]:
    """Return the folders of started checkpoints by number, completed or not."""
    if not folder.is_dir():
        return {}
    return {int(one.name.removeprefix(PREFIX)): one for one in folder.glob(f"{PREFIX}*") if _is_number(one.name)}


def _is_number(name: str) -> bool:
    return name.removeprefix(PREFIX).isdecimal()


def completed_in(folder: Path) -> list[Checkpoint]:
    """Return the retained completed checkpoints of a job, oldest first."""
    found = []
    for number, path in sorted(numbers_in(folder).items()):
        with contextlib.suppress(FileNotFoundError):  # not completed, or removed meanwhile
            found.append(Checkpoint(number, path, (path / METADATA).stat().st_mtime_ns))
    return found


def newest_in(folder: Path) -> Checkpoint | None:
    """Return the newest completed checkpoint; None if there is none."""
    return max(completed_in(folder), key=lambda one: one.number, default=None)


def offsets_or_none(checkpoint: Checkpoint, topic: str) -> dict[str, int] | None:
    """Return the offsets; None if the checkpoint was removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return checkpoint.offsets(topic)
    return None
