"""What each host needs to be one: somebody who keeps it, and its SSH server."""

from __future__ import annotations

import socket
import sys

from faultline.installation.hosts.enter import first_process
from faultline.installation.hosts.layout import folder_of, found
from faultline.installation.hosts.ssh import CONFIG, PORT
from faultline.installation.services.service import Service
from faultline.system.endpoints import Host
from faultline.system.settings import Settings

PROBE_S = 0.5


def host_services(settings: Settings) -> list[Service]:
    """Those of all hosts; none when everything runs on this machine."""
    return [one for host in settings.placement.hosts for one in (_keeper(settings, host), _sshd(settings, host))]


def _keeper(settings: Settings, host: Host) -> Service:
    command = [sys.executable, "-P", "-m", "faultline.installation.hosts.keeper", host.name]
    # What runs on it stops before it.
    return Service(f"host-{host.name}", command, lambda: first_process(settings, host.name) is not None, priority=1)


def _sshd(settings: Settings, host: Host) -> Service:
    command = [str(found("sshd")), "-D", "-e", "-f", str(folder_of(settings, host.name) / CONFIG)]
    return Service(f"sshd-{host.name}", command, lambda: _answers(host), host=host.name)


def _answers(host: Host) -> bool:
    """Whether an SSH server greets there."""
    try:
        with socket.create_connection((host.address, PORT), PROBE_S) as connection:
            connection.settimeout(PROBE_S)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
