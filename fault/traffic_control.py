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
_HELD = "100000"
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


def check_partition(name: str, asked: Mapping[str, Any]) -> None:
    """Raises ActRefused for peers that are no other hosts, and where nft cannot be used."""
    require("nft", "nftables")
    _peers(asked)
    run("nft", "list", "tables")


def partition(name: str, asked: Mapping[str, Any]) -> None:
    """Drops what comes from the peers, and what goes to them; with `percent`, so much of it, by chance."""
    if is_partitioned(name, asked):
        return
    way = asked.get("way")
    chains = []
    if way != "out":
        chains.append(_chain("in", "input", "dport", "saddr", asked))
    if way != "in":
        chains.append(_chain("out", "output", "sport", "daddr", asked))
    run("nft", "-f", "-", told=f"table inet {_table(name)} {{\n{''.join(chains)}}}\n")


def _chain(name: str, hook: str, ssh: str, end: str, asked: Mapping[str, Any]) -> str:
    # Parts of a million: a thousandth of a percent is ten.
    share = "" if "percent" not in asked else f" numgen random mod 1000000 < {round(float(asked['percent']) * 10_000)}"
    rules = [
        f"{family} {end} {{ {', '.join(map(str, peers))} }}{share} drop;"
        for family, peers in _by_family(_peers(asked)).items()
    ]
    begin = f"type filter hook {hook} priority -300; tcp {ssh} {ssh_port()} accept;"
    # nft wants a line's end behind a brace.
    return f"chain {name} {{ {begin} {' '.join(rules)} }}\n"


def heal_partition(name: str, asked: Mapping[str, Any]) -> None:
    """Removes the table of that name."""
    if is_partitioned(name, asked):
        run("nft", "delete", "table", "inet", _table(name))


def is_partitioned(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether there is a table of that name."""
    tables = run("nft", "list", "tables").splitlines()
    return f"table inet {_table(name)}" in (" ".join(line.split()) for line in tables)


def _table(name: str) -> str:
    return f"faultline_{name}"


# --- what is sent takes its time


def check_bandwidth(name: str, asked: Mapping[str, Any]) -> None:
    """Raises ActRefused where the interfaces by which peers are reached have been shaped by somebody, or may not be."""
    require("tc", "iproute2")
    if not _may_shape():
        raise ActionRefused("tc: only root may shape a network (CAP_NET_ADMIN); log in to this host as root")
    for device in _devices(asked):
        _require_unshaped(device)


def narrow(name: str, asked: Mapping[str, Any]) -> None:
    """Lets no more than so many megabits a second out, by each interface."""
    rate = float(asked["mbit_s"])
    bucket = max(_BUCKET_BYTES, round(rate * 1e6 / 8 * _BUCKET_S))
    shape = ["tbf", "rate", f"{rate:g}mbit", "burst", f"{bucket}b", "latency", "400ms"]
    for device in _without(name, "tbf", asked):
        run("tc", "qdisc", "add", "dev", device, "root", "handle", _handle(name), *shape)


def widen(name: str, asked: Mapping[str, Any]) -> None:
    """Removes the discipline of that name, wherever it is."""
    _unshape(name, "tbf")


def is_narrowed(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether any interface has it."""
    return bool(_shaped(name, "tbf"))


def check_delay(name: str, asked: Mapping[str, Any]) -> None:
    """As for the bandwidth; and KernelLacks where the kernel has no netem."""
    check_bandwidth(name, asked)
    if (lack := _lack_of_netem()) is not None:
        raise KernelUnsupported(f"netem: not in this host's kernel ({lack})")


def hold_up(name: str, asked: Mapping[str, Any]) -> None:
    """Holds what goes to the peers for so many milliseconds, and up to so many more or less."""
    handle = _handle(name)
    hold = ["netem", "delay", f"{float(asked['delay_ms']):g}ms", f"{float(asked['jitter_ms']):g}ms", "limit", _HELD]
    try:
        for device in _without(name, "prio", asked):
            run("tc", "qdisc", "add", "dev", device, "root", "handle", handle, *_BANDS)
            run("tc", "qdisc", "add", "dev", device, "parent", f"{handle}{_BAND}", *hold)
            for family, peers in _by_family(_peers(asked)).items():
                words = ["filter", "add", "dev", device, "parent", handle, "protocol", _PROTOCOLS[family]]
                first = ["match", family, "sport", str(ssh_port()), "0xffff", "flowid", f"{handle}1"]
                run("tc", *words, "prio", _PRIORITIES[family][0], "u32", *first)
                for peer in peers:
                    to = ["match", family, "dst", f"{peer}/{peer.max_prefixlen}", "flowid", f"{handle}{_BAND}"]
                    run("tc", *words, "prio", _PRIORITIES[family][1], "u32", *to)
    except ActionRefused:
        _unshape(name, "prio")
        raise


_PROTOCOLS = {"ip": "ip", "ip6": "ipv6"}
# Filters of one priority are of one protocol.
_PRIORITIES = {"ip": ("1", "2"), "ip6": ("3", "4")}


def let_go(name: str, asked: Mapping[str, Any]) -> None:
    """Removes the discipline of that name, wherever it is."""
    _unshape(name, "prio")


def is_held_up(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether any interface has it."""
    return bool(_shaped(name, "prio"))


def _may_shape() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_NET_ADMIN & 1)


@cache
def _lack_of_netem() -> str | None:
    """What keeps netem from working here; None where it does."""
    try:
        run("unshare", "--net", "sh", "-c", f'PATH="$PATH:/usr/sbin:/sbin"; {_TRIAL}')
    except ActionRefused as error:
        return str(error).rpartition(": ")[2]
    return None


def _require_unshaped(device: str) -> None:
    for kind, handle, on, parent in _disciplines():
        # What the kernel puts there by itself has no handle.
        if on == device and parent == "root" and handle != "0:":
            raise ActionRefused(f"{device}: it is shaped by {kind} {handle} already, which is not ours to replace")


def _without(name: str, kind: str, asked: Mapping[str, Any]) -> list[str]:
    """The interfaces by which peers are reached, but for those that have it."""
    there = _shaped(name, kind)
    return [device for device in _devices(asked) if device not in there]


def _unshape(name: str, kind: str) -> None:
    for device in _shaped(name, kind):
        run("tc", "qdisc", "delete", "dev", device, "root", "handle", _handle(name))


def _shaped(name: str, kind: str) -> list[str]:
    """The interfaces that have a discipline of that kind and name at their root."""
    return [on for *what, on, parent in _disciplines() if what == [kind, _handle(name)] and parent == "root"]


def _disciplines() -> list[tuple[str, str, str, str]]:
    """Kind, handle, interface, and `root` or `parent`, of all that there are."""
    lines = (line.split() for line in run("tc", "qdisc", "show").splitlines())
    return [(words[1], words[2], words[4], words[5]) for words in lines if len(words) > 5 and words[0] == "qdisc"]


def _handle(name: str) -> str:
    """Of two acts it differs, but for one pair in 28,000."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return f"{_LEAST_HANDLE + number % _HANDLES:x}:"


# --- whom it is about


def _devices(asked: Mapping[str, Any]) -> list[str]:
    """The interfaces by which the peers are reached."""
    found = {}
    for peer in _peers(asked):
        words = run("ip", "route", "get", str(peer)).split()
        if "dev" not in words or (device := words[words.index("dev") + 1]) == "lo":
            raise ActionRefused(f"peer: there is no way from this host to {peer}")
        found[device] = True
    return list(found)


def _peers(asked: Mapping[str, Any]) -> list[Address]:
    """Raises ActRefused for what is no address, or none of another host."""
    found = []
    for peer in asked["peers"]:
        try:
            address = ip_address(str(peer))
        except ValueError:
            raise ActionRefused(f"peer: {peer!r} is no address; list hosts by theirs") from None
        if address.is_loopback or address.is_unspecified:
            raise ActionRefused(f"peer: {peer} is this host itself, not how it reaches another one; use up --hosts")
        found.append(address)
    if not found:
        raise ActionRefused("peer: there is none")
    return found


def _by_family(peers: Sequence[Address]) -> dict[str, list[Address]]:
    """As nft and tc call the families."""
    found: dict[str, list[Address]] = {}
    for peer in peers:
        found.setdefault("ip" if peer.version == 4 else "ip6", []).append(peer)
    return found


def ssh_port() -> int:
    """The port of this host by which it was asked; 22 where that is not known."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return int(words[3]) if len(words) == 4 and words[3].isdecimal() else 22


# The programs of a host by which something is done to it, and what they say.


# Beyond PATH: where Debian puts programs for root.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin")
WITHIN_S = 30.0


def require(program: str, package: str) -> None:
    """Raises ActRefused, naming the package, where there is no such program."""
    if found(program) is None:
        raise ActionRefused(f"{program}: not on this host; install it (Debian: apt-get install {package})")


def found(program: str) -> str | None:
    """Its path, also where only root's PATH reaches."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES]))


def run(program: str, *words: str, told: str = "") -> str:
    """What a program says. Raises ActRefused with its own words when it fails, or is not over within `WITHIN_S`."""
    path = found(program)
    if path is None:
        raise ActionRefused(f"{program}: not on this host")
    try:
        done = subprocess.run([path, *words], input=told, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        raise ActionRefused(f"{program} {' '.join(words)}: not over within {WITHIN_S:g} s") from None
    if done.returncode:
        raise ActionRefused(f"{program} {' '.join(words)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout
