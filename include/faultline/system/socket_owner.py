"""Whose a TCP socket is, as the kernel says: loopback is open to all users of a machine.

Read from /proc/net/tcp and tcp6, so on Linux only; elsewhere nobody can be told apart, and nothing is known.
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
    """The user whose connected socket has these two ends, both IPv4; None when there is none, or it was closed."""
    # Of a socket that no process has open any more, the tables say that it is root's.
    return next(
        (
            owner
            for here, there, state, owner, inode in _sockets()
            if (here, there) == (local, remote) and state in _CONNECTED and inode
        ),
        None,
    )


def listener_of(address: SocketAddress) -> int | None:
    """The user who listens there, on that address or on all; None when nobody does."""
    places = (address, (_ANY, address[1]))
    return next((owner for here, _, state, owner, _ in _sockets() if state == _LISTENS and here in places), None)


def can_identify() -> bool:
    """Whether the kernel says whose sockets are."""
    return Path(_TABLES[0]).exists()


def _sockets() -> Iterator[tuple[SocketAddress | None, SocketAddress | None, str, int, int]]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                yield _parse_address(fields[1]), _parse_address(fields[2]), fields[3], int(fields[7]), int(fields[9])


def _parse_address(text: str) -> SocketAddress | None:
    """An end as the tables name it: words of four bytes, in the machine's order; None for no IPv4."""
    address, port = text.split(":")
    words = [struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8)]
    if len(words) == 1:
        return socket.inet_ntoa(words[0]), int(port, 16)
    # A Java process has one kind of sockets for both protocols: an address of IPv4 after a fixed beginning, or any.
    beginning = b"".join(words[:3])
    if beginning == b"\0" * 10 + b"\xff\xff" or b"".join(words) == b"\0" * 16:
        return socket.inet_ntoa(words[3]), int(port, 16)
    return None


# ---- JSON over HTTP, from services of this installation ----


def fetch(url: str, *, timeout_s: float = 3.0) -> Any:
    """GET of a loopback address, never through a proxy; None when it does not answer with JSON."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def fetch_json(url: str) -> dict[str, object] | None:
    """GET of a loopback address; None when it does not answer with a JSON object."""
    value = fetch(url)
    return value if isinstance(value, dict) else None
