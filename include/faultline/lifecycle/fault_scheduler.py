"""The conductor of one attempt: opens the gate, fires the fault plan on its clock, journals each act.

    python -m faultline.lifecycle.fault_scheduler --attempt-dir DIR [--dry-run] [faultline-run=<attempt>]

Reads DIR/plan.json and writes DIR/conductor.jsonl and DIR/gate.json. Exit codes: 0 the plan was
carried out, whatever its outcome; 1 it failed or was ended, and everything is healed.
The trailing token marks the process as part of its run.
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
from faultline.lifecycle.ending.undo_replay import Terminated, Terminations, as_line
from faultline.lifecycle.scheduler_input import SchedulerInput, injector_of, read_assignment
from faultline.lifecycle.window.injection_time import due_of
from faultline.lifecycle.window.measured_window import MeasuredWindow, load_of, open_gate, quiet_window
from faultline.lifecycle.window.signals import SignalReader
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.journal import Instant, Journal
from faultline.system.kafka import OFFSETS_TIMEOUT_S, EndOffsets, KafkaEndOffsets, OffsetsWatch, following
from faultline.system.settings import load_settings
from faultline.system.text import one_line

# This long before a fault its victims are looked at again.
RECHECK_LEAD_S = 1.0
# The answer of the broker is taken up to here; a later one is journalled after the signal.
OFFSETS_CUT_S = 0.008
MISSED_WINDOW_S = 1.0
# A gate that was held shut for longer, since something else was at work, says so.
WORTH_TELLING_S = 0.05
# Sleeping wakes up late by a fraction of a millisecond; the rest of the way is spun.
SPIN_S = 0.002


@dataclass(frozen=True)
class ScheduledFault:
    """One planned fault, and the act that carries it out."""

    planned: PlannedFault
    act: Injection


class FaultScheduler:
    """Carries out one assignment; its collaborators come from outside."""

    def __init__(
        self,
        assignment: SchedulerInput,
        directory: Path,
        *,
        injector: Injector,
        offsets: EndOffsets,
        progress: Progress,
        clocks: Callable[[], Mapping[str, Any]] = dict,
        window_lock: Path | None = None,
    ) -> None:
        """`clocks` measures the offsets of the other hosts' clocks, by host. `window_lock` is held from before the gate
        to the end of the schedule; None: nothing else works here."""
        self._assignment = assignment
        self._attempt = Attempt(directory)
        self._context = assignment.context(directory, injector)
        self._offsets = offsets
        self._progress = progress
        self._clocks = clocks
        self._window_lock = window_lock
        self._undo = UndoStack()
        self._fault = -1
        # The input's ends, read at the last fault.
        self._ends: Mapping[str, int] = {}

    def dry_run(self) -> list[str]:
        """One line for each act that would happen; touches nothing. Raises VictimRefused."""
        lines: list[str] = []
        for turn in self._turns():
            turn.act.find_victims()
            lines += turn.act.describe()
        return lines or ["would break nothing: a control"]

    def run(self, journal: Journal) -> int:
        """The whole life of a conductor, journalled; gives the exit code."""
        with Terminations() as terminations:
            message = ""
            try:
                try:
                    self._conduct(journal)
                finally:
                    terminations.hold()
                    message = self._heal(journal)
            except Terminated:
                message = "the conductor was told to end before its work was done"
            except PartialInjection as half:
                message = str(half.cause)
            except (FaultlineError, FaultError) as error:
                message = str(error)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            if not message:
                return 0
            self._heal(journal)  # again: the end may have been told before `hold`, and what failed may work now
            journal.write("failed", message=one_line(message), sync=True)
        print(one_line(message), file=sys.stderr)
        return 1

    def _turns(self) -> list[ScheduledFault]:
        return [
            ScheduledFault(one, one.fault.definition.driver.create_injection(one, self._context))
            for one in self._assignment.planned
        ]

    def _conduct(self, journal: Journal) -> None:
        turns = self._turns()
        for turn in turns:
            turn.act.find_victims()
        if turns:
            self._offsets.read(OFFSETS_TIMEOUT_S)  # connects well before it matters, or fails before the gate
        for host, offset in self._clocks().items():
            journal.write("clock", host=host, offset_s=offset.offset_s, round_trip_s=offset.round_trip_s)
        journal.write("victims", victims=[victim for turn in turns for victim in turn.act.victims()])
        load = load_of(self._attempt, self._assignment)
        with quiet_window(self._attempt, self._window_lock) as waited_s:
            if waited_s > WORTH_TELLING_S:
                journal.write("quiet", waited_s=round(waited_s, 3))
            t0 = open_gate(self._attempt, journal)
            reader = None if load is None else SignalReader(self._progress, load, t0)
            window = MeasuredWindow(self._attempt, journal, t0, self._assignment, reader)
            window.begin()
            self._inject(journal, turns, window)
            _sleep_until(window.close(early=self._assignment.several).mono_ns)
            journal.write("done", sync=True)

    def _inject(self, journal: Journal, turns: Sequence[ScheduledFault], window: MeasuredWindow) -> None:
        """All faults at the times of their plan, or each as soon as the engine is steady, or back to normal."""
        limits, several = None, self._assignment.several
        ready = window.await_baseline() if turns and self._assignment.aim is not None else None
        for turn in turns:
            signal = self._break(journal, turn, window, ready) or Instant.now()
            if several:
                limits = limits or window.limits(signal)
                ready = window.await_recovery(limits, self._ends, signal, number=turn.planned.index + 1)
                if ready is None:
                    return

    def _break(
        self, journal: Journal, turn: ScheduledFault, window: MeasuredWindow, ready: Instant | None
    ) -> Instant | None:
        """One fault from the second look at its victims to its undoing; what was registered is undone in any case.

        `ready`: when the engine was found ready for it; None where its plan says when it comes. Returns when it acted.
        """
        acted = self._strike(journal, turn, window, ready)
        turn.act.disarm()
        if acted is not None:
            _sleep_until(acted.plus(turn.planned.fault.duration_s or 0.0).mono_ns)
        if problem := self._heal(journal):
            raise InfrastructureError(problem)
        return acted

    def _strike(
        self, journal: Journal, turn: ScheduledFault, window: MeasuredWindow, ready: Instant | None
    ) -> Instant | None:
        """Looks at the victims again, reads the offsets, acts at the instant, settles; None when nothing was done."""
        self._fault = index = turn.planned.index
        turn = replace(turn, planned=window.moved(turn.planned, ready))
        _sleep_until(window.t0.plus(turn.planned.earliest_s).mono_ns - round(RECHECK_LEAD_S * 1e9))
        planned = self._instant(journal, turn, window, ready) if self._recheck(journal, turn) else None
        if planned is None:
            return None
        again_ns = planned.mono_ns - round(RECHECK_LEAD_S * 1e9)
        if again_ns > time.monotonic_ns():  # a cycle was waited for, perhaps for long
            _sleep_until(again_ns)
            if not self._recheck(journal, turn):
                return None
        watch = OffsetsWatch(self._offsets, planned.mono_ns)
        self._register_undo(journal, turn)
        turn.act.arm(planned)
        _sleep_until(planned.mono_ns - round(OFFSETS_CUT_S * 1e9))
        in_time = watch.result(0)
        for victim in turn.act.victims():
            journal.write("invoked", fault=index, victim=victim["pid"], planned_wall_ns=planned.wall_ns)
        _sleep_until(planned.mono_ns, spin=True)
        with following(self._offsets, turn.planned.fault.needs_busy_victim) as newest:
            ready = self._once_ready(journal, turn, planned)
            if ready is None:
                return None
            settlement = self._act(journal, turn, ready)
        reading = newest(ready) or in_time or watch.result(OFFSETS_TIMEOUT_S)
        if reading is None:
            raise InfrastructureError("kafka: no end offsets of the input topic at the fault; see the broker's log")
        self._ends = reading[0]
        self._note_offsets(journal, index, reading, before_signal=reading[1].mono_ns <= ready.mono_ns)
        self._settled(journal, index, settlement)
        return ready

    def _recheck(self, journal: Journal, turn: ScheduledFault) -> bool:
        """Whether there are victims now; other ones than before are journalled."""
        index = turn.planned.index
        try:
            if turn.act.find_victims():
                journal.write("victims", fault=index, reason="replaced", victims=turn.act.victims())
        except TooFewVictims as refusal:
            self._settled(journal, index, Settlement(FaultOutcome.NO_EFFECT, f"no victim: {refusal}"))
            return False
        return True

    def _instant(
        self, journal: Journal, turn: ScheduledFault, window: MeasuredWindow, ready: Instant | None
    ) -> Instant | None:
        """When the fault is due; None when the cycle that it waits for never began."""
        index, aim = turn.planned.index, window.aim(turn.planned.index, ready)
        due = due_of(turn.planned, window.t0, self._assignment, self._progress, aim=aim, start=ready or window.start)
        if due is None:
            span = f"{turn.planned.earliest_s:g} and {turn.planned.latest_s:g} s after T0"
            detail = f"no {turn.planned.fault.cycle} cycle began between {span}"
            self._settled(journal, index, Settlement(FaultOutcome.MISSED_WINDOW, detail))
            return None
        at, cycle_ns = due.at, due.cycle_ns
        if cycle_ns is not None:
            journal.write(
                "planned",
                fault=index,
                planned_wall_ns=at.wall_ns,
                planned_mono_ns=at.mono_ns,
                cycle_wall_ns=cycle_ns,
            )
        return at

    def _once_ready(self, journal: Journal, turn: ScheduledFault, planned: Instant) -> Instant | None:
        """The instant at which the victims are as they must be; None when they never were, or it had passed."""
        index = turn.planned.index
        if time.monotonic_ns() - planned.mono_ns > MISSED_WINDOW_S * 1e9:
            self._settled(
                journal, index, Settlement(FaultOutcome.MISSED_WINDOW, "the instant had passed; nothing was sent")
            )
            return None
        until = planned.plus(WAIT_INTERVALS * self._assignment.checkpoint_interval_s)
        if not turn.act.await_ready(until.mono_ns):
            detail = f"no victim was at work within {WAIT_INTERVALS} intervals; nothing was sent"
            self._settled(journal, index, Settlement(FaultOutcome.MISSED_WINDOW, detail))
            return None
        if not turn.planned.fault.needs_busy_victim:
            return planned
        self._register_undo(journal, turn)
        return Instant.now()

    def _act(self, journal: Journal, turn: ScheduledFault, planned: Instant) -> Settlement:
        """Acts, and journals the deliveries after all of them, since writing costs time."""
        sent: list[DeliveryRecord] = []
        try:
            sent = turn.act.perform()
        except PartialInjection as half:
            sent = half.deliveries
            raise
        finally:
            self._journal_deliveries(journal, turn, planned, sent)
        late_s = (max(one.at.mono_ns for one in sent) - planned.mono_ns) / 1e9
        settlement = turn.act.settle(sent)
        if late_s > MISSED_WINDOW_S:
            return Settlement(FaultOutcome.MISSED_WINDOW, f"the act came {late_s:.3f} s late")
        return settlement

    def _journal_deliveries(
        self, journal: Journal, turn: ScheduledFault, planned: Instant, sent: Sequence[DeliveryRecord]
    ) -> None:
        if turn.planned.fault.needs_busy_victim:  # chosen at the instant of the act
            journal.write("victims", fault=turn.planned.index, reason="at work", victims=turn.act.victims())
        for one in sent:
            if one.delivery in (Delivery.SENT, Delivery.UNKNOWN):
                journal.write(
                    "delivered",
                    at=Instant(one.at.wall_ns, one.at.mono_ns),
                    fault=turn.planned.index,
                    victim=one.victim,
                    role=one.role,
                    action=turn.planned.fault.action,
                    planned_wall_ns=planned.wall_ns,
                    planned_mono_ns=planned.mono_ns,
                    acknowledged=one.delivery is Delivery.SENT,
                )

    def _register_undo(self, journal: Journal, turn: ScheduledFault) -> None:
        for undo in turn.act.plan_undo():
            # Journalled as well: should this process be killed, a healer can replay what is to be undone.
            journal.write("undo_registered", **as_line(undo, turn.planned.index))
            self._undo.register(undo.name, partial(ACTIONS[undo.action].driver.undo, undo, self._context))

    def _heal(self, journal: Journal) -> str:
        """Undoes whatever is registered; gives the first problem in one line, empty when all went well."""
        first = ""
        for name, problem in self._undo.run():
            error = None if problem is None else one_line(f"healing by {name} failed: {problem}")
            journal.write("undone", fault=self._fault, undo=name, error=error)
            first = first or error or ""
        return first

    def _note_offsets(
        self, journal: Journal, index: int, reading: tuple[dict[str, int], Instant], *, before_signal: bool
    ) -> None:
        offsets, at = reading
        journal.write("end_offsets", at=at, fault=index, offsets=offsets, before_signal=before_signal)

    def _settled(self, journal: Journal, index: int, settlement: Settlement) -> None:
        journal.write("settled", fault=index, outcome=settlement.outcome.value, detail=settlement.detail, sync=True)


def _sleep_until(mono_ns: int, *, spin: bool = False) -> None:
    """Waits on the monotonic clock; `spin` burns the last 2 ms to hit the instant."""
    rest_s = (mono_ns - time.monotonic_ns()) / 1e9 - (SPIN_S if spin else 0.0)
    if rest_s > 0:
        time.sleep(rest_s)
    while spin and time.monotonic_ns() < mono_ns:
        pass


def build(assignment: SchedulerInput, directory: Path) -> FaultScheduler:
    """A conductor for the attempt's hosts and broker."""
    injector, run = injector_of(assignment), run_of(Attempt(directory), load_settings())
    return FaultScheduler(
        assignment,
        directory,
        injector=injector,
        offsets=KafkaEndOffsets(assignment.bootstrap, assignment.input_topic),
        progress=engine_of_plan(run.plan).progress(run),
        clocks=injector.clock_offsets,
        window_lock=assignment.window_lock,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; gives its exit code."""
    parser = argparse.ArgumentParser(prog="conductor", description="Opens the gate and fires the fault plan.")
    parser.add_argument("--attempt-dir", type=Path, required=True, help="folder of the attempt, with plan.json")
    parser.add_argument("--dry-run", action="store_true", help="name the victims and end; the gate stays shut")
    parser.add_argument("token", nargs="?", help="faultline-run=<attempt>, the mark of the run's processes")
    options = parser.parse_args(arguments)
    directory: Path = options.attempt_dir
    try:
        assignment = read_assignment(directory)
        if options.token not in (None, f"faultline-run={assignment.attempt}"):
            raise ConfigError(f"token: {options.token} does not belong to the attempt {assignment.attempt}")
        conductor = build(assignment, directory)
        if options.dry_run:
            print("\n".join(conductor.dry_run()))
            return 0
        with Journal(directory / "conductor.jsonl") as journal:
            return conductor.run(journal)
    except (FaultlineError, FaultError) as error:
        print(one_line(str(error)), file=sys.stderr)
        if not options.dry_run and os.access(directory, os.W_OK):
            with contextlib.suppress(InfrastructureError), Journal(directory / "conductor.jsonl") as journal:
                journal.write("failed", message=one_line(str(error)), sync=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
