"""Owners of TCP sockets according to the kernel: all users of a machine can open loopback ports.

Read from /proc/net/tcp and tcp6, so on Linux only; elsewhere the owner is unknown.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SocketAddress = tuple[str, int]

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
_CONNECTED = ("01", "08")
_ANY = "0.0.0.0"


def owner_of(local: SocketAddress, remote: SocketAddress) -> int | None:
    """Return the user of the connected IPv4 socket with these two addresses; None if missing or closed."""
    # Entries without an inode are skipped: no process has that socket open, and the tables name root as its owner.
    return next(
        (
            owner
            for here, there, state, owner, inode in _sockets()
            if (here, there) == (local, remote) and state in _CONNECTED and inode
        ),
        None,
    )


def listener_of(address: SocketAddress) -> int | None:
    """Return the user who listens on that address or on all addresses; None without a listener."""
    addresses = (address, (_ANY, address[1]))
    return next((owner for here, _, state, owner, _ in _sockets() if state == _LISTENS and here in addresses), None)


def can_identify() -> bool:
    """Return whether the kernel reports socket owners."""
    return Path(_TABLES[0]).exists()


def _sockets() -> Iterator[tuple[SocketAddress | None, SocketAddress | None, str, int, int]]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                yield _parse_address(fields[1]), _parse_address(fields[2]), fields[3], int(fields[7]), int(fields[9])


def _parse_address(text: str) -> SocketAddress | None:
    """Return an address of the tables (4-byte words in host order); None if it is not IPv4."""
    address, port = text.split(":")
    words = [struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8)]
    if len(words) == 1:
        return socket.inet_ntoa(words[0]), int(port, 16)
    # Java uses IPv6 sockets for both protocols: IPv4-mapped addresses, or the unspecified one.
    beginning = b"".join(words[:3])
    if beginning == b"\0" * 10 + b"\xff\xff" or b"".join(words) == b"\0" * 16:
        return socket.inet_ntoa(words[3]), int(port, 16)
    return None


# ---- JSON over HTTP, from services of this installation ----


def fetch(url: str, *, timeout_s: float = 3.0) -> Any:
    """Return the JSON of a GET request to a loopback address, without proxy; None without a JSON answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def fetch_json(url: str) -> dict[str, object] | None:
    """Return the JSON object of a GET request to a loopback address; None without one."""
    value = fetch(url)
    return value if isinstance(value, dict) else None
