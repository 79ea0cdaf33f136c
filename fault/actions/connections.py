"""Actions on the workload's connections to Kafka, performed by the proxy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fault.action import Action, Context, Daemon, DaemonContext, DeliveryRecord, FaultDriver, Injection, UndoSpec
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.identity import Delivery
from fault.injector import FaultOutcome, Settlement
from fault.proxy_control import ProxyControl, ProxyUnreachable

# The affected resource, for reports.
CONNECTIONS = "the workload's connections to Kafka"
# Role of the connections in the journal.
ROLE = "kafka_connection"
# Control file of the proxy in the attempt's folder.
CONTROL = "proxy.json"
# Proxy mode without disturbance.
_MODE_PLAIN = "plain"


@dataclass(frozen=True)
class ConnectionDriver(FaultDriver):
    """Driver that sends a command to the proxy.

    `command` returns the number of affected connections, or None if it must be read from the proxy's status.
    """

    command: Callable[[ProxyControl, FaultSpec], int | None]

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """Return the proxy daemon, which listens on `proxy_address`."""
        control = site.folder / CONTROL
        addresses = ("--listen", site.proxy_address, "--upstream", site.kafka)
        return (Daemon("proxy", "fault.proxy", (*addresses, "--control", str(control)), control),)

    def create_injection(self, planned: Occurrence, context: Context) -> Injection:
        return ConnectionInjection(self, planned, context)

    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        """Return whether the proxy still disturbs connections; False if the proxy is gone."""
        try:
            return bool(_proxy(context).status()["mode"] != _MODE_PLAIN)
        except ProxyUnreachable:
            return False

    def undo(self, undo: UndoSpec, context: Context) -> None:
        _proxy(context).restore()


@dataclass
class ConnectionInjection(Injection):
    """One injection on connections."""

    driver: ConnectionDriver
    planned: Occurrence
    context: Context
    _connections: int | None = None

    def find_victims(self) -> bool:
        """Check that the proxy runs. Raises FaultError if not."""
        _proxy(self.context).status()
        return False

    def describe(self) -> list[str]:
        """Return one line; the connections are not known in advance."""
        return [f"would {self.planned.describe()}"]

    def victims(self) -> list[dict[str, Any]]:
        empty = dict.fromkeys(("pid", "create_time", "command", "node", "executors"))
        return [{"fault": self.planned.index, **empty, "role": ROLE, "host": ""}]

    def plan_undo(self) -> list[UndoSpec]:
        """Return one step for a fault with a duration; a reset is not undone."""
        if self.planned.fault.duration_s is None:
            return []
        return [UndoSpec(self.planned.fault.action, "restore the proxy")]

    def perform(self) -> list[DeliveryRecord]:
        self._connections = self.driver.command(_proxy(self.context), self.planned.fault)
        return [DeliveryRecord(None, ROLE, self.context.now(), Delivery.SENT)]

    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        """Return EFFECTIVE if at least one connection was affected, else NO_EFFECT."""
        action, connections = self.planned.fault.action, self._connections
        if connections is None:
            connections = int(_proxy(self.context).status()["connections"])
        if not connections:
            return Settlement(FaultOutcome.NO_EFFECT, f"{action}: no connection went through the proxy")
        return Settlement(FaultOutcome.EFFECTIVE, f"{action}: {connections} connections")


def _proxy(context: Context) -> ProxyControl:
    return ProxyControl(context.folder / CONTROL)


def _cut(proxy: ProxyControl, fault: FaultSpec) -> None:
    proxy.cut()


# Like an unplugged cable.
CUT = Action(
    name="cut",
    order=60,
    targets=("kafka",),
    does="blocks all traffic between the workload and Kafka; connections stay open",
    past="cut the connections to Kafka",
    when="with the connections to Kafka cut for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0),),
    resource=CONNECTIONS,
    uses_proxy=True,
    manual_undo="stop the proxy process",
    driver=ConnectionDriver(_cut),
)


def _reset(proxy: ProxyControl, fault: FaultSpec) -> int:
    return proxy.reset()


RESET = Action(
    name="reset",
    order=50,
    targets=("kafka",),
    does="resets each connection of the workload to Kafka once (TCP RST)",
    past="reset the connections to Kafka",
    when="after the connections to Kafka were reset",
    resource=CONNECTIONS,
    uses_proxy=True,
    driver=ConnectionDriver(_reset),
)
