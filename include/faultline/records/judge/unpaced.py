"""Events that the engine makes itself: their place in time, which no generator's schedule tells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import pandas as pd

from faultline.engines.base import ROW, Commit
from faultline.records.judge.bins import Schedule
from faultline.records.judge.raw_files import RECORD_COLUMNS


class Numbering(Schedule):
    """The place of events in time, from the commits: batch by batch, where a schedule would know each record."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        super().__init__(pd.DataFrame({name: pd.Series(dtype="int64") for name in RECORD_COLUMNS}))
        planned = sorted((one.planned_ns or one.committed_ns, one.ends[ROW]) for one in commits)
        self._planned_ns = [instant for instant, _ in planned]
        self._taken = [0, *(end for _, end in planned)]

    def due(self, wall_ns: int) -> int:
        """Events of the batches that were planned by then."""
        return self._taken[bisect_right(self._planned_ns, wall_ns)]

    def below(self, ends: Mapping[str, int]) -> int:
        """Events below these numbers."""
        return ends.get(ROW, 0)
