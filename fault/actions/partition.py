"""The host of the victim is cut off: nothing passes between it and others, like a broken switch."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.occurrence import Asked
from fault.on_hosts import OnHosts, others
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others(fault.peer or "all", host, context), "way": fault.way or "both"}


ACTION = Action(
    name="partition",
    order=70,
    targets=("executor", "worker", "kafka"),
    does="lets nothing pass between the victim's host and others",
    past="cut off the host of",
    when="with the host of {victim} cut off for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("peer", required=False), Parameter("way", required=False)),
    on_hosts=True,
    by_hand="delete the table faultline_… there with nft",
    hands=OnHosts("partition", _asks),
)
