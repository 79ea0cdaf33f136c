"""How much of its queue a stage may take in with a batch, and how the process that plans its batches is told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Orders:
    """What holds for the next batch of a stage. `limit`: records/s, None without limit. `hold`: take nothing in."""

    limit: float | None = None
    hold: bool = False

    def write(self, path: Path) -> None:
        """Puts the orders where the planning process reads them, in one piece."""
        _put(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Orders:
        """The orders that stand there; none are no limit."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return cls()


def asked(orders: Path) -> Path:
    """Where the planning process that reads `orders` notes when it first planned a batch."""
    return orders.with_suffix(".asked")


def note_asked(orders: Path) -> None:
    """Notes this instant, in ns of the wall clock."""
    _put(asked(orders), str(time.time_ns()))


def asked_at(orders: Path) -> int:
    """The instant that `note_asked` noted; now, when it has not yet."""
    try:
        return int(asked(orders).read_text())
    except FileNotFoundError:
        return time.time_ns()


def _put(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


class Allowance:
    """Records that may be taken in by a rate limit: what time has earned since the last batch, for a second at most."""

    def __init__(self, most_s: float = 1.0) -> None:
        self._most_s = most_s
        self._before: float | None = None

    def take(self, now_s: float, limit: float | None) -> int | None:
        """Records for a batch that is planned now; None without limit. Less than one record stays earned."""
        if limit is None:
            self._before = None
            return None
        if self._before is None:
            self._before = now_s - self._most_s
        # However low the limit, one record is earned some time.
        most_s = max(self._most_s, 1 / limit)
        earned = int(min(now_s - self._before, most_s) * limit)
        if earned:
            self._before = now_s
        return earned


def advance(start: Mapping[str, int], ends: Mapping[str, int], budget: int | None) -> dict[str, int]:
    """End offsets of a batch that begins at `start`: all there is, or `budget` records spread evenly.

    Partitions with less than their share leave the rest to the others, so the budget is used up while there are
    records.
    """
    waiting = {partition: max(ends.get(partition, at) - at, 0) for partition, at in start.items()}
    if budget is None or sum(waiting.values()) <= budget:
        return {partition: at + waiting[partition] for partition, at in start.items()}
    taken = dict.fromkeys(start, 0)
    left = budget
    # The shortest queues first: what they leave over is shared by those after them.
    order = sorted(start, key=lambda partition: (waiting[partition], partition))
    for position, partition in enumerate(order):
        taken[partition] = min(waiting[partition], left // (len(order) - position))
        left -= taken[partition]
    return {partition: at + taken[partition] for partition, at in start.items()}
