"""Actions on the workload's connections to Kafka: the proxy between the two is told to disturb them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fault.action import Action, Context, Daemon, DaemonContext, DeliveryRecord, FaultDriver, Injection, UndoSpec
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.identity import Delivery
from fault.injector import FaultOutcome, Settlement
from fault.proxy_control import ProxyControl, ProxyUnreachable

# What they hit, in words.
CONNECTIONS = "the workload's connections to Kafka"
# The role of the journal's lines on them.
ROLE = "kafka_connection"
# How to reach the proxy of an attempt, in its folder.
CONTROL = "proxy.json"
# The proxy's word for connections that nothing disturbs.
_PLAIN = "plain"


@dataclass(frozen=True)
class ConnectionDriver(FaultDriver):
    """Tells the proxy. `tell` gives the number of connections that it hit; None when the proxy is to be asked."""

    tell: Callable[[ProxyControl, FaultSpec], int | None]

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """The proxy, on the detour."""
        control = site.folder / CONTROL
        ends = ("--listen", site.detour, "--upstream", site.kafka)
        return (Daemon("proxy", "fault.proxy", (*ends, "--control", str(control)), control),)

    def act(self, planned: Occurrence, context: Context) -> Injection:
        return ConnectionAction(self, planned, context)

    def holds(self, undo: UndoSpec, context: Context) -> bool:
        """Whether the proxy disturbs still; one that is gone does not any more."""
        try:
            return bool(_proxy(context).status()["mode"] != _PLAIN)
        except ProxyUnreachable:
            return False

    def undo(self, undo: UndoSpec, context: Context) -> None:
        _proxy(context).heal()


@dataclass
class ConnectionAction(Injection):
    """One act on connections."""

    hands: ConnectionDriver
    planned: Occurrence
    context: Context
    _hit: int | None = None

    def find(self) -> bool:
        """Asks the proxy whether it is there. Raises FaultError when it is not."""
        _proxy(self.context).status()
        return False

    def describe(self) -> list[str]:
        """One line: which connections there will be is not known before."""
        return [f"would {self.planned.what()}"]

    def victims(self) -> list[dict[str, Any]]:
        nobody = dict.fromkeys(("pid", "create_time", "command", "node", "executors"))
        return [{"fault": self.planned.index, **nobody, "role": ROLE, "host": ""}]

    def undo(self) -> list[UndoSpec]:
        """One for an act that lasts; what was reset stays so."""
        if self.planned.fault.duration_s is None:
            return []
        return [UndoSpec(self.planned.fault.action, "heal the proxy")]

    def perform(self) -> list[DeliveryRecord]:
        self._hit = self.hands.tell(_proxy(self.context), self.planned.fault)
        return [DeliveryRecord(None, ROLE, self.context.now(), Delivery.SENT)]

    def settle(self, sent: Sequence[DeliveryRecord]) -> Settlement:
        """Effective when there were connections to be hit."""
        action, hit = self.planned.fault.action, self._hit
        if hit is None:
            hit = int(_proxy(self.context).status()["connections"])
        if not hit:
            return Settlement(FaultOutcome.NO_EFFECT, f"{action}: no connection went through the proxy")
        return Settlement(FaultOutcome.EFFECTIVE, f"{action}: {hit} connections")


def _proxy(context: Context) -> ProxyControl:
    return ProxyControl(context.folder / CONTROL)


def _cut(proxy: ProxyControl, fault: FaultSpec) -> None:
    proxy.cut()


# Nothing passes, like a pulled cable.
CUT = Action(
    name="cut",
    order=60,
    targets=("kafka",),
    does="blocks all traffic between the workload and Kafka; connections stay open",
    past="cut the connections to Kafka",
    when="with the connections to Kafka cut for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    hits=CONNECTIONS,
    detours=True,
    by_hand="end the proxy by hand",
    hands=ConnectionDriver(_cut),
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
    hits=CONNECTIONS,
    detours=True,
    hands=ConnectionDriver(_reset),
)
