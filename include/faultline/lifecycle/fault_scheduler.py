"""Fault scheduler of one attempt: opens the start barrier, injects faults on time and journals each injection.

    python -m faultline.lifecycle.fault_scheduler --attempt-dir DIR [--dry-run] [faultline-run=<attempt>]

Reads DIR/plan.json; writes its journal DIR/conductor.jsonl and the start barrier DIR/gate.json, which releases the load
generator at T0. The journal, messages and process ledger keep the earlier name `conductor`. Exit status: 0 if the plan
was executed, whatever its outcome; 1 after an error or a signal, with all faults undone. The trailing token marks the
process as part of its attempt.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fault.action import DeliveryRecord, Injection, PartialInjection, UndoStack
from fault.errors import FaultError, TooFewVictims
from fault.identity import Delivery
from fault.injector import FaultOutcome, Injector, Settlement
from fault.plan import WAIT_INTERVALS, PlannedFault
from fault.registry import ACTIONS
from faultline.engines.protocol import Progress
from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import run_of
from faultline.lifecycle.ending.undo_replay import Terminated, Terminations, undo_fields
from faultline.lifecycle.scheduler_input import SchedulerInput, injector_of, read_scheduler_input
from faultline.lifecycle.window.injection_time import injection_time_of
from faultline.lifecycle.window.measured_window import MeasuredWindow, barrier_wait, offered_load, open_barrier
from faultline.lifecycle.window.signals import SignalReader
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.journal import Instant, Journal
from faultline.system.kafka import OFFSETS_TIMEOUT_S, EndOffsets, KafkaEndOffsets, OffsetsWatch, poll_offsets
from faultline.system.settings import load_settings
from faultline.system.text import one_line

# Victims are checked again this many seconds before the injection.
RECHECK_LEAD_S = 1.0
# The wait for the broker's end offsets stops this many seconds before the injection; offsets that arrive later are
# journalled after it.
OFFSETS_CUTOFF_S = 0.008
# An injection that is later than this counts as missed.
MISSED_WINDOW_S = 1.0
# A shorter wait for the end of other work on this machine is not journalled.
MIN_REPORTED_WAIT_S = 0.05
# Sleep returns a fraction of a millisecond late, so the last part of a wait is a busy-wait.
SPIN_S = 0.002


@dataclass(frozen=True)
class ScheduledFault:
    """One planned fault and its injection."""

    planned: PlannedFault
    injection: Injection


class FaultScheduler:
    """Scheduler of one attempt's fault plan; the constructor takes its dependencies."""

    def __init__(
        self,
        scheduler_input: SchedulerInput,
        directory: Path,
        *,
        injector: Injector,
        offsets: EndOffsets,
        progress: Progress,
        clocks: Callable[[], Mapping[str, Any]] = dict,
        window_lock: Path | None = None,
    ) -> None:
        """Store the dependencies.

        `clocks` measures the clock offsets of the other hosts, by host. `window_lock` keeps other work of this
        installation off the machine and is held from before the barrier until the end of the send schedule; None if
        there is no other work.
        """
        self._input = scheduler_input
        self._attempt = Attempt(directory)
        self._context = scheduler_input.context(directory, injector)
        self._offsets = offsets
        self._progress = progress
        self._clocks = clocks
        self._window_lock = window_lock
        self._undo = UndoStack()
        self._fault = -1  # index of the latest fault
        # End offsets of the input topic at the latest fault.
        self._ends: Mapping[str, int] = {}

    def dry_run(self) -> list[str]:
        """Describe each planned injection in one line without performing it.

        Raises VictimRefused if a victim must not be hit.
        """
        lines: list[str] = []
        for scheduled in self._faults():
            scheduled.injection.find_victims()
            lines += scheduled.injection.describe()
        return lines or ["no fault: control run"]

    def run(self, journal: Journal) -> int:
        """Execute the whole plan, journal it, and return the exit status."""
        with Terminations() as terminations:
            message = ""
            try:
                try:
                    self._execute(journal)
                finally:
                    terminations.ignore()
                    message = self._undo_all(journal)
            except Terminated:
                message = "conductor: terminated before the fault plan was complete"
            except PartialInjection as partial_injection:
                message = str(partial_injection.cause)
            except (FaultlineError, FaultError) as error:
                message = str(error)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            if not message:
                return 0
            self._undo_all(journal)  # again: a failed undo may succeed now
            journal.write("failed", message=one_line(message), sync=True)
        print(one_line(message), file=sys.stderr)
        return 1

    def _faults(self) -> list[ScheduledFault]:
        return [
            ScheduledFault(planned, planned.fault.definition.driver.create_injection(planned, self._context))
            for planned in self._input.planned
        ]

    def _execute(self, journal: Journal) -> None:
        faults = self._faults()
        for scheduled in faults:
            scheduled.injection.find_victims()
        if faults:
            self._offsets.read(OFFSETS_TIMEOUT_S)  # connect early: fail before the barrier opens
        for host, offset in self._clocks().items():
            journal.write("clock", host=host, offset_s=offset.offset_s, round_trip_s=offset.round_trip_s)
        journal.write("victims", victims=[victim for scheduled in faults for victim in scheduled.injection.victims()])
        load = offered_load(self._attempt, self._input)
        with barrier_wait(self._attempt, self._window_lock) as waited_s:
            if waited_s > MIN_REPORTED_WAIT_S:
                journal.write("quiet", waited_s=round(waited_s, 3))  # other work has ended
            t0 = open_barrier(self._attempt, journal)
            reader = None if load is None else SignalReader(self._progress, load, t0)
            window = MeasuredWindow(self._attempt, journal, t0, self._input, reader)
            window.await_start()
            self._inject_all(journal, faults, window)
            _sleep_until(window.close(early=self._input.has_several_faults).mono_ns)
            journal.write("done", sync=True)

    def _inject_all(self, journal: Journal, faults: Sequence[ScheduledFault], window: MeasuredWindow) -> None:
        """Inject each fault at its planned time.

        If the plan sets no times, the first fault is injected once the engine is steady and each later one once the
        engine has recovered.
        """
        limits, several = None, self._input.has_several_faults
        # `target_phase` (phase of the checkpoint cycle) is set only if the plan sets no times.
        engine_ready = window.await_baseline() if faults and self._input.target_phase is not None else None
        for scheduled in faults:
            injected = self._run_fault(journal, scheduled, window, engine_ready) or Instant.now()
            if several:
                limits = limits or window.limits(injected)
                next_index = scheduled.planned.index + 1
                engine_ready = window.await_recovery(limits, self._ends, injected, next_index=next_index)
                if engine_ready is None:
                    return

    def _run_fault(
        self, journal: Journal, scheduled: ScheduledFault, window: MeasuredWindow, engine_ready: Instant | None
    ) -> Instant | None:
        """Inject one fault and undo it; if the injection raises, `run` undoes it.

        `engine_ready`: when the engine was found steady or recovered; None if the plan sets the fault's time. Returns
        the instant of the injection, or None if nothing was injected.
        """
        injected = self._inject_and_settle(journal, scheduled, window, engine_ready)
        scheduled.injection.disarm()
        if injected is not None:
            _sleep_until(injected.plus(scheduled.planned.fault.duration_s or 0.0).mono_ns)
        if problem := self._undo_all(journal):
            raise InfrastructureError(problem)
        return injected

    def _inject_and_settle(
        self, journal: Journal, scheduled: ScheduledFault, window: MeasuredWindow, engine_ready: Instant | None
    ) -> Instant | None:
        """Recheck the victims, read the end offsets, inject on time, settle (determine) and journal the outcome.

        Returns the instant of the injection, or None if nothing was injected.
        """
        self._fault = index = scheduled.planned.index
        # Warm-up may have taken longer than planned; without planned times, the fault is not due before `engine_ready`.
        scheduled = replace(scheduled, planned=window.shifted(scheduled.planned, engine_ready))

        _sleep_until(window.t0.plus(scheduled.planned.earliest_s).mono_ns - round(RECHECK_LEAD_S * 1e9))
        if not self._recheck(journal, scheduled):
            return None
        due = self._injection_instant(journal, scheduled, window, engine_ready)
        if due is None:
            return None
        recheck_ns = due.mono_ns - round(RECHECK_LEAD_S * 1e9)
        if recheck_ns > time.monotonic_ns():  # the wait for a checkpoint cycle may have been long
            _sleep_until(recheck_ns)
            if not self._recheck(journal, scheduled):
                return None
        watch = OffsetsWatch(self._offsets, due.mono_ns)
        self._register_undo(journal, scheduled)
        scheduled.injection.arm(due)
        _sleep_until(due.mono_ns - round(OFFSETS_CUTOFF_S * 1e9))
        in_time = watch.result(0)
        for victim in scheduled.injection.victims():
            journal.write("invoked", fault=index, victim=victim["pid"], planned_wall_ns=due.wall_ns)
        _sleep_until(due.mono_ns, spin=True)
        with poll_offsets(self._offsets, scheduled.planned.fault.needs_busy_victim) as newest:
            inject_at = self._await_victims(journal, scheduled, due)
            if inject_at is None:
                return None
            settlement = self._perform(journal, scheduled, inject_at)
        reading = newest(inject_at) or in_time or watch.result(OFFSETS_TIMEOUT_S)
        if reading is None:
            raise InfrastructureError("kafka: reading end offsets of the input failed; fix: see the broker's log")
        self._ends, read_at = reading
        before_signal = read_at.mono_ns <= inject_at.mono_ns
        journal.write("end_offsets", at=read_at, fault=index, offsets=self._ends, before_signal=before_signal)
        self._journal_outcome(journal, index, settlement)
        return inject_at

    def _recheck(self, journal: Journal, scheduled: ScheduledFault) -> bool:
        """Return whether enough victims exist; journal them if they changed, or the outcome if there are too few."""
        index = scheduled.planned.index
        try:
            if scheduled.injection.find_victims():
                journal.write("victims", fault=index, reason="replaced", victims=scheduled.injection.victims())
        except TooFewVictims as refusal:
            self._journal_outcome(journal, index, Settlement(FaultOutcome.NO_EFFECT, f"no victim: {refusal}"))
            return False
        return True

    def _injection_instant(
        self, journal: Journal, scheduled: ScheduledFault, window: MeasuredWindow, engine_ready: Instant | None
    ) -> Instant | None:
        """Return when the fault is due, or None if the cycle that it waits for never began."""
        index, start = scheduled.planned.index, engine_ready or window.start
        target_phase = window.phase_of(index, engine_ready)
        time_of = injection_time_of(
            scheduled.planned, window.t0, self._input, self._progress, target_phase=target_phase, start=start
        )
        if time_of is None:
            span = f"{scheduled.planned.earliest_s:g} and {scheduled.planned.latest_s:g} s after T0"
            detail = f"no {scheduled.planned.fault.cycle} cycle started between {span}"
            self._journal_outcome(journal, index, Settlement(FaultOutcome.MISSED_WINDOW, detail))
            return None
        if time_of.cycle_ns is not None:
            planned: dict[str, Any] = {"planned_wall_ns": time_of.at.wall_ns, "planned_mono_ns": time_of.at.mono_ns}
            journal.write("planned", fault=index, **planned, cycle_wall_ns=time_of.cycle_ns)
        return time_of.at

    def _await_victims(self, journal: Journal, scheduled: ScheduledFault, due: Instant) -> Instant | None:
        """Return when to inject: `due`, or as soon as the victims are busy if the fault needs that.

        Returns None, after journalling the outcome, if `due` was missed or the victims were never busy.
        """
        index = scheduled.planned.index
        if time.monotonic_ns() - due.mono_ns > MISSED_WINDOW_S * 1e9:
            detail = "planned time missed; no fault injected"
            self._journal_outcome(journal, index, Settlement(FaultOutcome.MISSED_WINDOW, detail))
            return None
        until = due.plus(WAIT_INTERVALS * self._input.checkpoint_interval_s)
        if not scheduled.injection.await_ready(until.mono_ns):
            detail = f"no busy victim within {WAIT_INTERVALS} checkpoint intervals; no fault injected"
            self._journal_outcome(journal, index, Settlement(FaultOutcome.MISSED_WINDOW, detail))
            return None
        if not scheduled.planned.fault.needs_busy_victim:
            return due
        self._register_undo(journal, scheduled)
        return Instant.now()

    def _perform(self, journal: Journal, scheduled: ScheduledFault, planned: Instant) -> Settlement:
        """Inject the fault, journal its deliveries, and return its outcome.

        Deliveries (signals or calls to victims) are journalled at the end, as a write would delay the next delivery.
        """
        deliveries: list[DeliveryRecord] = []
        try:
            deliveries = scheduled.injection.perform()
        except PartialInjection as partial_injection:
            deliveries = partial_injection.deliveries
            raise
        finally:
            self._journal_deliveries(journal, scheduled, planned, deliveries)
        late_s = (max(delivery.at.mono_ns for delivery in deliveries) - planned.mono_ns) / 1e9
        settlement = scheduled.injection.settle(deliveries)
        if late_s > MISSED_WINDOW_S:
            return Settlement(FaultOutcome.MISSED_WINDOW, f"injection {late_s:.3f} s late")
        return settlement

    def _journal_deliveries(
        self, journal: Journal, scheduled: ScheduledFault, planned: Instant, deliveries: Sequence[DeliveryRecord]
    ) -> None:
        if scheduled.planned.fault.needs_busy_victim:  # chosen at the instant of injection
            journal.write(
                "victims", fault=scheduled.planned.index, reason="busy", victims=scheduled.injection.victims()
            )
        for record in deliveries:
            if record.delivery in (Delivery.SENT, Delivery.UNKNOWN):
                journal.write(
                    "delivered",
                    at=Instant(record.at.wall_ns, record.at.mono_ns),
                    fault=scheduled.planned.index,
                    victim=record.victim,
                    role=record.role,
                    action=scheduled.planned.fault.action,
                    planned_wall_ns=planned.wall_ns,
                    planned_mono_ns=planned.mono_ns,
                    acknowledged=record.delivery is Delivery.SENT,
                )

    def _register_undo(self, journal: Journal, scheduled: ScheduledFault) -> None:
        for undo in scheduled.injection.plan_undo():
            # Journalled, so that an undo replay is possible if this process is killed.
            journal.write("undo_registered", **undo_fields(undo, scheduled.planned.index))
            self._undo.register(undo.name, partial(ACTIONS[undo.action].driver.undo, undo, self._context))

    def _undo_all(self, journal: Journal) -> str:
        """Run all registered undos; return the first problem in one line, or "" if all succeeded."""
        first = ""
        for name, problem in self._undo.run():
            error = None if problem is None else one_line(f"undo {name} failed: {problem}")
            journal.write("undone", fault=self._fault, undo=name, error=error)
            first = first or error or ""
        return first

    def _journal_outcome(self, journal: Journal, index: int, settlement: Settlement) -> None:
        journal.write("settled", fault=index, outcome=settlement.outcome.value, detail=settlement.detail, sync=True)


def _sleep_until(mono_ns: int, *, spin: bool = False) -> None:
    """Sleep on the monotonic clock; with `spin`, busy-wait for the last 2 ms."""
    rest_s = (mono_ns - time.monotonic_ns()) / 1e9 - (SPIN_S if spin else 0.0)
    if rest_s > 0:
        time.sleep(rest_s)
    while spin and time.monotonic_ns() < mono_ns:
        pass


def build_scheduler(scheduler_input: SchedulerInput, directory: Path) -> FaultScheduler:
    """Return the fault scheduler for the attempt's hosts and broker."""
    injector, run = injector_of(scheduler_input), run_of(Attempt(directory), load_settings())
    return FaultScheduler(
        scheduler_input,
        directory,
        injector=injector,
        offsets=KafkaEndOffsets(scheduler_input.bootstrap, scheduler_input.input_topic),
        progress=engine_of_plan(run.plan).progress(run),
        clocks=injector.clock_offsets,
        window_lock=scheduler_input.window_lock,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="fault_scheduler", description="Open the start barrier and execute the fault plan."
    )
    parser.add_argument("--attempt-dir", type=Path, required=True, help="attempt folder with plan.json")
    parser.add_argument("--dry-run", action="store_true", help="print the victims and exit without opening the barrier")
    parser.add_argument("token", nargs="?", help="process tag of the attempt: faultline-run=<attempt>")
    options = parser.parse_args(arguments)
    directory: Path = options.attempt_dir
    try:
        scheduler_input = read_scheduler_input(directory)
        if options.token not in (None, f"faultline-run={scheduler_input.attempt}"):
            raise ConfigError(f"token: got {options.token}; expected faultline-run={scheduler_input.attempt}")
        scheduler = build_scheduler(scheduler_input, directory)
        if options.dry_run:
            print("\n".join(scheduler.dry_run()))
            return 0
        with Journal(directory / "conductor.jsonl") as journal:
            return scheduler.run(journal)
    except (FaultlineError, FaultError) as error:
        print(one_line(str(error)), file=sys.stderr)
        if not options.dry_run and os.access(directory, os.W_OK):
            with contextlib.suppress(InfrastructureError), Journal(directory / "conductor.jsonl") as journal:
                journal.write("failed", message=one_line(str(error)), sync=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
