"""The disk to which the service on the victim's host writes has no byte left; of the driver, that of the checkpoint."""

from __future__ import annotations

from typing import Any

from fault.action import Action, Context
from fault.errors import VictimRefused
from fault.occurrence import Asked
from fault.on_hosts import OnHosts
from fault.parameters import DURATION, Parameter


def _asks(fault: Asked, host: str, context: Context) -> dict[str, Any]:
    if not host and (fault.victim != "driver" or host not in context.disks):
        raise VictimRefused(
            f"disk_full: what the {fault.victim} writes lies on the disk of this machine, which is not filled; "
            "./faultline up --hosts 3 gives checkpoints one of their own"
        )
    if host not in context.disks:
        raise VictimRefused(f'disk_full: ssh_hosts.json names no disk of {host} that may be filled; add "disk": FOLDER')
    return {"folder": context.disks[host]}


ACTION = Action(
    name="disk_full",
    order=90,
    targets=("executor", "worker", "kafka", "driver"),
    does="fills the disk of the victim's host, for the driver that of the checkpoint",
    past="filled the disk of",
    when="with the disk of {victim} full for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    on_hosts=True,
    by_hand="delete the file faultline-ballast-… there",
    hands=OnHosts("disk_full", _asks, here=True),
)
