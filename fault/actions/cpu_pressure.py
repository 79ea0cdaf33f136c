"""Neighbours compute on the host of the victim."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.occurrence import Asked
from fault.on_hosts import OnHosts
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    return {"cores": int(fault.cores or 1)}


ACTION = Action(
    name="cpu_pressure",
    order=100,
    targets=("executor", "worker", "kafka"),
    does="has neighbours compute on the victim's host, on so many cores",
    past="took cores from the host of",
    when="with neighbours on {cores:g} cores of the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("cores", short=2.0)),
    on_hosts=True,
    by_hand="end the processes faultline-neighbour=… there",
    hands=OnHosts("cpu_pressure", _asks),
)
