"""Nothing passes between workload and broker, like a pulled cable; connections stay open."""

from __future__ import annotations

from fault.action import Action
from fault.connections import CONNECTIONS, Connections
from fault.occurrence import Asked
from fault.parameters import DURATION, Parameter
from fault.proxy_control import ProxyControl


def _cut(proxy: ProxyControl, fault: Asked) -> None:
    proxy.cut()


ACTION = Action(
    name="cut",
    order=60,
    targets=("kafka",),
    does="lets nothing pass between workload and Kafka, and keeps the connections open",
    past="cut the connections to Kafka",
    when="with the connections to Kafka cut for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    hits=CONNECTIONS,
    detours=True,
    by_hand="end the proxy by hand",
    hands=Connections(_cut),
)
