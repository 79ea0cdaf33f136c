"""SSH servers of the hosts: one client key, known host keys, and a single allowed command."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

from fault.remote_bootstrap import boot_command
from faultline.installation.hosts.layout import disk_of, host_folder
from faultline.system.endpoints import Host
from faultline.system.files import write_json, write_private
from faultline.system.settings import Settings
from faultline.system.ssh_hosts import SSH_HOSTS

PORT = 22
KEY, KNOWN_HOSTS, AUTHORIZED, HOST_KEY, CONFIG = "key", "known_hosts", "authorized_keys", "host_key", "sshd_config"
# sshd requires this folder when it runs as root.
_RUN_FOLDER = Path("/run/sshd")


def prepare_ssh(settings: Settings) -> None:
    """Write keys and settings of all hosts; keep existing keys."""
    settings.hosts.mkdir(parents=True, exist_ok=True)
    _RUN_FOLDER.mkdir(mode=0o755, exist_ok=True)
    mine = _public_key(settings.hosts / KEY)
    # The agent only: no other command, no terminal, no forwarding of ports, agents or displays.
    write_private(settings.hosts / AUTHORIZED, f'restrict,command="{boot_command(sys.executable)}" {mine}\n')
    lines = []
    for host in settings.placement.hosts:
        folder = host_folder(settings, host.name)
        folder.mkdir(parents=True, exist_ok=True)
        lines.append(f"{host.address} {_public_key(folder / HOST_KEY)}\n")
        write_private(folder / CONFIG, _configuration(settings, host))
    write_private(settings.hosts / KNOWN_HOSTS, "".join(lines))
    write_json(
        settings.hosts / SSH_HOSTS, {host.name: _host_entry(settings, host) for host in settings.placement.hosts}
    )


def _host_entry(settings: Settings, host: Host) -> dict[str, Any]:
    """Return the entry of a host in the SSH hosts file."""
    return {
        "host": host.address,
        "port": PORT,
        "user": getpass.getuser(),
        "key_file": str(settings.hosts / KEY),
        "known_hosts": str(settings.hosts / KNOWN_HOSTS),
        "python": sys.executable,
        "disk": str(disk_of(settings, host)),
    }


def _configuration(settings: Settings, host: Host) -> str:
    values = {
        "ListenAddress": host.address,
        "Port": PORT,
        "HostKey": host_folder(settings, host.name) / HOST_KEY,
        "AuthorizedKeysFile": settings.hosts / AUTHORIZED,
        "AllowUsers": getpass.getuser(),
        "PermitRootLogin": "prohibit-password",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        # The keys are in folders that only their owner can enter.
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        # Ends the agent of a client that disappeared.
        "ClientAliveInterval": "15",
        "ClientAliveCountMax": "3",
        # Prevents the account's shell from running .bashrc before each agent, which may take long or block.
        "SetEnv": "SHLVL=1",
    }
    return "".join(f"{key} {value}\n" for key, value in values.items())


def _public_key(path: Path) -> str:
    """Return the public key, on one line, of the private key at `path`, which is created if missing."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    kinds = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    if not path.exists():
        new_key = Ed25519PrivateKey.generate()
        write_private(path, new_key.private_bytes(serialization.Encoding.PEM, *kinds).decode())
    key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
