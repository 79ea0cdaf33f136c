"""What passes through the network is held for a while: between workload and broker, or between a host and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fault.action import Action, Context
from fault.connections import CONNECTIONS
from fault.impaired import Impaired
from fault.occurrence import Asked
from fault.on_hosts import OnHosts, others
from fault.parameters import DURATION, Parameter
from fault.proxy_control import ProxyControl


def _delay(proxy: ProxyControl, fault: Asked, only: Sequence[str] | None) -> int:
    assert fault.delay_ms is not None  # the plan requires it
    return proxy.delay(fault.delay_ms, fault.jitter_ms, only)


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    assert fault.delay_ms is not None
    # A kernel holds what goes out alone: there and back takes as much longer as by the relay, which holds both.
    held = {"delay_ms": 2 * fault.delay_ms, "jitter_ms": 2 * (fault.jitter_ms or 0.0)}
    return {"peers": others("all", host, context), **held}


ACTION = Action(
    name="delay",
    order=40,
    targets=("executor", "worker", "kafka"),
    does="holds the bytes of both directions between workload and Kafka, or what passes between the victim's host and "
    "others",
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
    hands=Impaired(OnHosts("delay", _asks), _delay, falls_back=True),
)
