"""What can be done to a host's network, by nft and tc: to all that passes between it and its peers, but for SSH, by
which it is told and undone.

What an act puts there bears the act's name: a table, or the handle of a queueing discipline. Nothing else is removed.
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

# The band of netem; those before it are for what passes as ever.
_BAND = 4
# Of the fourth band nothing is said here: what has no filter goes to the first three, as without bands.
_BANDS = ("prio", "bands", str(_BAND), "priomap", *"1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1".split())
# Packets that netem may hold: more than any connection has under way.
_NETEM_LIMIT = "100000"
# Handles of disciplines that nobody named are 8000: and above.
_LEAST_HANDLE, _HANDLES = 0x1000, 0x6FFF
# What a bucket must hold at least, and for how long it must last, else it narrows to less than it is told.
_BUCKET_BYTES, _BUCKET_S = 32_768, 0.002
# Of capabilities(7).
_CAP_NET_ADMIN = 12
# A try in a network of its own, which ends with it.
_TRIAL = (
    "ip link set lo up && tc qdisc add dev lo root handle 1: prio bands 4 && "
    "tc qdisc add dev lo parent 1:4 netem delay 1ms && tc filter add dev lo parent 1: protocol ip prio 1 "
    "u32 match ip sport 22 0xffff flowid 1:1"
)

Address = IPv4Address | IPv6Address


# --- nothing passes, or not all


def check_partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises ActRefused for peers that are no other hosts, and where nft cannot be used."""
    require_program("nft", "nftables")
    _peers(parameters)
    run_program("nft", "list", "tables")


def partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Drops what comes from the peers, and what goes to them; with `percent`, so much of it, by chance."""
    if is_partitioned(name, parameters):
        return
    way = parameters.get("way")
    chains = []
    if way != "out":
        chains.append(_chain("in", "input", "dport", "saddr", parameters))
    if way != "in":
        chains.append(_chain("out", "output", "sport", "daddr", parameters))
    run_program("nft", "-f", "-", stdin=f"table inet {_table(name)} {{\n{''.join(chains)}}}\n")


def _chain(name: str, hook: str, ssh: str, end: str, parameters: Mapping[str, Any]) -> str:
    # Parts of a million: a thousandth of a percent is ten.
    share = (
        ""
        if "percent" not in parameters
        else f" numgen random mod 1000000 < {round(float(parameters['percent']) * 10_000)}"
    )
    rules = [
        f"{family} {end} {{ {', '.join(map(str, peers))} }}{share} drop;"
        for family, peers in _by_family(_peers(parameters)).items()
    ]
    begin = f"type filter hook {hook} priority -300; tcp {ssh} {ssh_port()} accept;"
    # nft wants a line's end behind a brace.
    return f"chain {name} {{ {begin} {' '.join(rules)} }}\n"


def remove_partition(name: str, parameters: Mapping[str, Any]) -> None:
    """Removes the table of that name."""
    if is_partitioned(name, parameters):
        run_program("nft", "delete", "table", "inet", _table(name))


def is_partitioned(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether there is a table of that name."""
    tables = run_program("nft", "list", "tables").splitlines()
    return f"table inet {_table(name)}" in (" ".join(line.split()) for line in tables)


def _table(name: str) -> str:
    return f"faultline_{name}"


# --- what is sent takes its time


def check_bandwidth(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises ActRefused where the interfaces by which peers are reached have been shaped by somebody, or may not be."""
    require_program("tc", "iproute2")
    if not _has_net_admin():
        raise ActionRefused("tc: only root may shape a network (CAP_NET_ADMIN); log in to this host as root")
    for device in _devices(parameters):
        _require_unshaped(device)


def limit_rate(name: str, parameters: Mapping[str, Any]) -> None:
    """Lets no more than so many megabits a second out, by each interface."""
    rate = float(parameters["mbit_s"])
    bucket = max(_BUCKET_BYTES, round(rate * 1e6 / 8 * _BUCKET_S))
    shape = ["tbf", "rate", f"{rate:g}mbit", "burst", f"{bucket}b", "latency", "400ms"]
    for device in _unshaped_devices(name, "tbf", parameters):
        run_program("tc", "qdisc", "add", "dev", device, "root", "handle", _handle(name), *shape)


def remove_rate_limit(name: str, parameters: Mapping[str, Any]) -> None:
    """Removes the discipline of that name, wherever it is."""
    _remove_qdisc(name, "tbf")


def is_rate_limited(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether any interface has it."""
    return bool(_shaped_devices(name, "tbf"))


def check_delay(name: str, parameters: Mapping[str, Any]) -> None:
    """As for the bandwidth; and KernelLacks where the kernel has no netem."""
    check_bandwidth(name, parameters)
    if (problem := _netem_problem()) is not None:
        raise KernelUnsupported(f"netem: not in this host's kernel ({problem})")


def delay(name: str, parameters: Mapping[str, Any]) -> None:
    """Holds what goes to the peers for so many milliseconds, and up to so many more or less."""
    handle = _handle(name)
    hold = [
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
            run_program("tc", "qdisc", "add", "dev", device, "parent", f"{handle}{_BAND}", *hold)
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
# Filters of one priority are of one protocol.
_PRIORITIES = {"ip": ("1", "2"), "ip6": ("3", "4")}


def remove_delay(name: str, parameters: Mapping[str, Any]) -> None:
    """Removes the discipline of that name, wherever it is."""
    _remove_qdisc(name, "prio")


def is_delayed(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether any interface has it."""
    return bool(_shaped_devices(name, "prio"))


def _has_net_admin() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_NET_ADMIN & 1)


@cache
def _netem_problem() -> str | None:
    """What keeps netem from working here; None where it does."""
    try:
        run_program("unshare", "--net", "sh", "-c", f'PATH="$PATH:/usr/sbin:/sbin"; {_TRIAL}')
    except ActionRefused as error:
        return str(error).rpartition(": ")[2]
    return None


def _require_unshaped(device: str) -> None:
    for kind, handle, on, parent in _list_qdiscs():
        # What the kernel puts there by itself has no handle.
        if on == device and parent == "root" and handle != "0:":
            raise ActionRefused(f"{device}: it is shaped by {kind} {handle} already, which is not ours to replace")


def _unshaped_devices(name: str, kind: str, parameters: Mapping[str, Any]) -> list[str]:
    """The interfaces by which peers are reached, but for those that have it."""
    there = _shaped_devices(name, kind)
    return [device for device in _devices(parameters) if device not in there]


def _remove_qdisc(name: str, kind: str) -> None:
    for device in _shaped_devices(name, kind):
        run_program("tc", "qdisc", "delete", "dev", device, "root", "handle", _handle(name))


def _shaped_devices(name: str, kind: str) -> list[str]:
    """The interfaces that have a discipline of that kind and name at their root."""
    return [on for *what, on, parent in _list_qdiscs() if what == [kind, _handle(name)] and parent == "root"]


def _list_qdiscs() -> list[tuple[str, str, str, str]]:
    """Kind, handle, interface, and `root` or `parent`, of all that there are."""
    lines = (line.split() for line in run_program("tc", "qdisc", "show").splitlines())
    return [(words[1], words[2], words[4], words[5]) for words in lines if len(words) > 5 and words[0] == "qdisc"]


def _handle(name: str) -> str:
    """Of two acts it differs, but for one pair in 28,000."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return f"{_LEAST_HANDLE + number % _HANDLES:x}:"


# --- peers and interfaces


def _devices(parameters: Mapping[str, Any]) -> list[str]:
    """The interfaces by which the peers are reached."""
    find_program = {}
    for peer in _peers(parameters):
        words = run_program("ip", "route", "get", str(peer)).split()
        if "dev" not in words or (device := words[words.index("dev") + 1]) == "lo":
            raise ActionRefused(f"peer: there is no way from this host to {peer}")
        find_program[device] = True
    return list(find_program)


def _peers(parameters: Mapping[str, Any]) -> list[Address]:
    """Raises ActRefused for what is no address, or none of another host."""
    find_program = []
    for peer in parameters["peers"]:
        try:
            address = ip_address(str(peer))
        except ValueError:
            raise ActionRefused(f"peer: {peer!r} is no address; list hosts by theirs") from None
        if address.is_loopback or address.is_unspecified:
            raise ActionRefused(f"peer: {peer} is this host itself, not how it reaches another one; use up --hosts")
        find_program.append(address)
    if not find_program:
        raise ActionRefused("peer: there is none")
    return find_program


def _by_family(peers: Sequence[Address]) -> dict[str, list[Address]]:
    """As nft and tc call the families."""
    find_program: dict[str, list[Address]] = {}
    for peer in peers:
        find_program.setdefault("ip" if peer.version == 4 else "ip6", []).append(peer)
    return find_program


def ssh_port() -> int:
    """The port of this host by which it was parameters; 22 where that is not known."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return int(words[3]) if len(words) == 4 and words[3].isdecimal() else 22


# The programs of a host by which something is done to it, and what they say.


# Beyond PATH: where Debian puts programs for root.
ROOT_PATHS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
TIMEOUT_S = 30.0


def require_program(program: str, package: str) -> None:
    """Raises ActRefused, naming the package, where there is no such program."""
    if find_program(program) is None:
        raise ActionRefused(f"{program}: not on this host; install it (Debian: apt-get install {package})")


def find_program(program: str) -> str | None:
    """Its path, also where only root's PATH reaches."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *ROOT_PATHS]))


def run_program(program: str, *words: str, stdin: str = "") -> str:
    """What a program says. Raises ActRefused with its own words when it fails, or is not over within `TIMEOUT_S`."""
    path = find_program(program)
    if path is None:
        raise ActionRefused(f"{program}: not on this host")
    try:
        done = subprocess.run(
            [path, *words], input=stdin, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ActionRefused(f"{program} {' '.join(words)}: not over within {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise ActionRefused(f"{program} {' '.join(words)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout
