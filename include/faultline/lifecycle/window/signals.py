"""Consumer lag and latency during a run, read from commits, and the fault scheduler's rules for them.

The rules are the judge's (docs/explanation/recovery.md), applied to online data: a batch's latency is that of its
oldest record. The judge, which sees every tuple, decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from faultline.engines.protocol import Offsets, covers
from faultline.records.judge.steady import MIN_HELD_SHARE, Drift, Limits, limits_from, steady_stretch
from faultline.system.journal import Instant

if TYPE_CHECKING:
    from faultline.engines.protocol import Progress

NS = 1_000_000_000


class DueSchedule(Protocol):
    """Send schedule (`generators.pacing.DueTimes`): times in ns after T0."""

    @property
    def count(self) -> int:
        """Number of records."""

    def due_ns(self, k: int) -> int:
        """Return when record `k` is due."""

    def due_count(self, elapsed_ns: int) -> int:
        """Return the number of records due by then."""


@dataclass(frozen=True)
class CommitSignal:
    """One commit after T0.

    `lag`: records due by then and not committed. `latency_ms`: of the batch's oldest record, NaN for an empty batch.
    """

    wall_ns: int
    lag: float
    latency_ms: float
    ends: Offsets


@dataclass(frozen=True)
class Violation:
    """Signal that keeps an engine from recovery: `commits`, `lag` or `latency`, with value and limit."""

    signal: str
    value: float | None
    limit: float | None


@dataclass(frozen=True)
class Load:
    """Load of the generator: its schedule, and the input's end offsets before the schedule's first record."""

    schedule: DueSchedule
    primed: Offsets
    offered_rps: float


class SignalReader:
    """Reader of commits since T0."""

    def __init__(self, progress: Progress, load: Load, t0: Instant) -> None:
        self._progress, self.load, self._t0 = progress, load, t0
        self._position = 0
        self.signals: list[CommitSignal] = []

    def poll(self) -> list[CommitSignal]:
        """Read new commits and return all since T0, in chronological order."""
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
    """Return the number of trailing commits that are steady by the judge's rule, and their drifts.

    The number is 0 or at least `fewest`.
    """
    if not signals:
        return 0, {}
    times_s = np.array([(one.wall_ns - signals[0].wall_ns) / NS for one in signals])
    latency_ms, lag = np.array([one.latency_ms for one in signals]), np.array([float(one.lag) for one in signals])
    return steady_stretch(
        times_s,
        latency_ms,
        lag,
        min_commits=fewest,
        checkpoint_interval_s=checkpoint_interval_s,
        offered_rps=offered_rps,
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
    """Return the recovery thresholds from the commits in (start, until]; None if none has records."""
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
    """Return the commit (wall ns) from which lag and latency kept their thresholds for the stability window H.

    If there is none yet, return what violates the rule. `offsets`: end offsets of the input at the fault, which a
    commit must cover first. `fault_ns`: instant of the fault.
    """
    after = [commit for commit in signals if commit.wall_ns > fault_ns]
    reached = next((index for index, commit in enumerate(after) if covers(commit.ends, offsets)), None)
    if reached is None:
        return Violation("commits", None, None)
    hold_ns = round(limits.hold_s * NS)
    begins = [fault_ns, *(commit.wall_ns for commit in after)]
    is_good = [_violation(commit, limits) is None for commit in after]
    for first in range(reached, len(after)):
        start_ns, end_ns = after[first].wall_ns, after[first].wall_ns + hold_ns
        if end_ns > now_ns:
            break
        if is_good[first]:
            # Time without a commit counts as a violation.
            held_ns = sum(
                max(0, min(commit.wall_ns, end_ns) - max(begins[index], start_ns))
                for index, commit in enumerate(after)
                if is_good[index]
            )
            if held_ns >= MIN_HELD_SHARE * hold_ns:
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
