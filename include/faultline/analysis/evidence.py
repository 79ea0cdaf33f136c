"""What the timeline of one fault is read from, and the events that it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.analysis.raw_files import Commit
from faultline.analysis.steady_state import Band
from faultline.base.journal import Line, events
from faultline.base.window import CLOCK_RESOLUTION_NS, Window
from faultline.engines.spark.driver_log import DriverEvents
from faultline.engines.spark.executor_log import ExecutorEvents


@dataclass(frozen=True)
class Event:
    """A named instant and where it was read."""

    name: str
    wall_ns: int
    source: str


@dataclass(frozen=True)
class Evidence:
    """All that the timeline of one fault is read from.

    `victim`: its role, where the victim lines name none. `victims`: the conductor's lines of those that
    were hit. `end_offsets`: the broker's, read just before the signal. `executors`: the recorder's REST
    samples. Bands are None where the baseline held nothing. `supervisor` and `services`: lines of the
    journals of that name. `undone`: the conductor's lines of this fault; none for an act that has no end.
    `until_ns`: the next fault's t0; this fault is watched no longer.
    """

    t0_ns: int
    victim: str
    victims: Sequence[Line]
    end_offsets: Mapping[str, int]
    commits: Sequence[Commit]
    bins: pd.DataFrame
    lag: Band | None
    throughput: Band | None
    latency: Band | None
    executors: pd.DataFrame
    log: ExecutorEvents
    emissions_ms: npt.NDArray[np.int64]
    window: Window
    driver: DriverEvents = DriverEvents()
    supervisor: Sequence[Line] = ()
    services: Sequence[Line] = ()
    undone: Sequence[Line] = ()
    until_ns: int | None = None

    @property
    def earliest_ns(self) -> int:
        """An instant of another clock's grain before this lies before t0."""
        return self.t0_ns - CLOCK_RESOLUTION_NS

    @property
    def watched_until_ns(self) -> int:
        """Last instant that a bin may end at to count: the next fault, or the generator's rest."""
        end = self.window.watched_until_ns
        return end if self.until_ns is None else min(end, self.until_ns)

    def watches(self, wall_ns: int) -> bool:
        """Whether the instant belongs to this fault: not before t0, and before the next fault."""
        return wall_ns >= self.earliest_ns and (self.until_ns is None or wall_ns < self.until_ns)

    def journalled(self, lines: Iterable[Line], name: str) -> list[Line]:
        """The lines of a journal whose event is `name` and whose instant belongs to this fault."""
        return [line for line in events(lines, name) if self.watches(int(line["wall_ns"]))]

    def new_lineages(self) -> list[Line]:
        """State lineages that the workload supervisor began after the fault (commit mode `none`)."""
        return self.journalled(self.supervisor, "lineage")

    def ordered_commits(self) -> Iterator[Commit]:
        """Commits that belong to this fault, in order of time."""
        for commit in sorted(self.commits, key=lambda item: item.committed_wall_ns):
            wall_ns = commit.committed_wall_ns
            if wall_ns >= self.t0_ns and (self.until_ns is None or wall_ns < self.until_ns):
                yield commit
