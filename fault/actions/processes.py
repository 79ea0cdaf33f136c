"""Actions that signal processes: victims by seed, checked by the guard, hit by the injector."""

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
from fault.injector import SETTLE_WITHIN_S, FaultOutcome, Settlement, executors_on, resume, settle
from fault.victims import choose

# So much longer than a pause, and than the wait for a victim at work, its watchdog waits: it is started up to a second
# before, and the conductor tries for some seconds to end the pause.
LATE_S = 10.0
# Services that supervisord restarts, unless a hold keeps them down; a worker's goes by its node.
HELD = ("kafka", "worker")


@dataclass(frozen=True)
class SignalDriver(FaultDriver):
    """Sends `signum`. `shows`: what becomes of the victim, GONE or STOPPED, within `within_s` seconds.

    Who was stopped is continued.
    """

    signum: signal.Signals
    shows: Presence = Presence.GONE
    within_s: float = SETTLE_WITHIN_S

    def act(self, planned: Occurrence, context: Context) -> Injection:
        return SignalAction(self, planned, context)

    def holds(self, undo: UndoSpec, context: Context) -> bool:
        return context.injector.probe(_victim(undo, context)) is Presence.STOPPED

    def undo(self, undo: UndoSpec, context: Context) -> None:
        """Continues the victim, after checking who it is."""
        victim = _victim(undo, context)
        resume(context.injector, victim)
        context.injector.end_watchdog(victim)


@dataclass
class SignalAction(Injection):
    """One act on processes."""

    hands: SignalDriver
    planned: Occurrence
    context: Context
    _chosen: tuple[ProcessIdentity, ...] = ()
    _named: tuple[dict[str, Any], ...] = ()
    _secured: list[ProcessIdentity] = field(default_factory=list)

    def find(self) -> bool:
        """Victims by seed among the live candidates; those chosen before stay while all of them live.

        What a worker hosts is looked at anew all the same: an earlier fault may have replaced an executor there.
        """
        fault, context = self.planned.fault, self.context
        candidates = context.injector.find(fault.victim, context.tokens)
        living = {_key(candidate) for candidate in candidates}
        before, victims = self._named, self._chosen
        if not victims or any(_key(victim) not in living for victim in victims):
            victims = choose(
                candidates,
                fault.count,
                seed=context.seed,
                repetition=context.repetition,
                fault=self.planned.index,
                by_node=fault.victim == ANY,
            )
        self._take(victims)
        return self._named != before

    def _take(self, victims: tuple[ProcessIdentity, ...]) -> None:
        self.context.guard.check(self.planned.fault, victims)
        self._chosen = victims
        # Found here and kept: a look at all processes has no place in the last milliseconds before an act.
        self._named = tuple(self._name(victim) for victim in victims)

    def _name(self, victim: ProcessIdentity) -> dict[str, Any]:
        executors = None
        if victim.role.name == "worker":
            hosted = executors_on(self.context.injector, victim.node, self.context.tokens)
            executors = [str(number) for number in hosted]
        return {"fault": self.planned.index, **victim.as_json(), "executors": executors}

    def describe(self) -> list[str]:
        return self.context.guard.describe(self.planned, self._chosen)

    def victims(self) -> list[dict[str, Any]]:
        return list(self._named)

    def undo(self) -> list[UndoSpec]:
        """A SIGCONT for each one that will be stopped."""
        if self.hands.shows is not Presence.STOPPED:
            return []
        action = self.planned.fault.action
        return [UndoSpec(action, f"{signal.SIGCONT.name} to {one}", one.as_json()) for one in self._chosen]

    def await_ready(self, until_mono_ns: int) -> bool:
        """A Python worker must be at work: one that idles can be killed, and nothing happens."""
        fault = self.planned.fault
        if not fault.waits:
            return True
        busy = await_busy(
            self._candidates(),
            fault.count,
            until_mono_ns,
            refresh=self._candidates,
            elsewhere=self.context.injector.busy,
        )
        if len(busy) < fault.count:
            return False
        self._take(busy)
        return True

    def _candidates(self) -> Sequence[ProcessIdentity]:
        return self.context.injector.find(self.planned.fault.victim, self.context.tokens)

    def arm(self, planned: Moment) -> None:
        """Arms the injector, and keeps killed services down for the restart delay; a hold ends by its own clock."""
        if self.planned.fault.waits:
            self._secure_candidates(planned.mono_ns)
            return
        for victim in self._chosen:
            with contextlib.suppress(FaultError):  # the signal will say it, at its instant
                self.context.injector.arm(victim)
                self._secure(victim)
        if self.hands.shows is not Presence.GONE:
            return
        until = planned.mono_ns + round(self.context.restart_delay_s * 1e9)
        for victim in self._chosen:
            if victim.role.name in HELD:
                self.context.hold(victim.node or victim.role.name, until)

    def _secure(self, victim: ProcessIdentity) -> None:
        """Sees to it that one who is going to be stopped is continued, also if nobody of ours lives to do it."""
        if self.hands.shows is Presence.STOPPED:
            self.context.injector.start_watchdog(victim, self.planned.end_s - self.planned.latest_s + LATE_S)

    def _secure_candidates(self, until_mono_ns: int) -> None:
        """Secures all who may be at work at the instant: who is at work then may idle once a watchdog has started.

        As far as the time goes; the rest is secured before the signal."""
        if self.hands.shows is not Presence.STOPPED:
            return
        with contextlib.suppress(FaultError):
            for candidate in self._candidates():
                if time.monotonic_ns() >= until_mono_ns:
                    break
                self._secured.append(candidate)
                with contextlib.suppress(FaultError):
                    self._secure(candidate)

    def disarm(self) -> None:
        """Ends the watchdogs of those that were not chosen; the undo ends the others."""
        chosen = {_key(victim) for victim in self._chosen}
        for candidate in self._secured:
            if _key(candidate) not in chosen:
                self.context.injector.end_watchdog(candidate)
        self._secured.clear()

    def perform(self) -> list[DeliveryRecord]:
        """Sends the signal to each victim, once. What goes wrong with one is raised after all were tried."""
        sent: list[DeliveryRecord] = []
        trouble: Exception | None = None
        for victim in self._chosen:
            settlement = None
            try:
                self._secure(victim)
                delivery = self.context.injector.signal(victim, self.hands.signum)
            except IdentityMismatch as mismatch:
                delivery = Delivery.GONE
                settlement = Settlement(FaultOutcome.NO_EFFECT, f"{victim} was already gone: {mismatch}")
            except Exception as error:
                trouble = trouble or error
                continue
            sent.append(DeliveryRecord(victim.pid, victim.role.name, self.context.now(), delivery, victim, settlement))
        if trouble is not None:
            raise PartialInjection(trouble, sent)
        return sent

    def settle(self, sent: Sequence[DeliveryRecord]) -> Settlement:
        """By probes; effective only when it was on each of the victims."""
        return _worst([one.settlement or self._settle(one) for one in sent])

    def _settle(self, sent: DeliveryRecord) -> Settlement:
        assert sent.identity is not None
        # A victim that is continued after its duration shows nothing later.
        within_s = min(self.hands.within_s, self.planned.fault.duration_s or self.hands.within_s)
        return settle(self.context.injector, sent.identity, self.hands.shows, sent.delivery, within_s=within_s)


def _victim(undo: UndoSpec, context: Context) -> ProcessIdentity:
    return ProcessIdentity.from_json(undo.fields, context.tokens)


def _key(victim: ProcessIdentity) -> tuple[str, int, int | None, float]:
    return victim.host, victim.pid, victim.start_ticks, victim.create_time


def _worst(settlements: Sequence[Settlement]) -> Settlement:
    order = [FaultOutcome.EFFECTIVE, FaultOutcome.NO_EFFECT, FaultOutcome.UNKNOWN, FaultOutcome.MISSED_WINDOW]
    outcome = max((item.outcome for item in settlements), key=order.index)
    return Settlement(outcome, "; ".join(item.detail for item in settlements))


# The victim is gone at once.
KILL = Action(
    name="kill",
    order=10,
    targets=VICTIMS,
    does="sends SIGKILL",
    past="killed",
    when="after {victim} was killed",
    ends=True,
    hands=SignalDriver(signal.SIGKILL),
)


# A JVM that is told to end runs its shutdown hooks first.
WITHIN_S = 15.0

TERM = Action(
    name="term",
    order=20,
    targets=VICTIMS,
    does="sends SIGTERM",
    past="terminated",
    when="after {victim} was terminated",
    ends=True,
    hands=SignalDriver(signal.SIGTERM, within_s=WITHIN_S),
)


# The victim stands still and keeps what it has.
PAUSE = Action(
    name="pause",
    order=30,
    targets=VICTIMS,
    does="sends SIGSTOP, then SIGCONT after `duration_s`",
    past="paused",
    when="with {victim} paused for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    by_hand="continue it by hand with kill -CONT",
    hands=SignalDriver(signal.SIGSTOP, shows=Presence.STOPPED),
)
