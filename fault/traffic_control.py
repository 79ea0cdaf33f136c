"""Network faults of a host with nft and tc: for all traffic with its peers except SSH, which controls the faults.

A rule carries the injection's name, as its table or as the handle of its queueing discipline; no other rule is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from fault.errors import ActionRefused, KernelUnsupported

# Band for netem; the first three serve unaffected traffic.
_BAND = 4
# The priority map does not use the fourth band: unfiltered traffic goes to the first three.
_BANDS = ("prio", "bands", str(_BAND), "priomap", *"1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1".split())
# Queue limit of netem, above the packets in flight of any connection.
_NETEM_LIMIT = "100000"
# Automatic handles start at 8000:.
_LEAST_HANDLE, _HANDLES = 0x1000, 0x6FFF
# Minimum size of the token bucket in bytes and seconds; below, the rate is lower than requested.
_BUCKET_BYTES, _BUCKET_S = 32_768, 0.002
# From capabilities(7).
_CAP_NET_ADMIN = 12
# Trial in a network namespace of its own.
_TRIAL = (
    "ip link set lo up && tc qdisc add dev lo root handle 1: prio bands 4 && "
    "tc qdisc add dev lo parent 1:4 netem delay 1ms && tc filter add dev lo parent 1: protocol ip prio 1 "
    "u32 match ip sport 22 0xffff flowid 1:1"
)

Address = IPv4Address | IPv6Address


# --- partition and packet loss


def check_partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise ActionRefused if a peer is not another host, or if nft is not usable."""
    require_program("nft", "nftables")
    _peers(parameters)
    run_program("nft", "list", "tables")


def partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Drop traffic from and to the peers; with `percent`, this share at random."""
    if is_partitioned(name, parameters):
        return
    way = parameters.get("way")
    chains = []
    if way != "out":
        chains.append(_chain("in", "input", "dport", "saddr", parameters))
    if way != "in":
        chains.append(_chain("out", "output", "sport", "daddr", parameters))
    run_program("nft", "-f", "-", stdin=f"table inet {_table(name)} {{\n{''.join(chains)}}}\n")


def _chain(name: str, hook: str, port_field: str, peer_field: str, parameters: Mapping[str, Any]) -> str:
    # Parts per million: 0.001 % is 10.
    share = (
        ""
        if "percent" not in parameters
        else f" numgen random mod 1000000 < {round(float(parameters['percent']) * 10_000)}"
    )
    rules = [
        f"{family} {peer_field} {{ {', '.join(map(str, peers))} }}{share} drop;"
        for family, peers in _by_family(_peers(parameters)).items()
    ]
    begin = f"type filter hook {hook} priority -300; tcp {port_field} {ssh_port()} accept;"
    # nft needs a line end after a brace.
    return f"chain {name} {{ {begin} {' '.join(rules)} }}\n"


def remove_partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Remove the table of that name."""
    if is_partitioned(name, parameters):
        run_program("nft", "delete", "table", "inet", _table(name))


def is_partitioned(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the table of that name exists."""
    tables = run_program("nft", "list", "tables").splitlines()
    return f"table inet {_table(name)}" in (" ".join(line.split()) for line in tables)


def _table(name: str) -> str:
    return f"faultline_{name}"


# --- bandwidth and delay


def check_bandwidth(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise ActionRefused if an interface to a peer is already shaped, or if this user must not shape it."""
    require_program("tc", "iproute2")
    if not _has_net_admin():
        raise ActionRefused("tc: got no CAP_NET_ADMIN; expected root; fix: log in to this host as root")
    for device in _devices(parameters):
        _require_unshaped(device)


def limit_rate(name: str, parameters: Mapping[str, Any]) -> None:
    """Limit the outgoing rate of each interface to `mbit_s`."""
    rate = float(parameters["mbit_s"])
    bucket = max(_BUCKET_BYTES, round(rate * 1e6 / 8 * _BUCKET_S))
    shape = ["tbf", "rate", f"{rate:g}mbit", "burst", f"{bucket}b", "latency", "400ms"]
    for device in _unshaped_devices(name, "tbf", parameters):
        run_program("tc", "qdisc", "add", "dev", device, "root", "handle", _handle(name), *shape)


def remove_rate_limit(name: str, parameters: Mapping[str, Any]) -> None:
    """Remove the queueing discipline of that name from all interfaces."""
    _remove_qdisc(name, "tbf")


def is_rate_limited(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether an interface has the rate limit of that name."""
    return bool(_shaped_devices(name, "tbf"))


def check_delay(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise ActionRefused as `check_bandwidth` does, and KernelUnsupported without netem, the kernel's delay queue."""
    check_bandwidth(name, parameters)
    if (problem := _netem_problem()) is not None:
        raise KernelUnsupported(f"netem: got a kernel without netem ({problem}); expected one with it")


def delay(name: str, parameters: Mapping[str, Any]) -> None:
    """Delay packets to the peers by `delay_ms`, plus or minus up to `jitter_ms`."""
    handle = _handle(name)
    netem = [
        "netem",
        "delay",
        f"{float(parameters['delay_ms']):g}ms",
        f"{float(parameters['jitter_ms']):g}ms",
        "limit",
        _NETEM_LIMIT,
    ]
    try:
        for device in _unshaped_devices(name, "prio", parameters):
            run_program("tc", "qdisc", "add", "dev", device, "root", "handle", handle, *_BANDS)
            run_program("tc", "qdisc", "add", "dev", device, "parent", f"{handle}{_BAND}", *netem)
            for family, peers in _by_family(_peers(parameters)).items():
                words = ["filter", "add", "dev", device, "parent", handle, "protocol", _PROTOCOLS[family]]
                first = ["match", family, "sport", str(ssh_port()), "0xffff", "flowid", f"{handle}1"]
                run_program("tc", *words, "prio", _PRIORITIES[family][0], "u32", *first)
                for peer in peers:
                    to = ["match", family, "dst", f"{peer}/{peer.max_prefixlen}", "flowid", f"{handle}{_BAND}"]
                    run_program("tc", *words, "prio", _PRIORITIES[family][1], "u32", *to)
    except ActionRefused:
        _remove_qdisc(name, "prio")
        raise


_PROTOCOLS = {"ip": "ip", "ip6": "ipv6"}
# All filters of one priority need the same protocol.
_PRIORITIES = {"ip": ("1", "2"), "ip6": ("3", "4")}


def remove_delay(name: str, parameters: Mapping[str, Any]) -> None:
    """Remove the queueing discipline of that name from all interfaces."""
    _remove_qdisc(name, "prio")


def is_delayed(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether an interface has the delay of that name."""
    return bool(_shaped_devices(name, "prio"))


def _has_net_admin() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_NET_ADMIN & 1)


@cache
def _netem_problem() -> str | None:
    """Return the reason why netem does not work here, or None."""
    try:
        run_program("unshare", "--net", "sh", "-c", f'PATH="$PATH:/usr/sbin:/sbin"; {_TRIAL}')
    except ActionRefused as error:
        return str(error).rpartition(": ")[2]
    return None


def _require_unshaped(device: str) -> None:
    for kind, handle, interface, parent in _list_qdiscs():
        # Disciplines set by the kernel have no handle.
        if interface == device and parent == "root" and handle != "0:":
            raise ActionRefused(f"{device}: got existing discipline {kind} {handle}; expected an unshaped interface")


def _unshaped_devices(name: str, kind: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return the interfaces to peers that do not have this discipline yet."""
    shaped = _shaped_devices(name, kind)
    return [device for device in _devices(parameters) if device not in shaped]


def _remove_qdisc(name: str, kind: str) -> None:
    for device in _shaped_devices(name, kind):
        run_program("tc", "qdisc", "delete", "dev", device, "root", "handle", _handle(name))


def _shaped_devices(name: str, kind: str) -> list[str]:
    """Return the interfaces with a root discipline of that kind and name."""
    wanted = (kind, _handle(name), "root")
    return [device for found, handle, device, parent in _list_qdiscs() if (found, handle, parent) == wanted]


def _list_qdiscs() -> list[tuple[str, str, str, str]]:
    """Return kind, handle, interface, and `root` or `parent` of all disciplines."""
    lines = (line.split() for line in run_program("tc", "qdisc", "show").splitlines())
    return [(words[1], words[2], words[4], words[5]) for words in lines if len(words) > 5 and words[0] == "qdisc"]


def _handle(name: str) -> str:
    """Return the handle of an injection; two names collide with a probability of 1 in 28,000."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return f"{_LEAST_HANDLE + number % _HANDLES:x}:"


# --- peers and interfaces


def _devices(parameters: Mapping[str, Any]) -> list[str]:
    """Return the interfaces to the peers."""
    devices = {}
    for peer in _peers(parameters):
        words = run_program("ip", "route", "get", str(peer)).split()
        if "dev" not in words or (device := words[words.index("dev") + 1]) == "lo":
            raise ActionRefused(f"peer: got {peer}; expected a route from this host to it")
        devices[device] = True
    return list(devices)


def _peers(parameters: Mapping[str, Any]) -> list[Address]:
    """Return the peers' addresses. Raises ActionRefused for an invalid one, or one of this host."""
    addresses = []
    for peer in parameters["peers"]:
        try:
            address = ip_address(str(peer))
        except ValueError:
            raise ActionRefused(f"peer: got {peer!r}; expected an IP address") from None
        if address.is_loopback or address.is_unspecified:
            raise ActionRefused(f"peer: got {peer}, this host itself; expected another host; fix: `up --hosts`")
        addresses.append(address)
    if not addresses:
        raise ActionRefused("peer: missing; expected at least one address")
    return addresses


def _by_family(peers: Sequence[Address]) -> dict[str, list[Address]]:
    """Group addresses by the family names of nft and tc."""
    by_family: dict[str, list[Address]] = {}
    for peer in peers:
        by_family.setdefault("ip" if peer.version == 4 else "ip6", []).append(peer)
    return by_family


def ssh_port() -> int:
    """Return the port of the current SSH connection on this host; 22 if unknown."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return int(words[3]) if len(words) == 4 and words[3].isdecimal() else 22


# --- programs


# Folders of root's programs on Debian.
ROOT_PATHS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
TIMEOUT_S = 30.0


def require_program(program: str, package: str) -> None:
    """Raise ActionRefused, naming the package, if the program is missing."""
    if find_program(program) is None:
        raise ActionRefused(f"{program}: not found on this host; fix: install it (Debian: apt-get install {package})")


def find_program(program: str) -> str | None:
    """Return the path of a program in PATH or in root's folders, or None."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *ROOT_PATHS]))


def run_program(program: str, *words: str, stdin: str = "") -> str:
    """Return a program's output. Raises ActionRefused if it fails or exceeds `TIMEOUT_S`."""
    path = find_program(program)
    if path is None:
        raise ActionRefused(f"{program}: not found on this host")
    try:
        done = subprocess.run(
            [path, *words], input=stdin, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ActionRefused(f"{program}: `{' '.join(words)}` failed: timeout after {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise ActionRefused(f"{program}: `{' '.join(words)}` failed: {' '.join(done.stderr.split()) or 'no output'}")
    return done.stdout
