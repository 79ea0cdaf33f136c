"""How much of its queue a stage may take in with a batch, and how the process that plans its batches is told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class AdmissionLimits:
    """What holds for the next batch of a stage. `limit`: records/s, `most`: records of a batch, `room`: records of a
    batch that fit into the queue below; None is no limit. `hold`: take nothing in.
    """

    limit: float | None = None
    most: int | None = None
    room: int | None = None
    hold: bool = False

    def write(self, path: Path) -> None:
        """Puts the orders where the planning process reads them, in one piece."""
        put(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> AdmissionLimits:
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
    put(asked(orders), str(time.time_ns()))


def asked_at(orders: Path) -> int:
    """The instant that `note_asked` noted; now, when it has not yet."""
    try:
        return int(asked(orders).read_text())
    except FileNotFoundError:
        return time.time_ns()


class Allowance:
    """Records that may be taken in by a rate limit: what time has earned since the last look, taken or not."""

    def __init__(self, most_s: float = 10.0) -> None:
        """`most_s`: a batch that takes longer earns no more than in so many seconds."""
        self._most_s = most_s
        self._since: float | None = None

    def take(self, now_s: float, orders: AdmissionLimits) -> int | None:
        """Records for a batch that is planned now; None without limit. What is less than one record stays earned."""
        bounds = [bound for bound in (orders.most, orders.room) if bound is not None]
        if orders.limit is None:
            self._since = now_s
            return min(bounds, default=None)
        if self._since is None:
            self._since = now_s
        # However low the limit, one record is earned some time.
        self._since = max(self._since, now_s - max(self._most_s, 1 / orders.limit))
        earned = int((now_s - self._since) * orders.limit)
        self._since += earned / orders.limit
        return min([earned, *bounds])


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


# Files that another process reads while they change: nothing or all of a text stands there.


def put(path: Path, text: str, instant_ns: int | None = None) -> None:
    """Writes beside and renames. `instant_ns`: the file's time, ns of the wall clock; else now. One writer a path."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    if instant_ns is not None:
        os.utime(part, ns=(instant_ns, instant_ns))
    os.replace(part, path)
