"""What the timeline of one fault is read from, and the events that it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.base import Commit, Epoch, Life, Seen, Span, Traces, Witness
from faultline.records.judge.recovery.limits import Limits
from faultline.system.journal import Line, events
from faultline.system.window import Window


@dataclass(frozen=True)
class Event:
    """A named instant and where it was read."""

    name: str
    wall_ns: int
    source: str


@dataclass(frozen=True)
class Evidence:
    """All that the timeline of one fault is read from.

    `engine`: of the run, which left the `traces`. `victim`: the role, where the victim lines name none.
    `victims`: the conductor's lines of those that were hit. `end_offsets`: the broker's, read just before the signal.
    `production`: tuples by cell of production. `limits`: up to where the engine counts as recovered; None where nothing
    was seen before the fault. `services`: lines of the journal of that name. `undone`: the conductor's lines of this
    fault; none for an act that has no end. `until_ns`: the next fault's t0; this fault is watched no longer.
    """

    engine: Witness
    traces: Traces
    t0_ns: int
    victim: str
    victims: Sequence[Line]
    end_offsets: Mapping[str, int]
    bins: pd.DataFrame
    production: pd.DataFrame
    limits: Limits | None
    emissions_ms: npt.NDArray[np.int64]
    window: Window
    services: Sequence[Line] = ()
    undone: Sequence[Line] = ()
    until_ns: int | None = None

    @property
    def span(self) -> Span:
        """The time that belongs to this fault."""
        return Span(self.t0_ns, self.until_ns)

    @property
    def watched_until_ns(self) -> int:
        """Last instant that a bin may end at to count: the next fault, or the generator's rest."""
        end = self.window.watched_until_ns
        return end if self.until_ns is None else min(end, self.until_ns)

    @property
    def produced_until_ns(self) -> int:
        """Until when what is produced tells of this recovery: the load's end, or what the next fault can make late."""
        end = self.window.end_ns
        if self.until_ns is None or self.limits is None or self.limits.latency_ms is None:
            return end
        return min(end, self.until_ns - round(self.limits.latency_ms * 1_000_000))

    def seen(self, kind: str) -> list[Seen]:
        """What the engine was seen to do in the time of this fault."""
        return [one for one in self.traces.of(kind) if self.span.holds(one.wall_ns)]

    def services_started(self) -> list[Line]:
        """The lines on services that were started in the time of this fault."""
        return [line for line in events(self.services, "started") if self.span.holds(int(line["wall_ns"]))]

    def new_lives(self) -> list[Life]:
        """Lives that the workload supervisor began in the time of this fault."""
        return [life for life in self.traces.lives if self.span.holds(life.began_ns)]

    def new_epochs(self) -> list[Epoch]:
        """State lineages that were begun after the fault (commit mode `none`)."""
        return [epoch for epoch in self.traces.epochs if self.span.holds(epoch.began_ns)]

    def ordered_commits(self) -> Iterator[Commit]:
        """Commits that belong to this fault, in order of time."""
        for commit in sorted(self.traces.commits, key=lambda item: item.committed_ns):
            wall_ns = commit.committed_ns
            if wall_ns >= self.t0_ns and (self.until_ns is None or wall_ns < self.until_ns):
                yield commit
