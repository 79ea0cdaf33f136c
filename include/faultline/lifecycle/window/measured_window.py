"""Measured window of a run: opens the start barrier, starts once the engine is steady, and ends the load.

The start barrier, `gate.json`, is the file that releases the generator at T0. Each step is journalled; without journal
lines the window has the planned start and end.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fault.plan import PlannedFault
from faultline.engines.protocol import Offsets, offsets_by_partition
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import FaultPhase
from faultline.experiment.common_parameters import SECONDS_AFTER_FAULT, baseline_commits
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.lifecycle.window.signals import (
    Load,
    SignalReader,
    Violation,
    recovered_since,
    steady_commits,
    thresholds_before,
)
from faultline.records.judge.steady import Limits
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Instant, Journal, read_journal
from faultline.system.journal import find_last as newest
from faultline.system.locks import MAX_WORK_S, hold_measurement_lock

# Seconds from opening the barrier to T0, so that the generator reads the file in time; likewise for the load's end.
BARRIER_LEAD_S = 0.3
POLL_S = 0.1
# Extra time after a recovery: the judge measures latency per tuple, so it may place the end slightly later.
JUDGE_MARGIN_S = 2.0


def write_instant(path: Path, fields: dict[str, int]) -> None:
    """Write a file that other processes wait for, atomically.

    Raises InfrastructureError.
    """
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(fields, file)
        unfinished.rename(path)
    except OSError as error:
        raise InfrastructureError(f"{path}: write failed: {error.strerror}; fix: free disk space") from None


def open_barrier(attempt: Attempt, journal: Journal) -> Instant:
    """Open the start barrier and return T0.

    Raises InfrastructureError if the write takes longer than the barrier's lead.
    """
    t0 = Instant.now().plus(BARRIER_LEAD_S)
    gate = {"t0_wall_ns": t0.wall_ns, "t0_mono_ns": t0.mono_ns}
    journal.append({"event": "gate", **gate}, sync=True)
    write_instant(attempt.gate, gate)
    if time.monotonic_ns() >= t0.mono_ns:
        raise InfrastructureError("gate.json: write failed: slower than the barrier's lead; fix: measure again")
    return t0


class MeasuredWindow:
    """Window of one run, from its start barrier.

    `reader`: None if the window does not depend on commits.
    """

    def __init__(
        self,
        attempt: Attempt,
        journal: Journal,
        t0: Instant,
        scheduler_input: SchedulerInput,
        reader: SignalReader | None,
    ) -> None:
        self._attempt, self._journal, self._input, self._reader = attempt, journal, scheduler_input, reader
        self._commits = baseline_commits(scheduler_input.checkpoint_interval_s)
        self.t0 = t0
        self.start = t0.plus(scheduler_input.warmup_s)

    @property
    def delay_s(self) -> float:
        """Delay of the window's start after the planned one, in s."""
        return (self.start.mono_ns - self.t0.mono_ns) / 1e9 - self._input.warmup_s

    @property
    def end(self) -> Instant:
        """Latest end of the window."""
        return self.start.plus(self._input.duration_s)

    def await_start(self) -> None:
        """Wait until the engine is steady, at most `warmup_max_s`; journal the start and its reason."""
        if self._reader is None or self._input.warmup_max_s is None:
            return
        sleep_until(self.start)
        latest = self.t0.plus(self._input.warmup_max_s)
        commits, drifts = self._await_steady(self.t0, latest)
        self.start = max(self.start, min(Instant.now(), latest, key=_mono), key=_mono)
        self._journal.write(
            "measured_from", at=self.start, steady=commits > 0, waited_s=self.delay_s, commits=commits, drifts=drifts
        )

    def await_baseline(self) -> Instant | None:
        """Wait for the baseline of the first fault: steady commits since the window's start.

        Waits at most until the latest instant of a fault. Returns when the wait ended; None if commits are not observed
        here, so that `injection_time_of` counts them.
        """
        if self._reader is None or self._input.target_phase is None:
            return None
        self._await_steady(self.start, self.t0.plus(self._input.target_phase.latest_s + self.delay_s))
        return Instant.now()

    def _await_steady(self, since: Instant, latest: Instant) -> tuple[int, dict[str, Any]]:
        """Wait until the commits since an instant are steady; return their number and drifts, 0 commits at `latest`.

        If there are too few commits for a decision, the wait continues with further ones.
        """
        assert self._reader is not None
        seen, drifts = 0, {}
        while time.monotonic_ns() < latest.mono_ns:
            signals = [one for one in self._reader.poll() if one.wall_ns > since.wall_ns]
            if len(signals) == seen:
                time.sleep(POLL_S)
                continue
            seen = len(signals)
            commits, found = steady_commits(
                signals,
                self._commits,
                checkpoint_interval_s=self._input.checkpoint_interval_s,
                offered_rps=self._reader.load.offered_rps,
            )
            drifts = {name: None if one is None else asdict(one) for name, one in found.items()}
            if commits:
                return commits, drifts
        return 0, drifts

    def shifted(self, planned: PlannedFault, engine_ready: Instant | None) -> PlannedFault:
        """Return the fault shifted by the window's delay, but not before `engine_ready`."""
        if planned.index == 0:
            planned = planned.shift(self.delay_s)
        if engine_ready is None:
            return planned
        ready_s = (engine_ready.mono_ns - self.t0.mono_ns) / 1e9
        earliest_s = max(planned.earliest_s, ready_s) if planned.index == 0 else ready_s
        return replace(planned, earliest_s=earliest_s)

    def phase_of(self, index: int, engine_ready: Instant | None) -> FaultPhase | None:
        """Return the checkpoint phase at which to inject fault `index`; None if its time is fixed.

        With `engine_ready` the baseline commits were awaited before, so the phase requires none.
        """
        target = self._input.target_phase
        if target is None:
            return None
        last_s = self._input.warmup_s + self._input.duration_s - SECONDS_AFTER_FAULT
        latest_s = target.latest_s if index == 0 else last_s
        commits = target.commits if engine_ready is None else 0
        return replace(target, phase=target.phases[index], commits=commits, latest_s=latest_s + self.delay_s)

    @property
    def latest_fault(self) -> Instant:
        """Latest instant of a fault whose recovery can still be observed."""
        return self.start.plus(self._input.duration_s - SECONDS_AFTER_FAULT)

    def limits(self, fault: Instant) -> Limits | None:
        """Return the recovery thresholds from the commits between the window's start and the first fault."""
        assert self._reader is not None
        scheduler_input = self._input
        return thresholds_before(
            self._reader.poll(),
            self.start.wall_ns,
            fault.wall_ns,
            checkpoint_interval_s=scheduler_input.checkpoint_interval_s,
            offered_rps=self._reader.load.offered_rps,
            within=scheduler_input.recovered_within,
        )

    def await_recovery(
        self, limits: Limits | None, offsets: Offsets, injected: Instant, *, next_index: int
    ) -> Instant | None:
        """Wait after a fault until injection `next_index` may happen; after the last fault, until the run may end.

        `offsets`: end offsets of the input at the fault; `injected`: its instant. Journals why the next injection
        happens or not. Returns when the engine was ready for the next injection, or None if the run ends here.
        """
        is_last = next_index == len(self._input.planned)
        bound = self.end if is_last else self.latest_fault
        latest = min(injected.plus(self._input.max_wait_s), bound, key=_mono)
        commits = 0 if is_last else self._commits
        recovered: Instant | Violation = Violation("commits", None, None)
        if limits is not None:
            recovered = self._await_normal(limits, offsets, injected, commits=commits, latest=latest)
            if isinstance(recovered, Instant) and not is_last:
                # The stability window must end before the next fault can delay outputs.
                reach_s = (
                    limits.hold_s
                    + (limits.latency_ms or 0.0) / 1000
                    + self._input.checkpoint_interval_s
                    + JUDGE_MARGIN_S
                )
                sleep_until(min(recovered.plus(reach_s), latest, key=_mono))
        waited_s = round((time.monotonic_ns() - injected.mono_ns) / 1e9, 3)
        if isinstance(recovered, Violation):
            if not is_last:
                self._journal.append(
                    {"event": "not_normal", "fault": next_index, "waited_s": waited_s, **asdict(recovered)}
                )
            return None
        if is_last:
            sleep_until(
                min(Instant.now().plus(self._input.checkpoint_interval_s + JUDGE_MARGIN_S), self.end, key=_mono)
            )
        else:
            normal_s = round((recovered.mono_ns - injected.mono_ns) / 1e9, 3)
            self._journal.write(
                "injection", fault=next_index, normal_s=normal_s, baseline_commits=commits, waited_s=waited_s
            )
        return Instant.now()

    def _await_normal(
        self, limits: Limits, offsets: Offsets, injected: Instant, *, commits: int, latest: Instant
    ) -> Instant | Violation:
        """Wait for the recovery and `commits` further commits; return when the engine recovered.

        At `latest`, return what still violates the limits instead.
        """
        assert self._reader is not None
        while True:
            signals, now = self._reader.poll(), Instant.now()
            recovered = recovered_since(signals, limits, offsets, fault_ns=injected.wall_ns, now_ns=now.wall_ns)
            if isinstance(recovered, int):
                later_commits = sum(commit.wall_ns > recovered for commit in signals)
                if later_commits >= commits:
                    return injected.plus((recovered - injected.wall_ns) / 1e9)
                recovered = Violation("commits", later_commits, commits)
            if now.mono_ns >= latest.mono_ns:
                return recovered
            time.sleep(POLL_S)

    def close(self, *, early: bool) -> Instant:
        """End the window and its load; return the end.

        `early`: now, instead of after `duration_s`.
        """
        end = min(Instant.now().plus(BARRIER_LEAD_S), self.end, key=_mono) if early else self.end
        if self._reader is not None:
            # The send schedule covers the longest warm-up.
            write_instant(self._attempt.load_end, {"end_mono_ns": end.mono_ns})
            self._journal.write("measured_until", at=end)
        return end


def offered_load(attempt: Attempt, scheduler_input: SchedulerInput) -> Load | None:
    """Return the generator's load if the window depends on commits, else None.

    Raises InfrastructureError if the generator sent no primer (records before T0 that warm up the engine).
    """
    generator = scheduler_input.generator
    if generator is None or not (scheduler_input.warmup_max_s is not None or scheduler_input.has_several_faults):
        return None
    from generators.spec import GeneratorSpec  # importing it takes 0.5 s

    primed = newest(read_journal(attempt.generator_journal), event="primed")
    schedule = GeneratorSpec.model_validate(generator).schedule
    if primed is None or schedule is None:
        raise InfrastructureError("generator: primer missing before the start barrier; fix: measure again")
    return Load(schedule, offsets_by_partition(primed["end_offsets"]), float(generator["rate"]))


def sleep_until(at: Instant) -> None:
    """Sleep on the monotonic clock."""
    rest_s = (at.mono_ns - time.monotonic_ns()) / 1e9
    if rest_s > 0:
        time.sleep(rest_s)


def _mono(instant: Instant) -> int:
    return instant.mono_ns


# ---- Barrier wait: no other work of this installation runs during the window ----


# Timeout for the harvest, judging and closing of the previous attempt.
PREVIOUS_CLOSE_S = 120.0
# Longest barrier wait.
MAX_BARRIER_WAIT_S = PREVIOUS_CLOSE_S + MAX_WORK_S


@contextlib.contextmanager
def barrier_wait(attempt: Attempt, lock: Path | None) -> Iterator[float]:
    """Wait for the end of other work on the machine and exclude it inside the block; yield the seconds waited.

    `lock`: the measurement lock; None if there is no other work. Raises InfrastructureError on timeout.
    """
    waited_s = _await_close(_previous_attempt(attempt))
    with hold_measurement_lock(lock) if lock else contextlib.nullcontext(0.0) as more_s:
        yield waited_s + more_s


def _previous_attempt(attempt: Attempt) -> Attempt | None:
    """Return the attempt that held the machine before; None if its files are unreadable, such as another user's."""
    start = newest(read_journal(attempt.recorder_journal), kind="start") or {}
    before = Attempt(attempt.folder.parent / str(start.get("after")))
    return before if os.access(before.folder / "attempt.json", os.R_OK) else None


def _await_close(before: Attempt | None) -> float:
    """Wait until the previous attempt is closed; return the seconds waited.

    Its harvest may overlap this attempt's start, but not its window. After a timeout the orphan cleanup closes it.
    """
    began = time.monotonic()
    while before is not None and not before.over and time.monotonic() - began < PREVIOUS_CLOSE_S:
        time.sleep(POLL_S)
    return time.monotonic() - began
