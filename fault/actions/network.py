"""Actions on what passes through a network: on the workload's connections to Kafka by the relay between the two; on all
that passes between a victim's host and others by that host's kernel, or by the relay where its kernel cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fault.action import (
    Action,
    Context,
    Daemon,
    DaemonContext,
    DeliveryRecord,
    FaultDriver,
    Injection,
    Moment,
    UndoSpec,
)
from fault.actions.connections import CONNECTIONS, ConnectionAction, ConnectionDriver
from fault.actions.hosts import HostDriver, HostsAction, others
from fault.errors import KernelUnsupported
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.injector import Settlement
from fault.proxy_control import ProxyControl

# Tells the relay; with addresses, of clients there alone.
Tell = Callable[[ProxyControl, FaultSpec, Sequence[str] | None], int]


@dataclass(frozen=True)
class NetworkDriver(FaultDriver):
    """`on_hosts` does it to hosts, `tell` has the relay do it. `falls_back`: of a host whose kernel cannot, its
    connections to Kafka are taken; else it is refused there."""

    on_hosts: HostDriver
    tell: Tell
    falls_back: bool

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """The relay, on the detour."""
        return self._relayed(None).prepare(site)

    def act(self, planned: Occurrence, context: Context) -> Injection:
        if planned.fault.most_processes == 0:
            return self._relayed(None).act(planned, context)
        act = self.on_hosts.act(planned, context)
        return NetworkAction(self, planned, context, act, act)

    def holds(self, undo: UndoSpec, context: Context) -> bool:
        return self._of(undo).holds(undo, context)

    def undo(self, undo: UndoSpec, context: Context) -> None:
        self._of(undo).undo(undo, context)

    def _of(self, undo: UndoSpec) -> HostDriver | ConnectionDriver:
        return self.on_hosts if "host" in undo.fields else self._relayed(None)

    def _relayed(self, only: Sequence[str] | None) -> ConnectionDriver:
        return ConnectionDriver(lambda proxy, fault: self.tell(proxy, fault, only))

    def relayed(self, planned: Occurrence, context: Context, hosts: Sequence[str]) -> ConnectionAction:
        """An act on the connections of these hosts to Kafka."""
        return ConnectionAction(self._relayed([context.addresses[one] for one in hosts]), planned, context)


@dataclass
class NetworkAction(Injection):
    """One act on hosts, or on their connections where their kernels cannot."""

    hands: NetworkDriver
    planned: Occurrence
    context: Context
    on_hosts: HostsAction
    act: HostsAction | ConnectionAction
    _lack: str | None = None

    def find(self) -> bool:
        """As on hosts, whose connections are taken where a kernel cannot. Raises FaultError."""
        before = self.victims()
        self.act, self._lack = self.on_hosts, None
        try:
            self.on_hosts.find()
        except KernelUnsupported as refused:
            if not self.hands.falls_back:
                raise
            self.act, self._lack = self.hands.relayed(self.planned, self.context, self.on_hosts.hosts), str(refused)
            self.act.find()
        return self.victims() != before

    def describe(self) -> list[str]:
        return [f"{line}, {self._by}" for line in self.act.describe()]

    def victims(self) -> list[dict[str, Any]]:
        """Those of the act: processes on hosts, or the connections of those hosts."""
        if self.act is self.on_hosts:
            return self.on_hosts.victims()
        return [{**one, "host": host} for host in self.on_hosts.hosts for one in self.act.victims()]

    def undo(self) -> list[UndoSpec]:
        return self.act.undo()

    def arm(self, planned: Moment) -> None:
        self.act.arm(planned)

    def perform(self) -> list[DeliveryRecord]:
        return self.act.perform()

    def settle(self, sent: Sequence[DeliveryRecord]) -> Settlement:
        found = self.act.settle(sent)
        return Settlement(found.outcome, f"{found.detail}, {self._by}")

    @property
    def _by(self) -> str:
        if self._lack is None:
            return "by the host's kernel"
        return f"by the relay, on its connections to Kafka alone: {self._lack}"


def _delay(proxy: ProxyControl, fault: FaultSpec, only: Sequence[str] | None) -> int:
    assert fault.delay_ms is not None  # the plan requires it
    return proxy.delay(fault.delay_ms, fault.jitter_ms, only)


def _asks_of_delay(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    assert fault.delay_ms is not None
    # A kernel holds what goes out alone: there and back takes as much longer as by the relay, which holds both.
    held = {"delay_ms": 2 * fault.delay_ms, "jitter_ms": 2 * (fault.jitter_ms or 0.0)}
    return {"peers": others("all", host, context), **held}


DELAY = Action(
    name="delay",
    order=40,
    targets=("executor", "worker", "kafka"),
    does="delays traffic by `delay_ms` in each direction: for `kafka`, between workload and broker; otherwise, of the "
    "victim's host",
    past="delayed the connections to Kafka",
    when="with the connections to Kafka delayed by {delay_ms:g} ms for {duration_s:g} s",
    past_of_host="delayed the network of the host of",
    when_of_host="with the network of the host of {victim} delayed by {delay_ms:g} ms for {duration_s:g} s",
    parameters=(
        Parameter(DURATION, short=10.0),
        Parameter("delay_ms", short=200.0),
        Parameter("jitter_ms", required=False),
    ),
    hits=CONNECTIONS,
    detours=True,
    on_hosts=True,
    by_hand="end the proxy by hand, or remove the queueing discipline prio there with tc",
    hands=NetworkDriver(HostDriver("delay", _asks_of_delay), _delay, falls_back=True),
)


def _lose(proxy: ProxyControl, fault: FaultSpec, only: Sequence[str] | None) -> int:
    assert fault.loss_percent is not None  # the plan requires it
    return proxy.loss(fault.loss_percent, only)


def _asks_of_loss(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others("all", host, context), "percent": fault.loss_percent, "way": "both"}


LOSS = Action(
    name="loss",
    order=75,
    targets=("executor", "worker", "kafka"),
    does="loses packets at random: for `kafka`, emulated on the workload's connections; otherwise, dropped on the "
    "victim's host",
    past="lost packets of the connections to Kafka",
    when="with {loss_percent:g} % of the packets of the connections to Kafka lost for {duration_s:g} s",
    past_of_host="lost packets of the host of",
    when_of_host="with {loss_percent:g} % of the packets of the host of {victim} lost for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("loss_percent", short=5.0)),
    hits=CONNECTIONS,
    detours=True,
    on_hosts=True,
    by_hand="end the proxy by hand, or delete the table faultline_… there with nft",
    hands=NetworkDriver(HostDriver("loss", _asks_of_loss), _lose, falls_back=False),
)
