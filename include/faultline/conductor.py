"""The conductor of one attempt: opens the gate, fires the fault plan on its clock, journals each act.

    python -m faultline.conductor --attempt-dir DIR [--dry-run] [faultline-run=<attempt>]

Reads DIR/attempt.json and writes DIR/conductor.jsonl and DIR/gate.json. Exit codes: 0 the plan was
carried out, whatever its outcome; 1 it failed or was ended, and everything is healed.
The trailing token marks the process as part of its run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from fault.errors import FaultError, IdentityMismatch, TooFewVictims
from fault.guard import Guard
from fault.identity import ROLES, ProcessIdentity, Role
from fault.injector import SETTLE_WITHIN_S, Delivery, Injector, Outcome, Presence, Settlement, settle
from fault.local import LocalInjector
from fault.plan import Fault, FaultPlan
from fault.undo import UndoStack
from fault.victims import choose, find_victims
from faultline.end_offsets import OFFSETS_TIMEOUT_S, EndOffsets, KafkaEndOffsets, OffsetsWatch
from faultline.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.journal import Instant, Journal

# T0 lies this far ahead when the gate opens, so that the generator reads the gate in time.
GATE_LEAD_S = 0.3
# This long before a fault its victims are looked at again.
RECHECK_LEAD_S = 1.0
# The answer of the broker is taken up to here; a later one is journalled after the signal.
OFFSETS_CUT_S = 0.008
MISSED_WINDOW_S = 1.0
# Sleeping wakes up late by a fraction of a millisecond; the rest of the way is spun.
SPIN_S = 0.002

Resolver = Callable[[Role], Sequence[ProcessIdentity]]


@dataclass(frozen=True)
class Assignment:
    """What the conductor takes from attempt.json. `end_s`: seconds after T0 when its work is done."""

    attempt: str
    plan: FaultPlan
    repetition: int
    end_s: float
    bootstrap: str
    input_topic: str


def read_assignment(directory: Path) -> Assignment:
    """Reads DIR/attempt.json. Raises ConfigError with one line that names the key."""
    try:
        data = json.loads((directory / "attempt.json").read_text(encoding="utf-8"))
        config = data["config"]
        faults: tuple[Fault, ...] = ()
        if config["fault"] != "none":
            faults = (Fault(config["fault"], config["fault_action"], config["fault_at_s"]),)
        assignment = Assignment(
            attempt=str(data["attempt"]),
            plan=FaultPlan(faults, seed=config["seed"]),
            repetition=int(data["repetition"]),
            end_s=float(config["warmup_s"]) + float(config["duration_s"]),
            bootstrap=str(data["kafka"]["bootstrap"]),
            input_topic=str(data["topics"]["input"]),
        )
        assignment.plan.require_within(assignment.end_s)
    except KeyError as error:
        raise ConfigError(f"{error.args[0]}: missing in attempt.json; clear the whole run") from None
    except FaultError as error:
        raise ConfigError(str(error)) from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"attempt.json: cannot be used: {error}") from None
    return assignment


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived. Not an Exception, so that no handler on the way can swallow it."""


class Conductor:
    """Carries out one assignment; its collaborators come from outside."""

    def __init__(
        self, assignment: Assignment, directory: Path, *, resolve: Resolver, injector: Injector, offsets: EndOffsets
    ) -> None:
        self._assignment = assignment
        self._directory = directory
        self._resolve = resolve
        self._injector = injector
        self._offsets = offsets
        self._guard = Guard(assignment.attempt)
        self._undo = UndoStack()

    def dry_run(self) -> list[str]:
        """One line for each act that would happen; touches nothing. Raises VictimRefused."""
        lines: list[str] = []
        for index, fault in enumerate(self._assignment.plan.faults):
            lines += self._guard.describe(fault, self._choose(index, fault))
        return lines or ["would break nothing: a control"]

    def run(self, journal: Journal) -> int:
        """The whole life of a conductor, journalled; gives the exit code."""
        with _Terminations() as terminations:
            message = ""
            try:
                try:
                    self._conduct(journal)
                finally:
                    terminations.hold()
                    self._heal(journal)
            except Terminated:
                message = "the conductor was told to end before its work was done"
            except (FaultlineError, FaultError) as error:
                message = str(error)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            if not message:
                return 0
            self._heal(journal)  # again, in case the end was told in the instant before `hold`
            journal.write("failed", message=_one_line(message), sync=True)
        print(_one_line(message), file=sys.stderr)
        return 1

    def _conduct(self, journal: Journal) -> None:
        faults = self._assignment.plan.faults
        chosen = [self._choose(index, fault) for index, fault in enumerate(faults)]
        if faults:
            self._offsets.read(OFFSETS_TIMEOUT_S)  # connects well before it matters, or fails before the gate
        journal.write("victims", victims=[victim.as_json() for victims in chosen for victim in victims])
        t0 = self._open_gate(journal)
        for index, fault in enumerate(faults):
            self._break(journal, index, fault, chosen[index], t0.plus(fault.at_s))
        _sleep_until(t0.plus(self._assignment.end_s).mono_ns)
        journal.write("done", sync=True)

    def _choose(self, index: int, fault: Fault, keep: tuple[ProcessIdentity, ...] = ()) -> tuple[ProcessIdentity, ...]:
        """Victims by seed among the live candidates; `keep` as it is, when all of it is still among them."""
        candidates = self._resolve(ROLES[fault.victim])
        living = {(candidate.pid, candidate.start_ticks) for candidate in candidates}
        victims = keep
        if not keep or any((victim.pid, victim.start_ticks) not in living for victim in keep):
            seed, repetition = self._assignment.plan.seed, self._assignment.repetition
            victims = choose(candidates, fault.count, seed=seed, repetition=repetition, fault=index)
        self._guard.check(fault, victims)
        return victims

    def _open_gate(self, journal: Journal) -> Instant:
        t0 = Instant.now().plus(GATE_LEAD_S)
        gate: dict[str, Any] = {"t0_wall_ns": t0.wall_ns, "t0_mono_ns": t0.mono_ns}
        journal.write("gate", sync=True, **gate)
        target = self._directory / "gate.json"
        unfinished = target.with_suffix(".tmp")
        try:
            with unfinished.open("w", encoding="utf-8") as file:
                json.dump(gate, file)
            unfinished.rename(target)
        except OSError as error:
            raise InfrastructureError(f"{target}: cannot be written: {error.strerror}; free disk space") from None
        if time.monotonic_ns() >= t0.mono_ns:
            raise InfrastructureError("gate.json: the disk took longer than the gate's lead; measure again")
        return t0

    def _break(
        self, journal: Journal, index: int, fault: Fault, victims: tuple[ProcessIdentity, ...], planned: Instant
    ) -> None:
        """One fault: looks at the victims again, reads the offsets, acts at the instant, settles, undoes."""
        _sleep_until(planned.mono_ns - round(RECHECK_LEAD_S * 1e9))
        watch = OffsetsWatch(self._offsets, planned.mono_ns)
        try:
            current = self._choose(index, fault, keep=victims)
        except TooFewVictims as refusal:
            self._settled(journal, index, Settlement(Outcome.NO_EFFECT, f"no victim: {refusal}"))
            return
        if current != victims:
            victims = current
            journal.write("victims", fault=index, reason="replaced", victims=[victim.as_json() for victim in victims])
        self._register_undo(journal, index, fault, victims)
        _sleep_until(planned.mono_ns - round(OFFSETS_CUT_S * 1e9))
        in_time = watch.result(0)
        if in_time is not None:
            self._note_offsets(journal, index, in_time, before_signal=True)
        for victim in victims:
            journal.write("invoked", fault=index, victim=victim.pid, planned_wall_ns=planned.wall_ns)
        _sleep_until(planned.mono_ns, spin=True)
        if time.monotonic_ns() - planned.mono_ns > MISSED_WINDOW_S * 1e9:
            self._settled(journal, index, Settlement(Outcome.MISSED_WINDOW, "the instant had passed; nothing was sent"))
            return
        self._settled(journal, index, self._act(journal, index, fault, victims, planned))
        if in_time is None:
            late = watch.result(OFFSETS_TIMEOUT_S)
            if late is None:
                raise InfrastructureError("kafka: no end offsets of the input topic at the fault; see the broker's log")
            self._note_offsets(journal, index, late, before_signal=False)
        _sleep_until(planned.plus(fault.duration_s or 0.0).mono_ns)
        problem = self._heal(journal)
        if problem:
            raise InfrastructureError(problem)

    def _act(
        self, journal: Journal, index: int, fault: Fault, victims: tuple[ProcessIdentity, ...], planned: Instant
    ) -> Settlement:
        deliveries: list[tuple[ProcessIdentity, Delivery | Settlement, Instant]] = []
        try:
            for victim in victims:
                delivery: Delivery | Settlement
                try:
                    delivery = self._injector.signal(victim, fault.signum)
                except IdentityMismatch as mismatch:
                    delivery = Settlement(Outcome.NO_EFFECT, f"{victim} was already gone: {mismatch}")
                deliveries.append((victim, delivery, Instant.now()))
        finally:
            # After all were sent, with the instants of the sending, since writing costs time; and also
            # when one of them failed, since the others were hit.
            for victim, delivery, at in deliveries:
                if delivery in (Delivery.SENT, Delivery.UNKNOWN):
                    journal.write(
                        "delivered",
                        at=at,
                        fault=index,
                        victim=victim.pid,
                        planned_wall_ns=planned.wall_ns,
                        planned_mono_ns=planned.mono_ns,
                        acknowledged=delivery is Delivery.SENT,
                    )
        late_s = (max(at.mono_ns for _, _, at in deliveries) - planned.mono_ns) / 1e9
        within_s = min(SETTLE_WITHIN_S, fault.duration_s or SETTLE_WITHIN_S)
        settlements = [
            delivery
            if isinstance(delivery, Settlement)
            else settle(self._injector, victim, fault.action, delivery, within_s=within_s)
            for victim, delivery, _ in deliveries
        ]
        if late_s > MISSED_WINDOW_S:
            return Settlement(Outcome.MISSED_WINDOW, f"the signal went out {late_s:.3f} s late")
        return _worst(settlements)

    def _register_undo(self, journal: Journal, index: int, fault: Fault, victims: tuple[ProcessIdentity, ...]) -> None:
        signum = fault.undo_signum
        if signum is None:
            return
        for victim in victims:

            def undo(victim: ProcessIdentity = victim, signum: int = signum) -> None:
                # The probe also settles an unacknowledged act; what is gone needs no healing.
                if self._injector.probe(victim) in (Presence.ALIVE, Presence.STOPPED):
                    self._injector.signal(victim, signum)

            # Journalled as well: should this process be killed, a healer can read what is to be undone.
            journal.write("undo_registered", fault=index, undo=signum.name, **victim.as_json())
            self._undo.register(f"{signum.name} to {victim}", undo)

    def _heal(self, journal: Journal) -> str:
        """Undoes whatever is registered; gives the first problem in one line, empty when all went well."""
        first = ""
        for name, problem in self._undo.run():
            error = None if problem is None else _one_line(f"healing by {name} failed: {problem}")
            journal.write("undone", undo=name, error=error)
            first = first or error or ""
        return first

    def _note_offsets(
        self, journal: Journal, index: int, reading: tuple[dict[str, int], Instant], *, before_signal: bool
    ) -> None:
        offsets, at = reading
        journal.write("end_offsets", at=at, fault=index, offsets=offsets, before_signal=before_signal)

    def _settled(self, journal: Journal, index: int, settlement: Settlement) -> None:
        journal.write("settled", fault=index, outcome=settlement.outcome.value, detail=settlement.detail, sync=True)


def _worst(settlements: Sequence[Settlement]) -> Settlement:
    """A fault on several victims is effective only when it was on each of them."""
    order = [Outcome.EFFECTIVE, Outcome.NO_EFFECT, Outcome.UNKNOWN, Outcome.MISSED_WINDOW]
    outcome = max((item.outcome for item in settlements), key=order.index)
    return Settlement(outcome, "; ".join(item.detail for item in settlements))


def _sleep_until(mono_ns: int, *, spin: bool = False) -> None:
    """Waits on the monotonic clock; `spin` burns the last 2 ms to hit the instant."""
    rest_s = (mono_ns - time.monotonic_ns()) / 1e9 - (SPIN_S if spin else 0.0)
    if rest_s > 0:
        time.sleep(rest_s)
    while spin and time.monotonic_ns() < mono_ns:
        pass


class _Terminations:
    """Turns the first SIGTERM or SIGINT into Terminated; later ones must not interrupt the healing."""

    def __init__(self) -> None:
        self._held = False
        self._previous: dict[int, Any] = {}

    def hold(self) -> None:
        """From now on the signals are ignored."""
        self._held = True

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        if not self._held:
            self._held = True
            raise Terminated


def _one_line(text: str) -> str:
    return " ".join(text.split())


def build(assignment: Assignment, directory: Path) -> Conductor:
    """A conductor for the local host and the attempt's broker."""
    return Conductor(
        assignment,
        directory,
        resolve=lambda role: find_victims(role, assignment.attempt),
        injector=LocalInjector(),
        offsets=KafkaEndOffsets(assignment.bootstrap, assignment.input_topic),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; gives its exit code."""
    parser = argparse.ArgumentParser(prog="faultline.conductor", description="Opens the gate and fires the fault plan.")
    parser.add_argument("--attempt-dir", type=Path, required=True, help="folder of the attempt, with attempt.json")
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
        print(_one_line(str(error)), file=sys.stderr)
        if not options.dry_run and os.access(directory, os.W_OK):
            with contextlib.suppress(InfrastructureError), Journal(directory / "conductor.jsonl") as journal:
                journal.write("failed", message=_one_line(str(error)), sync=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
