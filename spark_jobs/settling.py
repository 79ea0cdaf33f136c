"""When a query is warm: its batches, all of the same size, have stopped getting faster."""

from __future__ import annotations

from collections.abc import Sequence

# The first compiles and connects; the next ones are what is compared.
LEAST_BATCHES = 4
# A batch this much shorter than the two before it says that the next one may be shorter still.
STILL_FASTER = 0.1


def settled(durations: Sequence[float]) -> bool:
    """Whether the last of these batches was no more than a tenth faster than the two before it, on average."""
    if len(durations) < LEAST_BATCHES:
        return False
    *_, earlier, before, last = durations
    return last >= (1 - STILL_FASTER) * (earlier + before) / 2
