"""How far the sending has come: what is journalled about once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """Records sent and due by now, and how many of those that were sent came more than LATE_MS late.

    `latest_ms`: the largest lateness since the standing before, in milliseconds.
    """

    sent: int
    due: int
    late: int
    latest_ms: float

    @classmethod
    def together(cls, members: Iterable[Standing]) -> Standing:
        """That of a crew, of at least one member."""
        all_of_them = list(members)
        return cls(
            sum(one.sent for one in all_of_them),
            sum(one.due for one in all_of_them),
            sum(one.late for one in all_of_them),
            max(one.latest_ms for one in all_of_them),
        )


Progress = Callable[[Standing], None]
