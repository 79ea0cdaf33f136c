"""The bytes between workload and broker are held for a while, in both directions."""

from __future__ import annotations

from fault.action import Action
from fault.connections import CONNECTIONS, Connections
from fault.occurrence import Asked
from fault.parameters import DURATION, Parameter
from fault.proxy_control import ProxyControl


def _delay(proxy: ProxyControl, fault: Asked) -> None:
    assert fault.delay_ms is not None  # the plan requires it
    proxy.delay(fault.delay_ms)


ACTION = Action(
    name="delay",
    order=40,
    targets=("kafka",),
    does="holds the bytes of both directions between workload and Kafka",
    past="delayed the connections to Kafka",
    when="with the connections to Kafka delayed by {delay_ms:g} ms for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("delay_ms", short=200.0)),
    hits=CONNECTIONS,
    detours=True,
    by_hand="end the proxy by hand",
    hands=Connections(_delay),
)
