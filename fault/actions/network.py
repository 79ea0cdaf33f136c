"""Network actions on the workload's Kafka connections or on a whole host.

On connections the relay of `fault.proxy` injects. On a host its kernel injects; if the kernel cannot, the relay injects
on the host's Kafka connections.
"""

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
from fault.actions.connections import CONNECTIONS, ConnectionDriver, ConnectionInjection
from fault.actions.hosts import HostDriver, HostInjection, peer_addresses
from fault.errors import KernelUnsupported
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.injector import Settlement
from fault.proxy_control import ProxyControl

# Sends a command to the relay. With a list of addresses, it affects only clients at these addresses.
RelayCommand = Callable[[ProxyControl, FaultSpec, Sequence[str] | None], int]


@dataclass(frozen=True)
class NetworkDriver(FaultDriver):
    """Driver for a network fault on hosts (`host_driver`) or on connections (`command`).

    `relay_fallback`: whether to inject on a host's Kafka connections if its kernel does not support the fault; if
    False, such a host is refused.
    """

    host_driver: HostDriver
    command: RelayCommand
    relay_fallback: bool

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """Return the proxy daemon."""
        return self._relay_driver(None).prepare(site)

    def create_injection(self, planned: Occurrence, context: Context) -> Injection:
        if planned.fault.max_processes == 0:
            return self._relay_driver(None).create_injection(planned, context)
        injection = self.host_driver.create_injection(planned, context)
        return NetworkInjection(self, planned, context, injection, injection)

    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        return self._driver_of(undo).is_active(undo, context)

    def undo(self, undo: UndoSpec, context: Context) -> None:
        self._driver_of(undo).undo(undo, context)

    def _driver_of(self, undo: UndoSpec) -> HostDriver | ConnectionDriver:
        return self.host_driver if "host" in undo.fields else self._relay_driver(None)

    def _relay_driver(self, clients: Sequence[str] | None) -> ConnectionDriver:
        return ConnectionDriver(lambda proxy, fault: self.command(proxy, fault, clients))

    def create_relay_injection(
        self, planned: Occurrence, context: Context, hosts: Sequence[str]
    ) -> ConnectionInjection:
        """Create an injection on the Kafka connections of these hosts."""
        return ConnectionInjection(self._relay_driver([context.addresses[one] for one in hosts]), planned, context)


@dataclass
class NetworkInjection(Injection):
    """One injection on hosts, or on their connections if a kernel does not support it."""

    driver: NetworkDriver
    planned: Occurrence
    context: Context
    host_injection: HostInjection
    injection: HostInjection | ConnectionInjection
    _problem: str | None = None

    def find_victims(self) -> bool:
        """Choose hosts, and switch to their connections if a kernel cannot. Raises FaultError."""
        before = self.victims()
        self.injection, self._problem = self.host_injection, None
        try:
            self.host_injection.find_victims()
        except KernelUnsupported as refused:
            if not self.driver.relay_fallback:
                raise
            self.injection, self._problem = (
                self.driver.create_relay_injection(self.planned, self.context, self.host_injection.hosts),
                str(refused),
            )
            self.injection.find_victims()
        return self.victims() != before

    def describe(self) -> list[str]:
        return [f"{line}, {self._means}" for line in self.injection.describe()]

    def victims(self) -> list[dict[str, Any]]:
        """Return the processes on hosts, or the connections of those hosts."""
        if self.injection is self.host_injection:
            return self.host_injection.victims()
        return [{**one, "host": host} for host in self.host_injection.hosts for one in self.injection.victims()]

    def plan_undo(self) -> list[UndoSpec]:
        return self.injection.plan_undo()

    def arm(self, planned: Moment) -> None:
        self.injection.arm(planned)

    def perform(self) -> list[DeliveryRecord]:
        return self.injection.perform()

    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        settlement = self.injection.settle(deliveries)
        return Settlement(settlement.outcome, f"{settlement.detail}, {self._means}")

    @property
    def _means(self) -> str:
        if self._problem is None:
            return "by the host's kernel"
        return f"by the relay, on its Kafka connections only: {self._problem}"


def _delay(proxy: ProxyControl, fault: FaultSpec, clients: Sequence[str] | None) -> int:
    assert fault.delay_ms is not None  # the plan requires it
    return proxy.delay(fault.delay_ms, fault.jitter_ms, clients)


def _delay_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    assert fault.delay_ms is not None
    # A kernel delays outgoing packets only, the relay both directions: doubling gives the same round trip.
    doubled = {"delay_ms": 2 * fault.delay_ms, "jitter_ms": 2 * (fault.jitter_ms or 0.0)}
    return {"peers": peer_addresses("all", host, context), **doubled}


DELAY = Action(
    name="delay",
    order=40,
    targets=("executor", "worker", "kafka"),
    does="delays traffic by `delay_ms` in each direction: for `kafka`, between workload and broker; for other victims, "
    "of the victim's host",
    past="delayed the connections to Kafka",
    when="with the connections to Kafka delayed by {delay_ms:g} ms for {duration_s:g} s",
    past_on_host="delayed the network of the host of",
    when_on_host="with the network of the host of {victim} delayed by {delay_ms:g} ms for {duration_s:g} s",
    parameters=(
        Parameter(DURATION, default=10.0),
        Parameter("delay_ms", default=200.0),
        Parameter("jitter_ms", required=False),
    ),
    resource=CONNECTIONS,
    uses_proxy=True,
    targets_hosts=True,
    manual_undo="stop the proxy process, or remove the queueing discipline prio on the host with tc",
    driver=NetworkDriver(HostDriver("delay", _delay_parameters), _delay, relay_fallback=True),
)


def _lose(proxy: ProxyControl, fault: FaultSpec, clients: Sequence[str] | None) -> int:
    assert fault.loss_percent is not None  # the plan requires it
    return proxy.loss(fault.loss_percent, clients)


def _loss_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": peer_addresses("all", host, context), "percent": fault.loss_percent, "way": "both"}


LOSS = Action(
    name="loss",
    order=75,
    targets=("executor", "worker", "kafka"),
    does="loses packets at random: for `kafka`, emulated on the workload's connections; for other victims, dropped on "
    "the victim's host",
    past="lost packets of the connections to Kafka",
    when="with {loss_percent:g} % of the packets of the connections to Kafka lost for {duration_s:g} s",
    past_on_host="lost packets of the host of",
    when_on_host="with {loss_percent:g} % of the packets of the host of {victim} lost for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0), Parameter("loss_percent", default=5.0)),
    resource=CONNECTIONS,
    uses_proxy=True,
    targets_hosts=True,
    manual_undo="stop the proxy process, or delete the table faultline_… on the host with nft",
    driver=NetworkDriver(HostDriver("loss", _loss_parameters), _lose, relay_fallback=False),
)
