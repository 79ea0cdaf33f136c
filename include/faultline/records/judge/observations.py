"""What the raw files of one attempt say together: bins, baseline, faults and counts. The grounds of every figure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from faultline.engines.base import ROW, Commit, behind, offsets_by_partition
from faultline.experiment.common import baseline_commits
from faultline.records.judge.audit import Audit, audit
from faultline.records.judge.bins import Schedule, between, bins_of_batches, bins_of_seconds, median_span_s
from faultline.records.judge.hosts import unrecorded
from faultline.records.judge.key_skew import Keys, keys_of
from faultline.records.judge.latency import Tuples, fold_tuples
from faultline.records.judge.raw_files import RECORD_COLUMNS, Raw
from faultline.records.judge.recovery.injected import Injected, read_injected
from faultline.records.judge.steady_state import Drift, Floats, drifts_of, slope_interval, steady_stretch
from faultline.system.journal import Line, events
from faultline.system.window import NS, Window

# Of an engine's traces where no output tells of which input it is.
NO_METHOD = "none"


@dataclass(frozen=True)
class Measured:
    """What the metrics, the recoveries and the rules have in common.

    `reference`: the bins of the baseline, from the warm-up to the first fault. `adaptive`: whether the conductor waited
    until the engine was steady. `deaths`: by process, why it did not reach its end; None when it did.
    """

    raw: Raw
    window: Window
    schedule: Schedule
    tuples: Tuples
    bins: pd.DataFrame
    reference: pd.DataFrame
    adaptive: bool
    injected: tuple[Injected, ...]
    deaths: Mapping[str, str | None]
    audit: Audit
    offenders: list[Line]
    keys: Keys | None

    @property
    def tells_tuples(self) -> bool:
        """Whether outputs tell of which input they are."""
        return self.raw.traces.method != NO_METHOD and "latency_ms" not in self.raw.not_measured

    @property
    def resolution_s(self) -> float:
        """The grain of the bins in seconds; 0 without any bin before the fault."""
        return 1.0 if self.raw.traces.method == "rank" else median_span_s(self.reference) or 0.0

    @cached_property
    def growth(self) -> tuple[float, float] | None:
        """The 95 % interval of the slope of the lag before the fault, in records/s; None for an engine that makes its
        events itself, and with too few bins."""
        if not self.raw.attempt.config.paced:
            return None
        return slope_interval(self._times_s(self.reference), _column(self.reference, "lag"))

    @cached_property
    def offered_rps(self) -> float:
        """What the source put out before the fault, per second, by its schedule."""
        return self._offered_rps(self.reference)

    @cached_property
    def drifts(self) -> dict[str, Drift | None]:
        """How latency and lag moved before the fault.

        Where the conductor waited until the engine was steady, the same is asked: over as few of the last commits as
        can tell, which may reach back into the warm-up.
        """
        checkpoint_interval_s = self.raw.attempt.config.checkpoint_interval_s
        if not self.adaptive or self.reference.empty:
            return self.drifts_over(self.reference)
        bins = between(self.bins, self.window.t0_ns, int(self.reference["end_ns"].iloc[-1]))
        each = max(1, round(checkpoint_interval_s)) if self.raw.traces.method == "rank" else 1
        return steady_stretch(
            self._times_s(bins),
            _column(bins, "latency_ms"),
            _column(bins, "lag"),
            fewest=baseline_commits(checkpoint_interval_s) * each,
            checkpoint_interval_s=checkpoint_interval_s,
            offered_rps=self.offered_rps,
        )[1]

    def drifts_over(self, bins: pd.DataFrame) -> dict[str, Drift | None]:
        """How latency and lag moved over these bins."""
        return drifts_of(
            self._times_s(bins),
            _column(bins, "latency_ms"),
            _column(bins, "lag"),
            checkpoint_interval_s=self.raw.attempt.config.checkpoint_interval_s,
            offered_rps=self._offered_rps(bins),
        )

    def _offered_rps(self, bins: pd.DataFrame) -> float:
        if bins.empty:
            return 0.0
        begin, end = int(bins["start_ns"].iloc[0]), int(bins["end_ns"].iloc[-1])
        return (self.schedule.due(end) - self.schedule.due(begin)) / ((end - begin) / NS)

    def _times_s(self, bins: pd.DataFrame) -> Floats:
        return (bins["end_ns"].to_numpy(dtype=np.int64) - self.window.t0_ns) / NS


def _column(bins: pd.DataFrame, signal: str) -> Floats:
    return bins[signal].to_numpy(dtype=np.float64)


def measured_of(raw: Raw) -> Measured:
    """Puts the raw files together. Raises InfrastructureError when a table cannot be read."""
    configuration = raw.attempt.config
    window = Window.of(
        raw.gate.t0_wall_ns,
        configuration.warmup_s,
        configuration.duration_s,
        configuration.checkpoint_interval_s,
        raw.conductor,
    )
    paced = configuration.paced
    schedule = Schedule(raw.records) if paced else Numbering(raw.traces.commits)
    tuples = fold_tuples(raw.tuples_path, window)
    bins = (
        bins_of_seconds(tuples, window)
        if raw.traces.method == "rank"
        else bins_of_batches(raw.traces.commits, schedule, tuples, window)
    )
    injected = read_injected(raw.conductor, len(raw.planned))
    until = min([window.end_ns, *(fault.t0_ns for fault in injected if fault.t0_ns is not None)])
    reference = between(bins, window.start_ns, until)
    done = events(raw.generator, "done")
    ends = offsets_by_partition(done[-1]["end_offsets"]) if done else schedule.end_offsets
    totals, offenders = audit(raw.counts_path, raw.generator, behind(raw.traces.reached, ends))
    keys = keys_of(raw.counts_path, configuration)
    deaths = {
        "generator": _died(raw.generator) if paced else None,
        "recorder": unrecorded(raw.hosts) if raw.recorder_ended else "its last line is not `stop`",
        "conductor": _died(raw.conductor),
    }
    adaptive = bool(events(raw.conductor, "measured_from") or events(raw.conductor, "measured_until"))
    return Measured(raw, window, schedule, tuples, bins, reference, adaptive, injected, deaths, totals, offenders, keys)


def _died(lines: Sequence[Line]) -> str | None:
    """Why a process that should have ended with `done` did not."""
    if failed := events(lines, "failed"):
        return str(failed[-1].get("message", "failed"))
    return None if events(lines, "done") else "it never reported `done`"


# Events that the engine makes itself: their place in time, which no generator's schedule tells.


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
