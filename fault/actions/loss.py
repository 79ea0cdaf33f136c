"""Packets get lost: between workload and broker, or between a host and others."""

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


def _lose(proxy: ProxyControl, fault: Asked, only: Sequence[str] | None) -> int:
    assert fault.loss_percent is not None  # the plan requires it
    return proxy.loss(fault.loss_percent, only)


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others("all", host, context), "percent": fault.loss_percent, "way": "both"}


ACTION = Action(
    name="loss",
    order=75,
    targets=("executor", "worker", "kafka"),
    does="loses packets between the victim's host and others, by chance, or holds the bytes between workload and Kafka "
    "as if so many were lost",
    past="lost packets of the connections to Kafka",
    when="with {loss_percent:g} % of the packets of the connections to Kafka lost for {duration_s:g} s",
    past_of_host="lost packets of the host of",
    when_of_host="with {loss_percent:g} % of the packets of the host of {victim} lost for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("loss_percent", short=5.0)),
    hits=CONNECTIONS,
    detours=True,
    on_hosts=True,
    by_hand="end the proxy by hand, or delete the table faultline_… there with nft",
    hands=Impaired(OnHosts("loss", _asks), _lose, falls_back=False),
)
