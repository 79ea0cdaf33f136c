"""What can be done to the host that this runs on: to its network, its disk, its processors and its memory.

Each act is named, does nothing twice, and is undone by its name, also by somebody who did not do it: by a dead man that
is posted before. Standard library only, since the agent brings it to other hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.errors import ActRefused

# Beyond PATH: where Debian puts programs for root.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin")
# A disk of more is nobody's to fill: it would take minutes, and hit all that lives on it.
MOST_FREE = 16 * 2**30
BALLAST = "faultline-ballast-"
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}")
# One that is busy, or full, until it is told to end; its name stands on its command line.
_BUSY = "import sys\nwhile True: pass"
_FULL = """
import sys, time
held = bytearray(int(sys.argv[2]) * 2**20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(1e6)
"""


@dataclass(frozen=True)
class HostAct:
    """`check` refuses what cannot be done here; `do` and `undo` are harmless when repeated; `holds` tells whether it is
    done. All take the name of the act, and what it was asked for."""

    check: Callable[[str, Mapping[str, Any]], None]
    do: Callable[[str, Mapping[str, Any]], None]
    undo: Callable[[str, Mapping[str, Any]], None]
    holds: Callable[[str, Mapping[str, Any]], bool]


def act_of(kind: str, name: str) -> HostAct:
    """The act of that kind. Raises ActRefused for an unknown one, and for a name that a program could misread."""
    if kind not in HOST_ACTS or not _NAME.fullmatch(name):
        raise ActRefused(f"{kind}: {name!r} is no act on a host")
    return HOST_ACTS[kind]


def undo_later(kind: str, name: str, asked: Mapping[str, Any], seconds: float) -> None:
    """Posts somebody, nobody's child, who undoes the act after so many seconds, whoever lives then."""
    act = act_of(kind, name)
    if os.fork():
        os.wait()
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, 256)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        act.undo(name, asked)
    finally:
        os._exit(0)


# --- the network


def _partition_check(name: str, asked: Mapping[str, Any]) -> None:
    _require("nft", "nftables")
    for peer in asked["peers"]:
        if not _ADDRESS.fullmatch(str(peer)):
            raise ActRefused(f"partition: {peer!r} is no address")
    _run("nft", "list", "tables")


def _partition(name: str, asked: Mapping[str, Any]) -> None:
    """Drops what comes from the peers, and what goes to them; but for the way by which faults are told."""
    peers, way = ", ".join(str(peer) for peer in asked["peers"]), asked.get("way")
    begins = "type filter hook {hook} priority -300; tcp {ssh} 22 accept; ip {end} {{ {peers} }} drop;"
    chains = []
    if way != "out":
        chains.append(f"chain in {{ {begins.format(hook='input', ssh='dport', end='saddr', peers=peers)} }}")
    if way != "in":
        chains.append(f"chain out {{ {begins.format(hook='output', ssh='sport', end='daddr', peers=peers)} }}")
    if not _partitioned(name, asked):
        _run("nft", "-f", "-", told=f"table inet {_table(name)} {{ {' '.join(chains)} }}\n")


def _heal_partition(name: str, asked: Mapping[str, Any]) -> None:
    if _partitioned(name, asked):
        _run("nft", "delete", "table", "inet", _table(name))


def _partitioned(name: str, asked: Mapping[str, Any]) -> bool:
    tables = _run("nft", "list", "tables").splitlines()
    return f"table inet {_table(name)}" in (" ".join(line.split()) for line in tables)


def _table(name: str) -> str:
    return f"faultline_{name}"


def _bandwidth_check(name: str, asked: Mapping[str, Any]) -> None:
    _require("tc", "iproute2")
    found = _discipline(asked)
    if found not in ("noqueue", "pfifo_fast", "fq_codel", "mq", "fq", "pfifo"):
        raise ActRefused(f"bandwidth: {_device(asked)} is shaped by {found} already, which is not ours to replace")


def _bandwidth(name: str, asked: Mapping[str, Any]) -> None:
    """Lets no more than so many megabits a second out."""
    rate = float(asked["mbit_s"])
    shape = ["tbf", "rate", f"{rate:g}mbit", "burst", "32kb", "latency", "400ms"]
    if not _narrowed(name, asked):
        _run("tc", "qdisc", "add", "dev", _device(asked), "root", "handle", "fa17:", *shape)


def _widen(name: str, asked: Mapping[str, Any]) -> None:
    if _narrowed(name, asked):
        _run("tc", "qdisc", "delete", "dev", _device(asked), "root", "handle", "fa17:")


def _narrowed(name: str, asked: Mapping[str, Any]) -> bool:
    return "tbf fa17:" in _run("tc", "qdisc", "show", "dev", _device(asked))


def _discipline(asked: Mapping[str, Any]) -> str:
    """What shapes the traffic of the device now."""
    return (_run("tc", "qdisc", "show", "dev", _device(asked)).split() or ["", "noqueue"])[1]


def _device(asked: Mapping[str, Any]) -> str:
    """The interface by which the first of the peers is reached."""
    peer = str(asked["peers"][0])
    if not _ADDRESS.fullmatch(peer):
        raise ActRefused(f"bandwidth: {peer!r} is no address")
    words = _run("ip", "route", "get", peer).split()
    if "dev" not in words:
        raise ActRefused(f"bandwidth: there is no way to {peer} here")
    return words[words.index("dev") + 1]


# --- the disk


def _disk_check(name: str, asked: Mapping[str, Any]) -> None:
    folder = Path(str(asked["folder"]))
    if not folder.is_dir():
        raise ActRefused(f"disk_full: {folder} is no folder here")
    if os.stat(folder).st_dev == os.stat("/").st_dev:
        raise ActRefused(
            f"disk_full: {folder} lies on the disk of the whole host, which is not filled; give it its own"
        )
    if (free := shutil.disk_usage(folder).free) > MOST_FREE:
        most = MOST_FREE / 2**30
        raise ActRefused(f"disk_full: {folder} has {free / 2**30:.0f} GiB free, and {most:.0f} at most are filled")


def _fill(name: str, asked: Mapping[str, Any]) -> None:
    """Takes all the room there is, to the last byte."""
    _disk_check(name, asked)
    file = os.open(_ballast(name, asked), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        for size in (64 * 2**20, 2**20, 2**12, 1):
            _take(file, size)
    finally:
        os.close(file)


def _take(file: int, size: int) -> None:
    """Pieces of this size until none is left."""
    while True:
        end = os.lseek(file, 0, os.SEEK_END)
        try:
            if size >= 2**12:
                os.posix_fallocate(file, end, size)
            else:
                os.write(file, b"\0" * size)
        except OSError:
            return


def _empty(name: str, asked: Mapping[str, Any]) -> None:
    _ballast(name, asked).unlink(missing_ok=True)


def _filled(name: str, asked: Mapping[str, Any]) -> bool:
    return _ballast(name, asked).exists()


def _ballast(name: str, asked: Mapping[str, Any]) -> Path:
    return Path(str(asked["folder"])) / f"{BALLAST}{name}"


# --- neighbours


def _neighbour_check(name: str, asked: Mapping[str, Any]) -> None:
    """Whatever may be started can be a neighbour."""


def _crowd(name: str, asked: Mapping[str, Any]) -> None:
    """So many processes that compute, without an end."""
    if not _crowded(name, asked):
        for _ in range(int(asked["cores"])):
            _neighbour(name, _BUSY)


def _swell(name: str, asked: Mapping[str, Any]) -> None:
    """A process that holds so much memory."""
    if not _crowded(name, asked):
        _neighbour(name, _FULL, str(int(asked["memory_mb"])))


def _neighbour(name: str, program: str, *words: str) -> None:
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, _mark(name), *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip


def _leave(name: str, asked: Mapping[str, Any]) -> None:
    for pid in _neighbours(name):
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # It may have ended meanwhile, and another have its number.
            if pid in _neighbours(name):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def _crowded(name: str, asked: Mapping[str, Any]) -> bool:
    return bool(_neighbours(name))


def _neighbours(name: str) -> list[int]:
    from fault.procfs import all_pids, read_process

    processes = (read_process(pid) for pid in all_pids())
    return [one.pid for one in processes if one is not None and not one.foreign and _mark(name) in one.command]


def _mark(name: str) -> str:
    return f"faultline-neighbour={name}"


def _require(program: str, package: str) -> None:
    if _found(program) is None:
        raise ActRefused(f"{program}: not on this host; install it (Debian: apt-get install {package})")


def _found(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES]))


def _run(program: str, *words: str, told: str = "") -> str:
    """What a program says. Raises ActRefused with its own words when it fails."""
    path = _found(program)
    if path is None:
        raise ActRefused(f"{program}: not on this host")
    done = subprocess.run([path, *words], input=told, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode:
        raise ActRefused(f"{program} {' '.join(words)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout


HOST_ACTS: Mapping[str, HostAct] = {
    "partition": HostAct(_partition_check, _partition, _heal_partition, _partitioned),
    "bandwidth": HostAct(_bandwidth_check, _bandwidth, _widen, _narrowed),
    "disk_full": HostAct(_disk_check, _fill, _empty, _filled),
    "cpu_pressure": HostAct(_neighbour_check, _crowd, _leave, _crowded),
    "memory_pressure": HostAct(_neighbour_check, _swell, _leave, _crowded),
}
