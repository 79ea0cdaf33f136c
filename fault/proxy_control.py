"""The handle of the proxy: tells it what to do with the connections that run through it."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault.errors import FaultError

LOOPBACK = ("127.0.0.1", "::1")
TIMEOUT_S = 5.0


class ProxyError(FaultError):
    """The proxy did not do what it was told. Base of the kinds below, raised itself clients for bad addresses."""


class ProxyUnreachable(ProxyError):
    """There is no proxy behind the control file; nothing was sent."""


class ProxyRefused(ProxyError):
    """The proxy refused the command and said why; nothing has changed."""


class ProxySilent(ProxyError):
    """The command was sent and no answer came: whether it took effect is unknown until `status` tells."""


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class ProxyControl:
    """Tells the proxy behind a control file what to do. Each call blocks until the answer, at most `timeout_s`.

    Raises ProxyUnreachable, ProxyRefused or ProxySilent.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def delay(self, ms: float, jitter_ms: float | None = None, clients: Sequence[str] | None = None) -> int:
        """From now on holds the bytes of both directions for `ms` milliseconds, up to `jitter_ms` more or less; of
        clients at the addresses `clients` alone, where they are given. Returns how many connections there were."""
        return int(self._send("delay", **_without_none(ms=ms, jitter_ms=jitter_ms, clients=clients))["connections"])

    def loss(self, percent: float, clients: Sequence[str] | None = None) -> int:
        """From now on holds them as TCP does when so many percent of the packets are lost; else as `delay`."""
        return int(self._send("loss", **_without_none(percent=percent, clients=clients))["connections"])

    def cut(self) -> None:
        """From now on lets nothing pass."""
        self._send("cut")

    def reset(self) -> int:
        """Ends every open connection with RST; returns how many there were."""
        return int(self._send("reset")["connections"])

    def restore(self) -> None:
        """Lets pass what is held, and everything from now on."""
        self._send("restore")

    def status(self) -> dict[str, Any]:
        """Return the proxy's state; `up` is the direction to upstream.

        Keys: mode, since (wall ns), delay_ms, jitter_ms, loss_percent, clients, connections, bytes_up, bytes_down,
        held_up, held_down.
        """
        return self._send("status")

    def _send(self, command: str, **arguments: Any) -> dict[str, Any]:
        try:
            control = json.loads(self._path.read_text(encoding="utf-8"))
            port, secret = int(control["port"]), str(control["secret"])
            connection = socket.create_connection((LOOPBACK[0], port), self._timeout_s)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProxyUnreachable(f"proxy: {command}: no proxy behind {self._path}: {error}") from None
        line = json.dumps({"secret": secret, "command": command, **arguments}) + "\n"
        try:
            with connection, connection.makefile("rb") as answers:
                connection.sendall(line.encode())
                answer = json.loads(answers.readline(1 << 16))
        except (OSError, ValueError) as error:
            raise ProxySilent(f"proxy: {command}: no answer: {error}; ask for its status") from None
        if not isinstance(answer, dict) or not answer.pop("ok", False):
            said = answer.get("error") if isinstance(answer, dict) else answer
            raise ProxyRefused(f"proxy: {command}: refused: {said}")
        return answer
