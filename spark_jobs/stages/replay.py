"""Stateless replay (Lu et al. 2020, section 4.2): Eden, From and To, and in which order a source reads them.

New tuples come through Eden, and what failed is written to From. The source reads To until it is empty, then Eden, and
then From and To change roles. Nothing is remembered of a tuple that is on its way.
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
    """How far a source has read each of the three queues, and which of the two spaces is To now."""

    offsets: Mapping[str, Offsets]
    to: str = SPACES[0]

    @property
    def from_(self) -> str:
        """The space that failed tuples are written to."""
        return SPACES[1 - SPACES.index(self.to)]

    def document(self) -> dict[str, Any]:
        """As Spark keeps it in the offset log."""
        return {**self.offsets, "to": self.to}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Position:
        """What `document` came from."""
        return cls({name: dict(document[name]) for name in (EDEN, *SPACES)}, document["to"])


def plan(start: Position, ends: Mapping[str, Offsets], budget: int | None) -> Position:
    """The end of the next batch: what is left of To; with To empty Eden, and the roles change.

    A batch in which To is emptied takes from Eden, too, as far as the budget (records, None: no limit) goes.
    `start` itself when nothing waits, so that no batch is begun for nothing.
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
    """(queue, partition, first, end) of what lies between two positions, in the order of the queues."""
    return [
        (queue, partition, start.offsets[queue].get(partition, 0), last)
        for queue in (EDEN, *SPACES)
        for partition, last in end.offsets[queue].items()
        if last > start.offsets[queue].get(partition, 0)
    ]
