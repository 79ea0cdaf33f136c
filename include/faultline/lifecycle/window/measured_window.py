"""The measured window of a run: opens the gate, starts when the engine is steady, and ends the load.

Each step is journalled; where its journal says nothing, the window is the planned one.
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

# T0 lies this far ahead when the gate opens, so that the generator reads the gate in time; so does the load's end.
BARRIER_LEAD_S = 0.3
POLL_S = 0.1
# The judge's latency is that of tuples, so its end of a recovery may come a little later than the one seen here.
JUDGE_MARGIN_S = 2.0


def write_instant(path: Path, fields: dict[str, int]) -> None:
    """Writes a file that other processes wait for, in one step. Raises InfrastructureError."""
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(fields, file)
        unfinished.rename(path)
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error.strerror}; free disk space") from None


def open_barrier(attempt: Attempt, journal: Journal) -> Instant:
    """Opens the gate; returns T0. Raises InfrastructureError when the disk takes longer than the gate's lead."""
    t0 = Instant.now().plus(BARRIER_LEAD_S)
    gate = {"t0_wall_ns": t0.wall_ns, "t0_mono_ns": t0.mono_ns}
    journal.append({"event": "gate", **gate}, sync=True)
    write_instant(attempt.gate, gate)
    if time.monotonic_ns() >= t0.mono_ns:
        raise InfrastructureError("gate.json: the disk took longer than the gate's lead; measure again")
    return t0


class MeasuredWindow:
    """The window of one run, from its gate on. `reader`: None where no commits are looked at while it lasts."""

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
        """By how much it started later than planned."""
        return (self.start.mono_ns - self.t0.mono_ns) / 1e9 - self._input.warmup_s

    @property
    def end(self) -> Instant:
        """Its end, at the latest."""
        return self.start.plus(self._input.duration_s)

    def await_start(self) -> None:
        """Waits until the engine is steady, at most until `warmup_max_s`; journals when the window starts and why."""
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
        """Waits for the baseline of the first fault: its commits since the window's start, shown to be steady.

        At most until the latest instant of a fault. None where no commits are looked at: the fault's own aim counts
        them.
        """
        if self._reader is None or self._input.aim is None:
            return None
        self._await_steady(self.start, self.t0.plus(self._input.aim.latest_s + self.delay_s))
        return Instant.now()

    def _await_steady(self, since: Instant, latest: Instant) -> tuple[int, dict[str, Any]]:
        """The commits that are shown to be steady, of those since an instant, and their drifts; 0 commits at `latest`.

        A stretch that is too short to show it grows until it can.
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

    def shifted(self, planned: PlannedFault, ready: Instant | None) -> PlannedFault:
        """The fault as it comes in this window, which may have started late: not before the engine is `ready`."""
        if planned.index == 0:
            planned = planned.shift(self.delay_s)
        if ready is None:
            return planned
        ready_s = (ready.mono_ns - self.t0.mono_ns) / 1e9
        earliest_s = max(planned.earliest_s, ready_s) if planned.index == 0 else ready_s
        return replace(planned, earliest_s=earliest_s)

    def phase_of(self, index: int, ready: Instant | None) -> FaultPhase | None:
        """When injection `index` comes in its cycle; commits are counted only where they were not waited for before."""
        aim = self._input.aim
        if aim is None:
            return None
        latest_s = aim.latest_s if index == 0 else self._input.warmup_s + self._input.duration_s - SECONDS_AFTER_FAULT
        commits = aim.commits if ready is None else 0
        return replace(aim, phase=aim.phases[index], commits=commits, latest_s=latest_s + self.delay_s)

    @property
    def latest_fault(self) -> Instant:
        """When a fault may come at the latest, so that its recovery can be seen."""
        return self.start.plus(self._input.duration_s - SECONDS_AFTER_FAULT)

    def limits(self, fault: Instant) -> Limits | None:
        """The recovery limits from what was seen between the window's start and the first fault."""
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
        self, limits: Limits | None, offsets: Offsets, signal: Instant, *, number: int
    ) -> Instant | None:
        """Waits after a fault until injection `number` (from 0) may come; after the last, until the run may end.

        `offsets`: the input's ends at the fault, whose `signal` was sent then. Journals why the next injection comes,
        or why it does not. Returns when the engine was ready for it; None: the run ends here.
        """
        last = number == len(self._input.planned)
        bound = self.end if last else self.latest_fault
        latest = min(signal.plus(self._input.max_wait_s), bound, key=_mono)
        commits = 0 if last else self._commits
        found: Instant | Violation = Violation("commits", None, None)
        if limits is not None:
            found = self._await_normal(limits, offsets, signal, commits=commits, latest=latest)
            if isinstance(found, Instant) and not last:
                # What the next fault can make late tells the judge nothing, so what must hold ends before that.
                reach_s = (
                    limits.hold_s
                    + (limits.latency_ms or 0.0) / 1000
                    + self._input.checkpoint_interval_s
                    + JUDGE_MARGIN_S
                )
                sleep_until(min(found.plus(reach_s), latest, key=_mono))
        waited_s = round((time.monotonic_ns() - signal.mono_ns) / 1e9, 3)
        if isinstance(found, Violation):
            if not last:
                self._journal.append({"event": "not_normal", "fault": number, "waited_s": waited_s, **asdict(found)})
            return None
        if last:
            sleep_until(
                min(Instant.now().plus(self._input.checkpoint_interval_s + JUDGE_MARGIN_S), self.end, key=_mono)
            )
        else:
            normal_s = round((found.mono_ns - signal.mono_ns) / 1e9, 3)
            self._journal.write(
                "injection", fault=number, normal_s=normal_s, baseline_commits=commits, waited_s=waited_s
            )
        return Instant.now()

    def _await_normal(
        self, limits: Limits, offsets: Offsets, signal: Instant, *, commits: int, latest: Instant
    ) -> Instant | Violation:
        """Since when the engine is back to normal, with `commits` commits since; or what was out at `latest`."""
        assert self._reader is not None
        while True:
            signals, now = self._reader.poll(), Instant.now()
            found = recovered_since(signals, limits, offsets, fault_ns=signal.wall_ns, now_ns=now.wall_ns)
            if isinstance(found, int):
                since = sum(one.wall_ns > found for one in signals)
                if since >= commits:
                    return signal.plus((found - signal.wall_ns) / 1e9)
                found = Violation("commits", since, commits)
            if now.mono_ns >= latest.mono_ns:
                return found
            time.sleep(POLL_S)

    def close(self, *, early: bool) -> Instant:
        """Ends the window, and with it the load; returns its end. `early`: now, instead of after `duration_s`."""
        end = min(Instant.now().plus(BARRIER_LEAD_S), self.end, key=_mono) if early else self.end
        if self._reader is not None:
            # The schedule is as long as the longest warm-up allows.
            write_instant(self._attempt.load_end, {"end_mono_ns": end.mono_ns})
            self._journal.write("measured_until", at=end)
        return end


def offered_load(attempt: Attempt, scheduler_input: SchedulerInput) -> Load | None:
    """What the generator sends, where the window depends on how it is processed; None where it does not.

    Raises InfrastructureError when the generator did not prime the topic.
    """
    generator = scheduler_input.generator
    if generator is None or not (scheduler_input.warmup_max_s is not None or scheduler_input.has_several_faults):
        return None
    from generators.spec import GeneratorSpec  # half a second that not every run needs

    primed = newest(read_journal(attempt.generator_journal), event="primed")
    schedule = GeneratorSpec.model_validate(generator).schedule
    if primed is None or schedule is None:
        raise InfrastructureError("generator: no primer before the gate; fix: measure again")
    return Load(schedule, offsets_by_partition(primed["end_offsets"]), float(generator["rate"]))


def sleep_until(at: Instant) -> None:
    """Sleeps on the monotonic clock."""
    rest_s = (at.mono_ns - time.monotonic_ns()) / 1e9
    if rest_s > 0:
        time.sleep(rest_s)


def _mono(instant: Instant) -> int:
    return instant.mono_ns


# ---- When the gate may open: no other work of ours is going on here, and none begins before the window ends ----


# The longest wait for the end of what follows on the recording before.
PREVIOUS_CLOSE_S = 120.0
# The longest that a gate is held shut.
MAX_BARRIER_WAIT_S = PREVIOUS_CLOSE_S + MAX_WORK_S


@contextlib.contextmanager
def barrier_wait(attempt: Attempt, lock: Path | None) -> Iterator[float]:
    """Waits for the end of other work, and keeps it away inside; gives the seconds waited.

    `lock`: the window's; None where nothing else works. Raises InfrastructureError when it takes too long.
    """
    waited_s = _await_close(_previous_attempt(attempt))
    with hold_measurement_lock(lock) if lock else contextlib.nullcontext(0.0) as more_s:
        yield waited_s + more_s


def _previous_attempt(attempt: Attempt) -> Attempt | None:
    """The attempt that had the machine before this one, where its files can be read: not those of another user."""
    start = newest(read_journal(attempt.recorder_journal), kind="start") or {}
    before = Attempt(attempt.folder.parent / str(start.get("after")))
    return before if os.access(before.folder / "attempt.json", os.R_OK) else None


def _await_close(before: Attempt | None) -> float:
    """Waits until it is harvested, judged and closed; gives the seconds that it took.

    This may go on while the next one starts, and not while that one is measured. One whose run died is left, after a
    while, to whoever cleans up.
    """
    began = time.monotonic()
    while before is not None and not before.over and time.monotonic() - began < PREVIOUS_CLOSE_S:
        time.sleep(POLL_S)
    return time.monotonic() - began
