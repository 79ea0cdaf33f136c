"""Admission: how many queued records a batch may take, and the file that passes it to the planning process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits of the next batch of a stage.

    `limit`: records/s. `most`: records per batch. `room`: records per batch that fit into the queue below. None: no
    limit. `hold`: take no records.
    """

    limit: float | None = None
    most: int | None = None
    room: int | None = None
    hold: bool = False

    def write(self, path: Path) -> None:
        """Write the limits atomically for the planning process."""
        write_atomically(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> AdmissionLimits:
        """Return the written limits; without a file there are none."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return cls()


def planning_file(orders: Path) -> Path:
    """Return the file for the time of the first planned batch of the process that reads `orders`."""
    return orders.with_suffix(".asked")


def record_planning(orders: Path) -> None:
    """Record the current time, in ns of the wall clock."""
    write_atomically(planning_file(orders), str(time.time_ns()))


def planned_at_ns(orders: Path) -> int:
    """Return the recorded time; the current time if there is none yet."""
    try:
        return int(planning_file(orders).read_text())
    except FileNotFoundError:
        return time.time_ns()


class RateBudget:
    """Budget of records under a rate limit, earned since the last batch, used or not."""

    def __init__(self, most_s: float = 10.0) -> None:
        """Create it.

        `most_s`: the longest time for which a batch earns records.
        """
        self._most_s = most_s
        self._since: float | None = None

    def take(self, now_s: float, orders: AdmissionLimits) -> int | None:
        """Return the records for a batch planned now; None: no limit. Fractions of a record stay earned."""
        bounds = [bound for bound in (orders.most, orders.room) if bound is not None]
        if orders.limit is None:
            self._since = now_s
            return min(bounds, default=None)
        if self._since is None:
            self._since = now_s
        # At least one record is earned, however low the limit.
        self._since = max(self._since, now_s - max(self._most_s, 1 / orders.limit))
        earned = int((now_s - self._since) * orders.limit)
        self._since += earned / orders.limit
        return min([earned, *bounds])


def advance(start: Mapping[str, int], ends: Mapping[str, int], budget: int | None) -> dict[str, int]:
    """Return the end offsets of a batch from `start`: all records, or `budget` records spread evenly.

    Partitions with less than their share leave the rest to others, so the budget is used up while records are
    available.
    """
    queued = {partition: max(ends.get(partition, at) - at, 0) for partition, at in start.items()}
    if budget is None or sum(queued.values()) <= budget:
        return {partition: at + queued[partition] for partition, at in start.items()}
    taken = dict.fromkeys(start, 0)
    left = budget
    # The shortest queues first; later ones share their remainder.
    order = sorted(start, key=lambda partition: (queued[partition], partition))
    for position, partition in enumerate(order):
        taken[partition] = min(queued[partition], left // (len(order) - position))
        left -= taken[partition]
    return {partition: at + taken[partition] for partition, at in start.items()}


def write_atomically(path: Path, text: str, instant_ns: int | None = None) -> None:
    """Write a file atomically, with a single writer per path.

    `instant_ns`: modification time in ns of the wall clock; None: now.
    """
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    if instant_ns is not None:
        os.utime(part, ns=(instant_ns, instant_ns))
    os.replace(part, path)
