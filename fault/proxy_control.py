"""Client of the proxy: it sends commands for the proxied connections."""

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
    """Failed proxy command; base class, raised itself only for invalid addresses."""


class ProxyUnreachable(ProxyError):
    """No proxy behind the control file; nothing was sent."""


class ProxyRefused(ProxyError):
    """Command that the proxy refused, with its reason; nothing changed."""


class ProxySilent(ProxyError):
    """Command without a reply; its effect is unknown until `status` succeeds."""


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class ProxyControl:
    """Client of the proxy behind a control file; each call blocks for at most `timeout_s`.

    Methods raise ProxyUnreachable, ProxyRefused or ProxySilent.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def delay(self, ms: float, jitter_ms: float | None = None, clients: Sequence[str] | None = None) -> int:
        """Delay the bytes of both directions by `ms`, plus or minus up to `jitter_ms`.

        `clients`: affect only clients at these addresses. Returns the number of affected connections.
        """
        return int(self._send("delay", **_without_none(ms=ms, jitter_ms=jitter_ms, clients=clients))["connections"])

    def loss(self, percent: float, clients: Sequence[str] | None = None) -> int:
        """Delay bytes as TCP does at this packet loss; `clients` and the returned number as in `delay`."""
        return int(self._send("loss", **_without_none(percent=percent, clients=clients))["connections"])

    def cut(self) -> None:
        """Block all traffic."""
        self._send("cut")

    def reset(self) -> int:
        """Close every open connection with RST; return their number."""
        return int(self._send("reset")["connections"])

    def restore(self) -> None:
        """Pass all bytes, including held ones."""
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
            raise ProxyUnreachable(f"proxy: {command} failed: no proxy behind {self._path}: {error}") from None
        line = json.dumps({"secret": secret, "command": command, **arguments}) + "\n"
        try:
            with connection, connection.makefile("rb") as answers:
                connection.sendall(line.encode())
                answer = json.loads(answers.readline(1 << 16))
        except (OSError, ValueError) as error:
            raise ProxySilent(f"proxy: {command} failed: no reply: {error}; fix: read the status") from None
        if not isinstance(answer, dict) or not answer.pop("ok", False):
            reason = answer.get("error") if isinstance(answer, dict) else answer
            raise ProxyRefused(f"proxy: {command} refused: {reason}")
        return answer
