"""Actions on whole hosts: on the one where a victim lives. The agent there acts, after it posted who undoes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fault.action import Context, Daemon, HalfDone, Moment, Sent, Site, UndoSpec
from fault.errors import ConnectionLost, FaultError, VictimRefused
from fault.host_acts import name_of
from fault.hosts import KAFKA_HOST, Hosts
from fault.identity import ProcessIdentity
from fault.injector import Delivery, Outcome, Settlement
from fault.occurrence import Asked, Occurrence
from fault.victims import choose

if TYPE_CHECKING:  # the SSH library takes a quarter of a second, which a run on this machine alone does without
    from fault.remote import RemoteInjector
    from fault.this_host import ThisHost

# So much longer than the act a dead man waits, who undoes it when nobody else does.
LATE_S = 10.0


@dataclass(frozen=True)
class OnHosts:
    """Does `kind` of `fault.host_acts` to hosts. `asks` gives what it is asked for, of the fault, the host's name and
    the places that the attempt knows. `here`: it can be done to this host, too, where driver and harness live."""

    kind: str
    asks: Callable[[Asked, str, Context], dict[str, Any]]
    here: bool = False

    def prepare(self, site: Site) -> tuple[Daemon, ...]:
        """None: the agent acts, and goes."""
        return ()

    def act(self, planned: Occurrence, context: Context) -> HostsAct:
        """An act on the hosts of the victims that the plan asks for."""
        return HostsAct(self, planned, context)

    def holds(self, undo: UndoSpec, context: Context) -> bool:
        """Whether it holds still on that host."""
        return bool(_there(context, undo.fields["host"]).host_act("holds", **undo.fields["act"]))

    def undo(self, undo: UndoSpec, context: Context) -> None:
        """Has the agent there undo it."""
        _there(context, undo.fields["host"]).host_act("undo", **undo.fields["act"])


@dataclass
class HostsAct:
    """One act on hosts."""

    hands: OnHosts
    planned: Occurrence
    context: Context
    _chosen: tuple[ProcessIdentity, ...] = ()

    def find(self) -> bool:
        """Victims by seed, on a host each; those chosen before stay while they live, and their hosts while there is
        another. Has each host look whether the act can be done there. Raises FaultError."""
        fault, context, before = self.planned.fault, self.context, self._chosen
        candidates = context.injector.find(fault.victim, context.tokens)
        first_of = {one.host: one for one in reversed(candidates)}
        if "" in first_of and not self.hands.here:
            raise VictimRefused(
                f"{self.hands.kind}: the {fault.victim} runs on this host, and this is done to other ones; "
                "./faultline up --hosts 3"
            )
        if before and all(one.host in first_of for one in before):
            alive = {_who(one): one for one in candidates}
            self._chosen = tuple(alive.get(_who(one), first_of[one.host]) for one in before)
        else:
            self._chosen = choose(
                tuple(first_of.values()), fault.count, seed=context.seed, repetition=context.repetition,
                fault=self.planned.index,
            )  # fmt: skip
        context.guard.check(fault, self._chosen)
        for one in self._chosen:
            _there(context, one.host).host_act("check", **self._act(one))
        return [*map(_who, self._chosen)] != [*map(_who, before)]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that were chosen."""
        return tuple(one.host for one in self._chosen)

    def _act(self, victim: ProcessIdentity) -> dict[str, Any]:
        return {
            "kind": self.hands.kind,
            "name": name_of(self.context.tokens.run, self.planned.index),
            "asked": self.hands.asks(self.planned.fault, victim.host, self.context),
        }

    def describe(self) -> list[str]:
        """A line for each host."""
        return [f"would {self.planned.what(f'{_called(one.host)} of {one}')}" for one in self._chosen]

    def victims(self) -> list[dict[str, Any]]:
        """The processes for whose sake their hosts were chosen."""
        return [{"fault": self.planned.index, **one.as_json(), "executors": None} for one in self._chosen]

    def undo(self) -> list[UndoSpec]:
        """One for each host."""
        action = self.planned.fault.action
        return [
            UndoSpec(action, f"end of {action} on {_called(one.host)}", {"host": one.host, "act": self._act(one)})
            for one in self._chosen
        ]

    def await_ready(self, until_mono_ns: int) -> bool:
        """At once."""
        return True

    def arm(self, planned: Moment) -> None:
        """Posts a dead man on each host, before anything is done there."""
        seconds = (self.planned.fault.duration_s or 0.0) + LATE_S
        for one in self._chosen:
            _there(self.context, one.host).host_act("undo_later", seconds=seconds, **self._act(one))

    def perform(self) -> list[Sent]:
        """Tells each host, once. What it said may be lost on its way: then it is asked when all is settled. Raises
        HalfDone."""
        sent: list[Sent] = []
        for one in self._chosen:
            delivery = Delivery.SENT
            try:
                _there(self.context, one.host).host_act("do", **self._act(one))
            except ConnectionLost:
                delivery = Delivery.UNKNOWN
            except FaultError as error:
                raise HalfDone(error, sent) from None
            sent.append(Sent(one.pid, one.role.name, self.context.now(), delivery, one))
        return sent

    def settle(self, sent: Sequence[Sent]) -> Settlement:
        """By asking each host whether it holds."""
        hosts = [_called(one.host) for one in self._chosen]
        there = {one.host: _there(self.context, one.host) for one in self._chosen}
        idle = [_called(one.host) for one in self._chosen if not there[one.host].host_act("holds", **self._act(one))]
        if idle:
            return Settlement(Outcome.NO_EFFECT, f"{self.hands.kind}: does not hold on {', '.join(idle)}")
        return Settlement(Outcome.EFFECTIVE, f"{self.hands.kind}: holds on {', '.join(hosts)}")


def _called(host: str) -> str:
    return f"the host {host}" if host else "this host"


def _who(victim: ProcessIdentity) -> tuple[str, int, int | None]:
    # A step of the clock makes no other process of it.
    return victim.host, victim.pid, victim.start_ticks


def others(peer: str, host: str, context: Context) -> list[str]:
    """The addresses of those from whom `host` is cut off, by a word of `fault.parameters.PEERS`.

    Raises VictimRefused where there is none.
    """
    fits: dict[str, Callable[[str], bool]] = {
        "kafka": lambda name: name == KAFKA_HOST,
        "driver": lambda name: not name,
        "workers": lambda name: name not in ("", KAFKA_HOST),
    }
    found = [
        address
        for name, address in context.addresses.items()
        if name != host and (peer not in fits or fits[peer](name))
    ]
    if not found:
        raise VictimRefused(f"peer: {peer} has no host beside {host}; use another one")
    return found


def _there(context: Context, host: str) -> RemoteInjector | ThisHost:
    """Whoever acts on that host. Raises VictimRefused for one that is not reached over SSH."""
    if not isinstance(context.injector, Hosts):
        raise VictimRefused(f"host: {host or 'this one'} is not reached over SSH")
    return context.injector.acting_on(host)
