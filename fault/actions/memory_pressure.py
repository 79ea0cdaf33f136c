"""A neighbour holds memory on the host of the victim."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.occurrence import Asked
from fault.on_hosts import OnHosts
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    return {"memory_mb": int(fault.memory_mb or 1)}


ACTION = Action(
    name="memory_pressure",
    order=110,
    targets=("executor", "worker", "kafka"),
    does="has a neighbour hold so much memory on the victim's host",
    past="took memory from the host of",
    when="with a neighbour of {memory_mb:g} MiB on the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("memory_mb", short=1024.0)),
    on_hosts=True,
    by_hand="end the process faultline-neighbour=… there",
    hands=OnHosts("memory_pressure", _asks),
)
