"""Every connection between workload and broker ends with RST, once; new ones are plain."""

from __future__ import annotations

from fault.action import Action
from fault.connections import CONNECTIONS, Connections
from fault.occurrence import Asked
from fault.proxy_control import ProxyControl


def _reset(proxy: ProxyControl, fault: Asked) -> int:
    return proxy.reset()


ACTION = Action(
    name="reset",
    order=50,
    targets=("kafka",),
    does="ends each of the workload's connections to Kafka with RST, once",
    past="reset the connections to Kafka",
    when="after the connections to Kafka were reset",
    hits=CONNECTIONS,
    detours=True,
    hands=Connections(_reset),
)
