"""What the raw files of one attempt say together: bins, baseline, faults and counts. The grounds of every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.analysis.audit import Audit, audit
from faultline.analysis.bins import Schedule, between, bins_of_batches, bins_of_seconds, median_span_s
from faultline.analysis.hosts import unrecorded
from faultline.analysis.key_skew import Keys, keys_of
from faultline.analysis.latency import Tuples, fold_tuples
from faultline.analysis.raw_files import Raw
from faultline.analysis.recovery.injected import Injected, read_injected
from faultline.analysis.steady_state import Drift, drift_interval, slope_interval
from faultline.analysis.unpaced import Numbering
from faultline.base.journal import Line, events
from faultline.base.window import NS, Window
from faultline.engines.base import behind, offsets_by_partition

# Of an engine's traces where no output tells of which input it is.
NO_METHOD = "none"


@dataclass(frozen=True)
class Measured:
    """What the metrics, the recoveries and the rules have in common.

    `reference`: the bins of the baseline, from the warm-up to the first fault. `deaths`: by process, why it
    did not reach its end; None when it did.
    """

    raw: Raw
    window: Window
    schedule: Schedule
    tuples: Tuples
    bins: pd.DataFrame
    reference: pd.DataFrame
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
        return slope_interval(self._times_s, self._before("lag"))

    @cached_property
    def offered_rps(self) -> float:
        """What the source put out before the fault, per second, by its schedule."""
        if self.reference.empty:
            return 0.0
        begin, end = int(self.reference["start_ns"].iloc[0]), int(self.reference["end_ns"].iloc[-1])
        return (self.schedule.due(end) - self.schedule.due(begin)) / ((end - begin) / NS)

    @cached_property
    def drifts(self) -> dict[str, Drift | None]:
        """How latency and lag moved before the fault, as a share of what they were or of an interval's worth, whichever
        is more.

        Right after a commit little waits: a batch that takes a tenth of a second more would double it, and is no matter
        to a recovery, whose bounds leave a tenth of an interval.
        """
        latency, lag = self._before("latency_ms"), self._before("lag")
        if not len(lag):
            return {}
        known, interval_s = latency[~np.isnan(latency)], self.raw.attempt.config.checkpoint_interval_s
        levels = (
            max(float(np.median(known)) if len(known) else 0.0, 1000 * interval_s),
            max(float(np.median(lag)), self.offered_rps * interval_s),
        )
        return {
            name: drift_interval(self._times_s, values, level)
            for name, values, level in zip(("latency", "lag"), (latency, lag), levels, strict=True)
        }

    @property
    def _times_s(self) -> npt.NDArray[np.float64]:
        return (self.reference["end_ns"].to_numpy(dtype=np.int64) - self.window.t0_ns) / NS

    def _before(self, signal: str) -> npt.NDArray[np.float64]:
        """The values of the baseline's bins."""
        return self.reference[signal].to_numpy(dtype=np.float64)


def measured_of(raw: Raw) -> Measured:
    """Puts the raw files together. Raises InfrastructureError when a table cannot be read."""
    configuration = raw.attempt.config
    window = Window.of(
        raw.gate.t0_wall_ns,
        configuration.warmup_s,
        configuration.duration_s,
        configuration.checkpoint_interval_s,
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
    return Measured(raw, window, schedule, tuples, bins, reference, injected, deaths, totals, offenders, keys)


def _died(lines: Sequence[Line]) -> str | None:
    """Why a process that should have ended with `done` did not."""
    if failed := events(lines, "failed"):
        return str(failed[-1].get("message", "failed"))
    return None if events(lines, "done") else "it never reported `done`"
