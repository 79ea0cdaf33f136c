"""How machines are reached over SSH, as files and Connections list them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # see fault.hosts
    from fault.connection import RemoteHost


def remote_hosts(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, RemoteHost]:
    """By name, as `attempt.json` or the endpoints of a target list them."""
    return {name: _remote_host(host) for name, host in listed.items()}


def _remote_host(values: Mapping[str, Any]) -> RemoteHost:
    from fault.connection import RemoteHost
    from fault.shipping import PYTHON

    return RemoteHost(
        host=str(values["host"]),
        user=str(values["user"]),
        key_file=Path(values["key_file"]),
        known_hosts=Path(values["known_hosts"]),
        port=int(values.get("port", 22)),
        python=str(values.get("python", PYTHON)),
    )
