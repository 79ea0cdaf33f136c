"""Hosts that are reached over SSH: the file that lists them, what is refused of it, and their addresses."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.system.errors import ConfigError
from faultline.system.files import reject_damaged
from faultline.system.settings import Settings

if TYPE_CHECKING:  # the SSH library takes a quarter of a second
    from fault.ssh_connection import RemoteHost


SSH_HOSTS = "ssh_hosts.json"
# A shell over there reads it.
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")
SSH_KEYS = ("host", "user", "key_file", "known_hosts")


def ssh_hosts(settings: Settings) -> dict[str, dict[str, Any]]:
    """The machines whose processes faults hit over SSH, by name, as `.faultline/ssh_hosts.json` lists them.

    Each is {"host", "user", "key_file", "known_hosts", "port", "python"}. Those that `up --hosts` made come first;
    without any, all is on this machine. Raises ConfigError naming host and key.
    """
    made = [settings.hosts / SSH_HOSTS] if settings.placement.is_spread else []
    listed: dict[str, Any] = {}
    for file in (*made, settings.home / SSH_HOSTS):
        with reject_damaged(file, "mend it or delete it"):
            listed |= json.loads(file.read_text()) if file.exists() else {}
    return {str(name): check_ssh_host(f"{SSH_HOSTS}: {name}", host) for name, host in listed.items()}


def check_ssh_host(where: str, host: Any) -> dict[str, Any]:
    """The host with its port and Python; ConfigError, beginning with `where` and the key, when it cannot be used."""
    for key in SSH_KEYS:
        if not (isinstance(host, dict) and isinstance(host.get(key), str) and host[key]):
            raise ConfigError(f"{where}.{key}: missing; give it, or delete the host")
    port = host.get("port", 22)
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ConfigError(f"{where}.port: {port!r} is refused; give a whole number from 1 to 65535")
    for key in ("key_file", "known_hosts"):
        if not os.access(host[key], os.R_OK):
            raise ConfigError(f"{where}.{key}: {host[key]} cannot be read; give the path of a file that can")
    # Whoever reads the key can act over there, and whoever changes the list can stand in for the host.
    for key, rights, may, remedy in (("key_file", 0o077, "use", "600"), ("known_hosts", 0o022, "change", "go-w")):
        mode = stat.S_IMODE(os.stat(host[key]).st_mode)
        if mode & rights:
            raise ConfigError(f"{where}.{key}: others can {may} it (mode {mode:04o}); chmod {remedy} {host[key]}")
    python = host.get("python", "python3")
    if not isinstance(python, str) or not _PROGRAM.fullmatch(python):
        raise ConfigError(f"{where}.python: {python!r} is refused; give the host's Python, such as /usr/bin/python3")
    return {**host, "port": port, "python": python}


def remote_hosts(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, RemoteHost]:
    """By name, as `attempt.json` or the endpoints of a target list them."""
    return {name: _remote_host(host) for name, host in listed.items()}


def _remote_host(values: Mapping[str, Any]) -> RemoteHost:
    from fault.remote_bootstrap import PYTHON
    from fault.ssh_connection import RemoteHost

    return RemoteHost(
        host=str(values["host"]),
        user=str(values["user"]),
        key_file=Path(values["key_file"]),
        known_hosts=Path(values["known_hosts"]),
        port=int(values.get("port", 22)),
        python=str(values.get("python", PYTHON)),
    )
