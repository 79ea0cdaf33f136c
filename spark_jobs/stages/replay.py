"""Stateless replay (Lu et al. 2020, section 4.2): the queues Eden, From and To, and their order.

New tuples arrive in Eden, and failed ones are written to From. The source reads To until it is empty, then Eden, and
then From and To are swapped. No state is kept about tuples in transit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .admission import advance

EDEN = "eden"
# The two topics that change roles.
SPACES = ("a", "b")

Offsets = dict[str, int]


@dataclass(frozen=True)
class Position:
    """Position of a source in each of the three queues, and which space is To."""

    offsets: Mapping[str, Offsets]
    to: str = SPACES[0]

    @property
    def from_(self) -> str:
        """Space that failed tuples are written to."""
        return SPACES[1 - SPACES.index(self.to)]

    def document(self) -> dict[str, Any]:
        """Return the JSON value for Spark's offset log."""
        return {**self.offsets, "to": self.to}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Position:
        """Build it from the value of `document`."""
        return cls({name: dict(document[name]) for name in (EDEN, *SPACES)}, document["to"])


def plan(start: Position, ends: Mapping[str, Offsets], budget: int | None) -> Position:
    """Return the end of the next batch: the rest of To; with To empty, Eden, and the roles are swapped.

    A batch that empties To also takes from Eden, up to the budget (records; None: no limit). Returns `start` itself if
    nothing is queued, so that no batch starts.
    """
    if budget is not None and budget <= 0:
        return start
    to, eden = start.to, EDEN
    offsets = {name: dict(start.offsets[name]) for name in (EDEN, *SPACES)}

    def waiting(queue: str) -> int:
        return sum(max(ends[queue].get(part, at) - at, 0) for part, at in offsets[queue].items())

    def take(queue: str) -> None:
        nonlocal budget
        reached = advance(offsets[queue], ends[queue], budget)
        if budget is not None:
            budget -= sum(reached.values()) - sum(offsets[queue].values())
        offsets[queue] = reached

    if not any(waiting(queue) for queue in (eden, *SPACES)):
        return start
    take(to)
    if waiting(to):
        return Position(offsets, to)
    take(eden)
    swapped = Position(offsets, start.from_)
    # With Eden empty the tuples that failed need not wait for a batch of their own.
    if not waiting(eden):
        take(swapped.to)
    return Position(offsets, swapped.to)


def places(start: Position, end: Position) -> list[tuple[str, str, int, int]]:
    """Return (queue, partition, first, end) of the records between two positions, in the order of the queues."""
    return [
        (queue, partition, start.offsets[queue].get(partition, 0), last)
        for queue in (EDEN, *SPACES)
        for partition, last in end.offsets[queue].items()
        if last > start.offsets[queue].get(partition, 0)
    ]
