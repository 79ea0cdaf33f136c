"""Actions that send a signal: victims chosen by seed, checked by the guard, signalled by the injector."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fault.action import Action, Context, DeliveryRecord, FaultDriver, Injection, Moment, PartialInjection, UndoSpec
from fault.cpu_busy import await_busy
from fault.errors import FaultError, IdentityMismatch
from fault.fault_spec import DURATION, Occurrence, Parameter
from fault.identity import ANY, VICTIMS, Delivery, Presence, ProcessIdentity
from fault.injector import SETTLE_TIMEOUT_S, FaultOutcome, Settlement, executors_on, resume, settle
from fault.victims import choose_victims

# The watchdog acts this much later than the end of the pause: it starts up to 1 s earlier, and the fault scheduler
# retries its undo for some seconds.
WATCHDOG_MARGIN_S = 10.0
# Services that supervisord restarts unless delayed; a Spark worker is named by its node.
RESTARTED_SERVICES = ("kafka", "worker")


@dataclass(frozen=True)
class SignalDriver(FaultDriver):
    """Driver that sends `signum`.

    `expected`: state of the victim afterwards, GONE or STOPPED, within `within_s` seconds. A stopped victim is
    resumed by the undo.
    """

    signum: signal.Signals
    expected: Presence = Presence.GONE
    within_s: float = SETTLE_TIMEOUT_S

    def create_injection(self, planned: Occurrence, context: Context) -> Injection:
        return SignalInjection(self, planned, context)

    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        return context.injector.probe(_victim(undo, context)) is Presence.STOPPED

    def undo(self, undo: UndoSpec, context: Context) -> None:
        """Continue the victim after an identity check."""
        victim = _victim(undo, context)
        resume(context.injector, victim)
        context.injector.end_watchdog(victim)


@dataclass
class SignalInjection(Injection):
    """One injection on processes."""

    driver: SignalDriver
    planned: Occurrence
    context: Context
    _chosen: tuple[ProcessIdentity, ...] = ()
    _descriptions: tuple[dict[str, Any], ...] = ()
    _watched: list[ProcessIdentity] = field(default_factory=list)

    def find_victims(self) -> bool:
        """Choose victims by seed among live candidates; keep the chosen victims while all of them live.

        The executors on a Spark worker are read again each time: an earlier fault may have replaced one.
        """
        fault, context = self.planned.fault, self.context
        candidates = context.injector.find(fault.victim, context.tokens)
        living = {_key(candidate) for candidate in candidates}
        before, victims = self._descriptions, self._chosen
        if not victims or any(_key(victim) not in living for victim in victims):
            victims = choose_victims(
                candidates,
                fault.count,
                seed=context.seed,
                repetition=context.repetition,
                fault=self.planned.index,
                by_node=fault.victim == ANY,
            )
        self._set_victims(victims)
        return self._descriptions != before

    def _set_victims(self, victims: tuple[ProcessIdentity, ...]) -> None:
        self.context.guard.check(self.planned.fault, victims)
        self._chosen = victims
        # Describe them now: a scan of all processes takes too long right before a signal.
        self._descriptions = tuple(self._describe(victim) for victim in victims)

    def _describe(self, victim: ProcessIdentity) -> dict[str, Any]:
        executors = None
        if victim.role.name == "worker":
            hosted = executors_on(self.context.injector, victim.node, self.context.tokens)
            executors = [str(executor_id) for executor_id in hosted]
        return {"fault": self.planned.index, **victim.as_json(), "executors": executors}

    def describe(self) -> list[str]:
        return self.context.guard.describe(self.planned, self._chosen)

    def victims(self) -> list[dict[str, Any]]:
        return list(self._descriptions)

    def plan_undo(self) -> list[UndoSpec]:
        """Return a SIGCONT step for each victim that will be stopped."""
        if self.driver.expected is not Presence.STOPPED:
            return []
        action = self.planned.fault.action
        return [UndoSpec(action, f"{signal.SIGCONT.name} to {one}", one.as_json()) for one in self._chosen]

    def await_ready(self, until_mono_ns: int) -> bool:
        """Wait until a Python worker is busy; killing an idle one has no effect."""
        fault = self.planned.fault
        if not fault.needs_busy_victim:
            return True
        busy = await_busy(
            self._candidates(),
            fault.count,
            until_mono_ns,
            refresh=self._candidates,
            find_remote=self.context.injector.busy,
        )
        if len(busy) < fault.count:
            return False
        self._set_victims(busy)
        return True

    def _candidates(self) -> Sequence[ProcessIdentity]:
        return self.context.injector.find(self.planned.fault.victim, self.context.tokens)

    def arm(self, planned: Moment) -> None:
        """Check the victims ahead of the signal, start watchdogs, and delay the restart of services to be killed."""
        if self.planned.fault.needs_busy_victim:
            self._watch_candidates(planned.mono_ns)
            return
        for victim in self._chosen:
            with contextlib.suppress(FaultError):  # `perform` meets and reports the same error
                self.context.injector.arm(victim)
                self._start_watchdog(victim)
        if self.driver.expected is not Presence.GONE:
            return
        until = planned.mono_ns + round(self.context.restart_delay_s * 1e9)
        for victim in self._chosen:
            if victim.role.name in RESTARTED_SERVICES:
                self.context.delay_restart(victim.node or victim.role.name, until)

    def _start_watchdog(self, victim: ProcessIdentity) -> None:
        """Ensure that a victim to be stopped is resumed even if this process dies."""
        if self.driver.expected is Presence.STOPPED:
            self.context.injector.start_watchdog(victim, self.planned.end_s - self.planned.latest_s + WATCHDOG_MARGIN_S)

    def _watch_candidates(self, until_mono_ns: int) -> None:
        """Start watchdogs for all candidates that may be busy at the planned time.

        All get one, because a candidate that is busy now may be idle once its watchdog has started. Those left at the
        deadline get theirs right before the signal.
        """
        if self.driver.expected is not Presence.STOPPED:
            return
        with contextlib.suppress(FaultError):
            for candidate in self._candidates():
                if time.monotonic_ns() >= until_mono_ns:
                    break
                self._watched.append(candidate)
                with contextlib.suppress(FaultError):
                    self._start_watchdog(candidate)

    def disarm(self) -> None:
        """End the watchdogs of candidates that were not chosen; the undo ends the others."""
        chosen = {_key(victim) for victim in self._chosen}
        for candidate in self._watched:
            if _key(candidate) not in chosen:
                self.context.injector.end_watchdog(candidate)
        self._watched.clear()

    def perform(self) -> list[DeliveryRecord]:
        """Send the signal to each victim once; after all were tried, raise PartialInjection with the first error."""
        deliveries: list[DeliveryRecord] = []
        failure: Exception | None = None
        for victim in self._chosen:
            settlement = None
            try:
                self._start_watchdog(victim)
                delivery = self.context.injector.signal(victim, self.driver.signum)
            except IdentityMismatch as mismatch:
                delivery = Delivery.GONE
                settlement = Settlement(FaultOutcome.NO_EFFECT, f"{victim} was already gone: {mismatch}")
            except Exception as error:
                failure = failure or error
                continue
            deliveries.append(
                DeliveryRecord(victim.pid, victim.role.name, self.context.now(), delivery, victim, settlement)
            )
        if failure is not None:
            raise PartialInjection(failure, deliveries)
        return deliveries

    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        """Probe the victims; the outcome is effective only if all were affected."""
        return _worst([one.settlement or self._settle(one) for one in deliveries])

    def _settle(self, delivery: DeliveryRecord) -> Settlement:
        assert delivery.identity is not None
        # Probe during the pause only: once it is over, the resumed victim shows no effect.
        within_s = min(self.driver.within_s, self.planned.fault.duration_s or self.driver.within_s)
        return settle(
            self.context.injector, delivery.identity, self.driver.expected, delivery.delivery, within_s=within_s
        )


def _victim(undo: UndoSpec, context: Context) -> ProcessIdentity:
    return ProcessIdentity.from_json(undo.fields, context.tokens)


def _key(victim: ProcessIdentity) -> tuple[str, int, int | None, float]:
    return victim.host, victim.pid, victim.start_ticks, victim.create_time


def _worst(settlements: Sequence[Settlement]) -> Settlement:
    order = [FaultOutcome.EFFECTIVE, FaultOutcome.NO_EFFECT, FaultOutcome.UNKNOWN, FaultOutcome.MISSED_WINDOW]
    outcome = max((item.outcome for item in settlements), key=order.index)
    return Settlement(outcome, "; ".join(item.detail for item in settlements))


KILL = Action(
    name="kill",
    order=10,
    targets=VICTIMS,
    does="sends SIGKILL",
    past="killed",
    when="after {victim} was killed",
    ends_victim=True,
    driver=SignalDriver(signal.SIGKILL),
)


# On SIGTERM a JVM runs its shutdown hooks first.
TERM_TIMEOUT_S = 15.0

TERM = Action(
    name="term",
    order=20,
    targets=VICTIMS,
    does="sends SIGTERM",
    past="terminated",
    when="after {victim} was terminated",
    ends_victim=True,
    driver=SignalDriver(signal.SIGTERM, within_s=TERM_TIMEOUT_S),
)


PAUSE = Action(
    name="pause",
    order=30,
    targets=VICTIMS,
    does="sends SIGSTOP, then SIGCONT after `duration_s`",
    past="paused",
    when="with {victim} paused for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0),),
    manual_undo="resume it with kill -CONT",
    driver=SignalDriver(signal.SIGSTOP, expected=Presence.STOPPED),
)
