"""The disk to which the service on the victim's host writes has no byte left."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.errors import VictimRefused
from fault.occurrence import Asked
from fault.on_hosts import OnHosts
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    if host not in context.disks:
        raise VictimRefused(f'disk_full: ssh_hosts.json names no disk of {host} that may be filled; add "disk": FOLDER')
    return {"folder": context.disks[host]}


ACTION = Action(
    name="disk_full",
    order=90,
    targets=("executor", "worker", "kafka"),
    does="fills the disk of the victim's host",
    past="filled the disk of the host of",
    when="with the disk of the host of {victim} full for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    on_hosts=True,
    by_hand="delete the file faultline-ballast-… there",
    hands=OnHosts("disk_full", _asks),
)
