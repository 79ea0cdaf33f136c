"""A schedule that was recorded: each record is due when it was, over and over, faster or slower by a factor."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from generators.piecewise import NANOSECONDS

MS = 1_000_000


class Listed:
    """Due times of records 0 … `count` − 1; see `generators.pacing.Schedule`, whose place it takes."""

    def __init__(self, times_ns: NDArray[np.int64], round_ns: int, count: int) -> None:
        """`times_ns`: of one round, from 0, never falling. `round_ns`: from one beginning to the next."""
        self._times, self._round_ns, self.count = times_ns, round_ns, count
        self._list = times_ns.tolist()

    @classmethod
    def over(cls, times_ms: Sequence[int], round_ms: int, speed: float, seconds: float) -> Self:
        """The records due in [0, seconds). `round_ms`: from the beginning of one round to that of the next."""
        times = np.asarray(times_ms, dtype=np.int64)
        times_ns = np.rint((times - times[0]) * (MS / speed)).astype(np.int64)
        made = cls(times_ns, max(1 + int(times_ns[-1]), round(round_ms * MS / speed)), 0)
        made.count = made._before(round(seconds * NANOSECONDS))
        return made

    def due_ns(self, k: int) -> int:
        """Nanoseconds after the start at which record `k` is due."""
        round_, place = divmod(k, len(self._list))
        return int(round_ * self._round_ns + self._list[place])

    def due_count(self, elapsed_ns: int) -> int:
        """Records due at or before `elapsed_ns` after the start."""
        return 0 if elapsed_ns < 0 else min(self.count, self._before(elapsed_ns + 1))

    def _before(self, at_ns: int) -> int:
        round_, rest = divmod(at_ns, self._round_ns)
        return round_ * len(self._list) + bisect.bisect_left(self._list, rest)

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """`due_ns` of the records first, first + step, …; shape (n,), nanoseconds."""
        return self.due_of((np.arange(n, dtype=np.int64) * step + first).astype(np.uint64))

    def due_of(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """`due_ns` of any records; shape (n,), nanoseconds."""
        numbers = records.astype(np.int64)
        round_, place = np.divmod(numbers, len(self._list))
        due: NDArray[np.int64] = round_ * self._round_ns + self._times[place]
        return due
