"""Hosts reached over SSH: their list, its validation, and their addresses."""

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
# Path of a program; restricted, because the remote shell parses it.
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")
SSH_KEYS = ("host", "user", "key_file", "known_hosts")


def ssh_hosts(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the SSH hosts of faults, by name, from `.faultline/ssh_hosts.json`.

    Each is {"host", "user", "key_file", "known_hosts", "port", "python"}. Those of `up --hosts` come first; empty if
    all run on this machine. Raises ConfigError naming host and key.
    """
    made = [settings.hosts / SSH_HOSTS] if settings.placement.is_spread else []
    listed: dict[str, Any] = {}
    for file in (*made, settings.home / SSH_HOSTS):
        with reject_damaged(file, "correct or delete it"):
            listed |= json.loads(file.read_text()) if file.exists() else {}
    return {str(name): check_ssh_host(f"{SSH_HOSTS}: {name}", host) for name, host in listed.items()}


def check_ssh_host(where: str, host: Any) -> dict[str, Any]:
    """Return the host with its port and Python. Raises ConfigError starting with `where` and the key."""
    for key in SSH_KEYS:
        if not (isinstance(host, dict) and isinstance(host.get(key), str) and host[key]):
            raise ConfigError(f"{where}.{key}: missing; fix: add it, or delete the host")
    port = host.get("port", 22)
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ConfigError(f"{where}.port: got {port!r}; expected an integer from 1 to 65535")
    for key in ("key_file", "known_hosts"):
        if not os.access(host[key], os.R_OK):
            raise ConfigError(f"{where}.{key}: got {host[key]}; expected a readable file")
    # A reader of the key can log in; a writer of the list can impersonate the host.
    for key, rights, may, remedy in (("key_file", 0o077, "use", "600"), ("known_hosts", 0o022, "change", "go-w")):
        mode = stat.S_IMODE(os.stat(host[key]).st_mode)
        if mode & rights:
            raise ConfigError(f"{where}.{key}: others can {may} it (mode {mode:04o}); fix: chmod {remedy} {host[key]}")
    python = host.get("python", "python3")
    if not isinstance(python, str) or not _PROGRAM.fullmatch(python):
        raise ConfigError(f"{where}.python: got {python!r}; expected the host's Python, such as /usr/bin/python3")
    return {**host, "port": port, "python": python}


def remote_hosts(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, RemoteHost]:
    """Return the hosts by name, as `attempt.json` or a target's endpoints list them."""
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
