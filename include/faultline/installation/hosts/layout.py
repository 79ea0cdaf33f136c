"""Placement of namespace hosts, which Linux namespaces emulate: chosen by `up --hosts`, kept until the next choice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from faultline.system.endpoints import BROKER, HOSTS_FILE, LOCAL_PLACEMENT, Host, Placement
from faultline.system.errors import ConfigError
from faultline.system.files import write_json
from faultline.system.settings import WORKERS, Settings

# Required programs, with their Debian packages.
REQUIRED_PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "sshd": "openssh-server",
    "nft": "nftables",
}
# Debian's folders of programs for root.
EXTRA_PATHS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
MAX_HOSTS = 8
SUBNETS = tuple(f"10.77.{third}" for third in range(256))


def choose_hosts(settings: Settings, count: int) -> Placement:
    """Choose and store the placement of `count` hosts, none for 0.

    Raises ConfigError for an invalid number or a missing program.
    """
    if count == 0:
        (settings.home / HOSTS_FILE).unlink(missing_ok=True)
        return LOCAL_PLACEMENT
    least = WORKERS + 1
    if not least <= count <= MAX_HOSTS:
        raise ConfigError(
            f"--hosts: got {count}; expected 0, or {least} to {MAX_HOSTS} (the broker's and one per Spark worker)"
        )
    require_programs()
    present, used = settings.placement, _used_networks()
    if len(present.hosts) != count or _is_taken(present.conductor.rpartition(".")[0], used):
        # An interface name has at most 15 characters.
        present = Placement.of(count, _free_subnet(used), f"faultl-{os.urandom(4).hex()}")
        write_json(settings.home / HOSTS_FILE, present.as_mapping())
    return present


def require_programs() -> None:
    """Raise ConfigError unless this machine can create namespace hosts."""
    if os.geteuid() != 0:
        raise ConfigError("--hosts: needs root for network namespaces; fix: start as root, or omit it")
    for name, package in REQUIRED_PROGRAMS.items():
        if find_program(name) is None:
            raise ConfigError(f"--hosts: {name} is missing; fix: install it (Debian: apt-get install {package})")


def find_program(name: str) -> str | None:
    """Return the path of a program, including folders of root's PATH; None if missing."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *EXTRA_PATHS]))


def disk_of(settings: Settings, host: Host) -> Path:
    """Return the mount point of a host's disk, which holds the data of its service."""
    return kafka_disk(settings) if host.name == BROKER else settings.spark_work / host.name


def checkpoint_disk(settings: Settings) -> Path:
    """Return the mount point of this machine's disk for checkpoints, used with namespace hosts."""
    return settings.home / "checkpoints"


def kafka_disk(settings: Settings) -> Path:
    """Return the mount point of the broker's disk."""
    return settings.home / "kafka" / "disk"


def host_folder(settings: Settings, name: str) -> Path:
    """Return this machine's folder for a host."""
    return settings.hosts / name


def _free_subnet(used: Sequence[IPv4Network]) -> str:
    for subnet in SUBNETS:
        if not _is_taken(subnet, used):
            return subnet
    raise ConfigError(
        "--hosts: all networks from 10.77.0 to 10.77.255 are in use; fix: free one (see ip address, ip route)"
    )


def _is_taken(subnet: str, used: Sequence[IPv4Network]) -> bool:
    return any(one.overlaps(IPv4Network(f"{subnet}.0/24")) for one in used)


def _used_networks() -> list[IPv4Network]:
    """Return the networks of this machine's addresses and routes."""
    addresses = [info for link in _ip_json("address") for info in link.get("addr_info", [])]
    own = [IPv4Network(info["local"]) for info in addresses if info["family"] == "inet"]
    routes = [IPv4Network(route["dst"], strict=False) for route in _ip_json("route") if route["dst"] != "default"]
    # VPNs split the default route into two halves, which overlap every network.
    return [*own, *(route for route in routes if route.prefixlen > 1)]


def _ip_json(kind: str) -> list[dict[str, Any]]:
    output = subprocess.run([str(find_program("ip")), "-j", kind], capture_output=True, text=True, check=False).stdout
    objects: list[dict[str, Any]] = json.loads(output or "[]")
    return objects


# ---- cgroup of a host, which counts the resources of all its processes ----


ROOT = Path("/sys/fs/cgroup")
# Controllers of cgroup v1, each with its own tree; v2 has one tree.
V1_CONTROLLERS = ("cpuacct", "memory")


def put_in_group(placement: Placement, host: Host, pid: int) -> None:
    """Move a process and its future children into the host's cgroup; do nothing without cgroup access."""
    for folder in _cgroup_folders(placement, host):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(pid))


def remove_group(placement: Placement, host: Host) -> None:
    """Remove the cgroup after its processes have ended; do nothing if missing."""
    for folder in _cgroup_folders(placement, host):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _cgroup_folders(placement: Placement, host: Host) -> Iterator[Path]:
    name = f"{placement.bridge}-{host.name}"
    trees = [ROOT] if (ROOT / "cgroup.controllers").exists() else [ROOT / one for one in V1_CONTROLLERS]
    return (tree / name for tree in trees if tree.is_dir())
