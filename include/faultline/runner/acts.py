"""Acts: what the conductor does to the victims of one planned fault. The conductor keeps the time, an act the hands.

A process act signals processes; a connection act speaks to the proxy between the workload and Kafka.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fault.busy import await_busy
from fault.errors import FaultError, IdentityMismatch
from fault.guard import Guard
from fault.hosts import Hosts
from fault.identity import ProcessIdentity, Tokens
from fault.injector import (
    SETTLE_WITHIN_S_OF,
    Delivery,
    Injector,
    Outcome,
    Settlement,
    executors_on,
    resume,
    settle,
)
from fault.plan import ANY, PlannedFault
from fault.proxy import ProxyControl
from fault.victims import choose
from faultline.base.journal import Instant
from faultline.cluster.restart_hold import lay_hold


@dataclass(frozen=True)
class Sent:
    """One delivery: to whom, when, and what is known of it. A `settlement` means that nothing was delivered."""

    victim: int | None
    role: str
    at: Instant
    delivery: Delivery
    identity: ProcessIdentity | None = None
    settlement: Settlement | None = None


@dataclass(frozen=True)
class Undo:
    """One step that heals; harmless when repeated. `fields` go to the journal, for a healer to read."""

    name: str
    step: Callable[[], None]
    fields: Mapping[str, Any] = field(default_factory=dict)


class Act(Protocol):
    """One planned fault, from the choice of its victims to the word on its effect."""

    planned: PlannedFault

    def choose(self) -> bool:
        """Looks at the victims, again after the first time; whether they are others now. Raises VictimRefused."""
        ...

    def describe(self) -> list[str]:
        """The dry run: a line for each victim."""
        ...

    def victims(self) -> list[dict[str, Any]]:
        """The victims as the journal names them."""
        ...

    def undos(self) -> list[Undo]:
        """What is to be registered before the act."""
        ...

    def await_ready(self, until_mono_ns: int) -> bool:
        """Waits for what must be the case at the instant of the act; False when it was not in time."""
        ...

    def before(self, planned: Instant) -> None:
        """The last preparations, after the undo is registered."""
        ...

    def perform(self) -> list[Sent]:
        """The act itself."""
        ...

    def settle(self, sent: Sequence[Sent]) -> Settlement:
        """What it did."""
        ...


@dataclass
class ProcessAct:
    """Signals processes. `holds`: by node of a worker, or `kafka`, the file that delays the service's restart."""

    planned: PlannedFault
    injector: Injector
    tokens: Tokens
    guard: Guard
    seed: int
    repetition: int
    holds: Mapping[str, Path] = field(default_factory=dict)
    restart_delay_s: float = 0.0
    _chosen: tuple[ProcessIdentity, ...] = ()
    _named: tuple[dict[str, Any], ...] = ()

    def choose(self) -> bool:
        """Victims by seed among the live candidates; those chosen before stay while all of them live.

        What a worker hosts is looked at anew all the same: an earlier fault may have replaced an executor there.
        """
        fault = self.planned.fault
        candidates = self.injector.find(fault.victim, self.tokens)
        living = {_key(candidate) for candidate in candidates}
        before, victims = self._named, self._chosen
        if not victims or any(_key(victim) not in living for victim in victims):
            victims = choose(
                candidates,
                fault.count,
                seed=self.seed,
                repetition=self.repetition,
                fault=self.planned.index,
                by_node=fault.victim == ANY,
            )
        self._take(victims)
        return self._named != before

    def _take(self, victims: tuple[ProcessIdentity, ...]) -> None:
        self.guard.check(self.planned.fault, victims)
        self._chosen = victims
        # Found here and kept: a look at all processes has no place in the last milliseconds before an act.
        self._named = tuple(self._name(victim) for victim in victims)

    def _name(self, victim: ProcessIdentity) -> dict[str, Any]:
        executors = None
        if victim.role.name == "worker":
            executors = [str(number) for number in executors_on(self.injector, victim.node, self.tokens)]
        return {"fault": self.planned.index, **victim.as_json(), "executors": executors}

    def describe(self) -> list[str]:
        return self.guard.describe(self.planned, self._chosen)

    def victims(self) -> list[dict[str, Any]]:
        return list(self._named)

    def undos(self) -> list[Undo]:
        signum = self.planned.fault.undo_signum
        if signum is None:
            return []
        return [
            Undo(f"{signum.name} to {victim}", functools.partial(resume, self.injector, victim), victim.as_json())
            for victim in self._chosen
        ]

    def await_ready(self, until_mono_ns: int) -> bool:
        """A Python worker must be at work: one that idles can be killed, and nothing happens."""
        fault = self.planned.fault
        if not fault.waits:
            return True
        busy = await_busy(
            self._python_workers(),
            fault.count,
            until_mono_ns,
            refresh=self._python_workers,
            elsewhere=self.injector.busy if isinstance(self.injector, Hosts) else None,
        )
        if len(busy) < fault.count:
            return False
        self._take(busy)
        return True

    def _python_workers(self) -> Sequence[ProcessIdentity]:
        return self.injector.find("python_worker", self.tokens)

    def before(self, planned: Instant) -> None:
        """Arms the injector, and keeps killed services down for the restart delay; a hold ends by its own clock."""
        if self.planned.fault.waits:
            return  # who is hit is known at the instant only
        for victim in self._chosen:
            with contextlib.suppress(FaultError):  # the signal will say it, at its instant
                self.injector.arm(victim)
        if self.planned.fault.action == "pause":
            return
        until = planned.plus(self.restart_delay_s).mono_ns
        for victim in self._chosen:
            hold = self.holds.get("kafka" if victim.role.name == "kafka" else victim.node or "")
            if hold is not None and victim.role.name in ("kafka", "worker"):
                lay_hold(hold, until)

    def perform(self) -> list[Sent]:
        """Sends the signal to each victim, once. What goes wrong with one is raised after all were tried."""
        sent: list[Sent] = []
        trouble: Exception | None = None
        for victim in self._chosen:
            settlement = None
            try:
                delivery = self.injector.signal(victim, self.planned.fault.signum)
            except IdentityMismatch as mismatch:
                delivery = Delivery.GONE
                settlement = Settlement(Outcome.NO_EFFECT, f"{victim} was already gone: {mismatch}")
            except Exception as error:
                trouble = trouble or error
                continue
            sent.append(Sent(victim.pid, victim.role.name, Instant.now(), delivery, victim, settlement))
        if trouble is not None:
            raise HalfDone(trouble, sent)
        return sent

    def settle(self, sent: Sequence[Sent]) -> Settlement:
        return _worst([one.settlement or self._settle(one) for one in sent])

    def _settle(self, sent: Sent) -> Settlement:
        assert sent.identity is not None
        fault = self.planned.fault
        longest_s = SETTLE_WITHIN_S_OF[fault.action]
        within_s = min(longest_s, fault.duration_s or longest_s)
        return settle(self.injector, sent.identity, fault.action, sent.delivery, within_s=within_s)


class HalfDone(Exception):
    """An act failed at one of its victims; `sent` are the deliveries that were made all the same."""

    def __init__(self, cause: Exception, sent: list[Sent]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.sent = sent


@dataclass
class ConnectionAct:
    """Delays, cuts or resets the connections that go through the attempt's proxy."""

    planned: PlannedFault
    proxy: ProxyControl
    _hit: int = 0

    def choose(self) -> bool:
        """Asks the proxy whether it is there. Raises FaultError when it is not."""
        self.proxy.status()
        return False

    def describe(self) -> list[str]:
        return [f"would {self.planned.what()}"]

    def victims(self) -> list[dict[str, Any]]:
        nobody = dict.fromkeys(("pid", "create_time", "command", "node", "executors"))
        return [{"fault": self.planned.index, **nobody, "role": "kafka_connection", "host": ""}]

    def undos(self) -> list[Undo]:
        return [] if self.planned.fault.action == "reset" else [Undo("heal the proxy", self.proxy.heal)]

    def await_ready(self, until_mono_ns: int) -> bool:
        return True

    def before(self, planned: Instant) -> None:
        """Nothing to prepare."""

    def perform(self) -> list[Sent]:
        fault = self.planned.fault
        if fault.action == "delay":
            assert fault.delay_ms is not None
            self.proxy.delay(fault.delay_ms)
        elif fault.action == "cut":
            self.proxy.cut()
        else:
            self._hit = self.proxy.reset()
        return [Sent(None, "kafka_connection", Instant.now(), Delivery.SENT)]

    def settle(self, sent: Sequence[Sent]) -> Settlement:
        """Effective when there were connections to be hit."""
        action = self.planned.fault.action
        if action != "reset":
            self._hit = int(self.proxy.status()["connections"])
        if not self._hit:
            return Settlement(Outcome.NO_EFFECT, f"{action}: no connection went through the proxy")
        return Settlement(Outcome.EFFECTIVE, f"{action}: {self._hit} connections")


def _key(victim: ProcessIdentity) -> tuple[str, int, int | None, float]:
    return victim.host, victim.pid, victim.start_ticks, victim.create_time


def _worst(settlements: Sequence[Settlement]) -> Settlement:
    """A fault on several victims is effective only when it was on each of them."""
    order = [Outcome.EFFECTIVE, Outcome.NO_EFFECT, Outcome.UNKNOWN, Outcome.MISSED_WINDOW]
    outcome = max((item.outcome for item in settlements), key=order.index)
    return Settlement(outcome, "; ".join(item.detail for item in settlements))
