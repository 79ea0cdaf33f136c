"""The network that joins the hosts: a bridge on this machine, and a pair of virtual interfaces for each host."""

from __future__ import annotations

import subprocess
from pathlib import Path

from faultline.installation.hosts.layout import found
from faultline.system.endpoints import Host, Placement
from faultline.system.errors import InfrastructureError

_LINKS = Path("/sys/class/net")


def make_bridge(placement: Placement) -> None:
    """Makes it where it is not there, with this machine's address. Raises InfrastructureError."""
    if not _exists(placement.bridge):
        _ip("link", "add", placement.bridge, "type", "bridge")
        _ip("address", "add", f"{placement.conductor}/24", "dev", placement.bridge)
    _ip("link", "set", placement.bridge, "up")


def remove_bridge(placement: Placement) -> None:
    """Removes it, with what leads from it to hosts; harmless when it is gone."""
    for host in placement.hosts:
        remove_link(placement, host)
    if placement.bridge:
        _delete(placement.bridge)


def join(placement: Placement, host: Host, pid: int) -> None:
    """Connects the host whose first process has this pid. Raises InfrastructureError."""
    remove_link(placement, host)
    near, far = link_of(placement, host), "eth0"
    _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", str(pid))
    _ip("link", "set", near, "master", placement.bridge, "up")
    inside = [str(found("nsenter")), "--target", str(pid), "--net", str(found("ip"))]
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{host.address}/24", "dev", far),
        ("link", "set", far, "up"),
        ("route", "add", "default", "via", placement.conductor),
    ):
        run([*inside, *words])


def remove_link(placement: Placement, host: Host) -> None:
    """Disconnects a host; harmless when it is not connected."""
    _delete(link_of(placement, host))


def link_of(placement: Placement, host: Host) -> str:
    """This machine's end of the connection to a host: faultl-XXXXXXXX becomes flXXXXXXXX-N."""
    return f"fl{placement.bridge.removeprefix('faultl-')}-{host.address.rpartition('.')[2]}"


def _delete(link: str) -> None:
    if not _exists(link):
        return
    try:
        _ip("link", "delete", link)
    except InfrastructureError:
        # It goes by itself when the network at its other end does.
        if _exists(link):
            raise


def _exists(link: str) -> bool:
    return (_LINKS / link).exists()


def _ip(*words: str) -> None:
    run([str(found("ip")), *words])


def run(command: list[str]) -> None:
    """Raises InfrastructureError, with what the command said, when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"hosts: {' '.join(command)}: {done.stderr.strip() or 'failed'}")
