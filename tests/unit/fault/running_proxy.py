"""A running proxy with sockets on both sides."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault.proxy import parse_address
from fault.proxy_control import ProxyControl
from faultline.system.waiting import wait_until

TOKEN = "faultline-run=20261121T061500Z-3fa9c1"
# asyncio's maximum read, by which the last chunk may exceed the limit.
ONE_READ = 1 << 18
SECONDS = 120.0


class RunningProxy:
    """A proxy process in front of a listening socket of this test."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.upstream = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
        )
        self.upstream.settimeout(SECONDS)
        self.path = folder / "proxy.json"
        shown = f"[{host}]" if ":" in host else host
        port = self.upstream.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fault.proxy", "--listen", f"{shown}:0", "--upstream", f"{shown}:{port}"]
            + ["--control", str(self.path), TOKEN],
            stderr=subprocess.PIPE,
        )
        wait_until(
            lambda: self.path.exists() or self.process.poll() is not None, timeout_s=SECONDS, what="the control file"
        )
        self.file: dict[str, Any] = json.loads(self.path.read_text())
        self.control = ProxyControl(self.path)
        self._sockets: list[socket.socket] = []

    def client(self) -> socket.socket:
        made = socket.create_connection(parse_address(self.file["listen"]), SECONDS)
        self._sockets.append(made)
        return made

    def server(self) -> socket.socket:
        """Return the upstream end of the next connection."""
        made, _ = self.upstream.accept()
        made.settimeout(SECONDS)
        self._sockets.append(made)
        return made

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection."""
        client = self.client()
        return client, self.server()

    def close(self) -> bytes:
        """End everything and return the proxy's standard error."""
        for one in (*self._sockets, self.upstream):
            one.close()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=SECONDS)
        return errors


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningProxy]:
    running = RunningProxy(tmp_path)
    yield running
    assert running.close() == b"", "it writes no error"


def read_exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = end.recv(min(1 << 16, size - len(data)))
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


def read_to_end(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 16), b""))


def is_silent(end: socket.socket, seconds: float = 0.2) -> bool:
    """Return whether nothing can be read, neither bytes nor an end."""
    return select.select([end], [], [], seconds)[0] == []


def was_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b"never"
    except ConnectionResetError:
        return True
