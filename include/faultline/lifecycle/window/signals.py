"""Lag and latency of a workload while its run lasts, read from its commits, and the rules that the conductor applies.

The rules are those of the judge (docs/explanation/recovery.md) on what is known online: a batch's latency is that of
its oldest record. The judge, which sees every tuple, has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from faultline.engines.protocol import Offsets, covers
from faultline.records.judge.steady import HELD_SHARE, Drift, Limits, limits_from, steady_stretch
from faultline.system.journal import Instant

if TYPE_CHECKING:
    from faultline.engines.protocol import Progress

NS = 1_000_000_000


class DueSchedule(Protocol):
    """The send schedule (`generators.pacing.DueTimes`): times in nanoseconds after T0."""

    @property
    def count(self) -> int:
        """Number of records."""

    def due_ns(self, k: int) -> int:
        """When record `k` is due."""

    def due_count(self, elapsed_ns: int) -> int:
        """Number of records due by then."""


@dataclass(frozen=True)
class CommitSignal:
    """One commit after T0.

    `lag`: records due by then and not committed. `latency_ms`: of the oldest record of its batch, NaN for an empty one.
    """

    wall_ns: int
    lag: float
    latency_ms: float
    ends: Offsets


@dataclass(frozen=True)
class Violation:
    """The signal that keeps an engine from being back to normal: `commits`, `lag` or `latency`, with its limit."""

    signal: str
    value: float | None
    limit: float | None


@dataclass(frozen=True)
class Load:
    """What the generator sends: its schedule, and the input's end offsets before the schedule's first record."""

    schedule: DueSchedule
    primed: Offsets
    offered_rps: float


class SignalReader:
    """Reads new commits at each `poll`, and keeps all since T0."""

    def __init__(self, progress: Progress, load: Load, t0: Instant) -> None:
        self._progress, self.load, self._t0 = progress, load, t0
        self._position = 0
        self.signals: list[CommitSignal] = []

    def poll(self) -> list[CommitSignal]:
        """All commits since T0, in order of time."""
        since_ns = self.signals[-1].wall_ns if self.signals else self._t0.wall_ns
        for commit in self._progress.commits_since(since_ns):
            elapsed_ns = commit.committed_ns - self._t0.wall_ns
            position = sum(max(0, end - self.load.primed.get(name, 0)) for name, end in commit.ends.items())
            latency_ms = math.nan
            if position > self._position < self.load.schedule.count:
                latency_ms = (elapsed_ns - self.load.schedule.due_ns(self._position)) / 1e6
            lag = max(0, self.load.schedule.due_count(elapsed_ns) - position)
            self.signals.append(CommitSignal(commit.committed_ns, lag, latency_ms, commit.ends))
            self._position = max(position, self._position)
        return self.signals


def steady_commits(
    signals: Sequence[CommitSignal], fewest: int, *, checkpoint_interval_s: float, offered_rps: float
) -> tuple[int, dict[str, Drift | None]]:
    """Number of last commits, `fewest` at least, that are steady by the judge's rule (0: none), and their drifts."""
    if not signals:
        return 0, {}
    times_s = np.array([(one.wall_ns - signals[0].wall_ns) / NS for one in signals])
    latency_ms, lag = np.array([one.latency_ms for one in signals]), np.array([float(one.lag) for one in signals])
    return steady_stretch(
        times_s, latency_ms, lag, fewest=fewest, checkpoint_interval_s=checkpoint_interval_s, offered_rps=offered_rps
    )


def thresholds_before(
    signals: Sequence[CommitSignal],
    start_ns: int,
    until_ns: int,
    *,
    checkpoint_interval_s: float,
    offered_rps: float,
    within: float,
) -> Limits | None:
    """The recovery limits from the commits in (start, until]; None without any that took records."""
    seen = [one for one in signals if start_ns < one.wall_ns <= until_ns]
    latencies = [one.latency_ms for one in seen if not math.isnan(one.latency_ms)]
    if not latencies:
        return None
    return limits_from(
        max(latencies),
        max(one.lag for one in seen),
        checkpoint_interval_s=checkpoint_interval_s,
        rate=offered_rps,
        spacing_s=math.inf,
        within=within,
    )


def recovered_since(
    signals: Sequence[CommitSignal], limits: Limits, offsets: Offsets, *, fault_ns: int, now_ns: int
) -> int | Violation:
    """The commit (wall ns) from which on lag and latency kept their limits for the hold time H, or what is out.

    `offsets`: the input's ends at the fault, which a commit must cover first. `fault_ns`: of the signal.
    """
    after = [one for one in signals if one.wall_ns > fault_ns]
    reached = next((place for place, one in enumerate(after) if covers(one.ends, offsets)), None)
    if reached is None:
        return Violation("commits", None, None)
    hold_ns = round(limits.hold_s * NS)
    begins = [fault_ns, *(one.wall_ns for one in after)]
    good = [_violation(one, limits) is None for one in after]
    for place in range(reached, len(after)):
        start_ns, end_ns = after[place].wall_ns, after[place].wall_ns + hold_ns
        if end_ns > now_ns:
            break
        if good[place]:
            # Time that no commit ended yet counts as out.
            held_ns = sum(
                max(0, min(one.wall_ns, end_ns) - max(begins[number], start_ns))
                for number, one in enumerate(after)
                if good[number]
            )
            if held_ns >= HELD_SHARE * hold_ns:
                return start_ns
    return next(
        (found for one in reversed(after) if (found := _violation(one, limits))), Violation("commits", None, None)
    )


def _violation(signal: CommitSignal, limits: Limits) -> Violation | None:
    if signal.lag > limits.lag:
        return Violation("lag", signal.lag, limits.lag)
    if limits.latency_ms is not None and signal.latency_ms > limits.latency_ms:
        return Violation("latency", signal.latency_ms, limits.latency_ms)
    return None
