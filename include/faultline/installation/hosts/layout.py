"""Which hosts there are: chosen by `up --hosts`, kept until it chooses anew."""

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

# What makes a host, and the Debian package that has it.
REQUIRED_PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "sshd": "openssh-server",
    "nft": "nftables",
}
# Beyond PATH: where Debian puts programs for root.
EXTRA_PATHS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
MAX_HOSTS = 8
SUBNETS = tuple(f"10.77.{third}" for third in range(256))


def choose_hosts(settings: Settings, count: int) -> Placement:
    """Lays out so many hosts beside this machine, none for 0, and keeps that.

    Raises ConfigError for a number that cannot be had, naming what is lacking.
    """
    if count == 0:
        (settings.home / HOSTS_FILE).unlink(missing_ok=True)
        return LOCAL_PLACEMENT
    least = WORKERS + 1
    if not least <= count <= MAX_HOSTS:
        raise ConfigError(
            f"--hosts: {count} is refused; use {least} to {MAX_HOSTS} (one for the broker and one per worker), or 0"
        )
    require_programs()
    present, used = settings.placement, _used_networks()
    if len(present.hosts) != count or _is_taken(present.conductor.rpartition(".")[0], used):
        # A network interface's name has 15 letters at most.
        present = Placement.of(count, _free_subnet(used), f"faultl-{os.urandom(4).hex()}")
        write_json(settings.home / HOSTS_FILE, present.as_mapping())
    return present


def require_programs() -> None:
    """Raises ConfigError unless hosts can be made here."""
    if os.geteuid() != 0:
        raise ConfigError("--hosts: only root may make network namespaces; leave it out, or start as root")
    for name, package in REQUIRED_PROGRAMS.items():
        if find_program(name) is None:
            raise ConfigError(f"--hosts: there is no {name}; install it (Debian: apt-get install {package})")


def find_program(name: str) -> str | None:
    """The path of a program, also where only root's PATH reaches."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *EXTRA_PATHS]))


def disk_of(settings: Settings, host: Host) -> Path:
    """Where a host's disk is mounted: what its service writes lies there."""
    return kafka_disk(settings) if host.name == BROKER else settings.spark_work / host.name


def checkpoint_disk(settings: Settings) -> Path:
    """That of this machine on which checkpoints lie, and nothing else, where there are other hosts."""
    return settings.home / "checkpoints"


def kafka_disk(settings: Settings) -> Path:
    """That of the broker's host."""
    return settings.home / "kafka" / "disk"


def host_folder(settings: Settings, name: str) -> Path:
    """What this machine keeps of a host."""
    return settings.hosts / name


def _free_subnet(used: Sequence[IPv4Network]) -> str:
    for subnet in SUBNETS:
        if not _is_taken(subnet, used):
            return subnet
    raise ConfigError(
        "--hosts: all networks from 10.77.0 to 10.77.255 are in use; end what uses them (ip address, ip route)"
    )


def _is_taken(subnet: str, used: Sequence[IPv4Network]) -> bool:
    return any(one.overlaps(IPv4Network(f"{subnet}.0/24")) for one in used)


def _used_networks() -> list[IPv4Network]:
    """Where this machine has an address, or a way to one."""
    addresses = [info for link in _ip_json("address") for info in link.get("addr_info", [])]
    own = [IPv4Network(info["local"]) for info in addresses if info["family"] == "inet"]
    ways = [IPv4Network(route["dst"], strict=False) for route in _ip_json("route") if route["dst"] != "default"]
    # Who wants to be everybody's default writes it as two halves.
    return [*own, *(one for one in ways if one.prefixlen > 1)]


def _ip_json(what: str) -> list[dict[str, Any]]:
    output = subprocess.run([str(find_program("ip")), "-j", what], capture_output=True, text=True, check=False).stdout
    listed: list[dict[str, Any]] = json.loads(output or "[]")
    return listed


# ---- The control group of a host, by which the kernel counts what all of its processes use ----


ROOT = Path("/sys/fs/cgroup")
# Of version 1, which has a tree for each; version 2 has one for all.
V1_CONTROLLERS = ("cpuacct", "memory")


def put_in_group(placement: Placement, host: Host, pid: int) -> None:
    """Moves a process, and all that it will start, into the host's group; nothing where groups cannot be made."""
    for folder in _cgroup_folders(placement, host):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(pid))


def remove_group(placement: Placement, host: Host) -> None:
    """Removes it, once its processes have ended; harmless where none is."""
    for folder in _cgroup_folders(placement, host):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _cgroup_folders(placement: Placement, host: Host) -> Iterator[Path]:
    name = f"{placement.bridge}-{host.name}"
    trees = [ROOT] if (ROOT / "cgroup.controllers").exists() else [ROOT / one for one in V1_CONTROLLERS]
    return (tree / name for tree in trees if tree.is_dir())
