"""What the host of the victim sends goes through a narrow way."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.occurrence import Asked
from fault.on_hosts import OnHosts, others
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others("all", host, context), "mbit_s": fault.mbit_s}


ACTION = Action(
    name="bandwidth",
    order=80,
    targets=("executor", "worker", "kafka"),
    does="lets the victim's host send so many megabits a second at most",
    past="narrowed the network of the host of",
    when="with the host of {victim} narrowed to {mbit_s:g} Mbit/s for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("mbit_s", short=10.0)),
    on_hosts=True,
    by_hand="remove the queueing discipline tbf at the root there with tc",
    hands=OnHosts("bandwidth", _asks),
)
