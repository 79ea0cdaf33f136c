"""TCP proxy that disturbs the connections through it, controlled by `fault.proxy_control`.

    python -m fault.proxy --listen HOST:PORT --upstream HOST:PORT --control FILE [faultline-run=<attempt>]

It listens on one given address: loopback, or one that other hosts reach. It then writes FILE, readable by its user
only: {"port", "secret", "listen", "upstream", "pid"}; it removes FILE at its end. Exit codes: 0 stopped on request, 1
listening failed, 2 invalid arguments. The trailing token marks the process as part of its run.

A command is one JSON line on a connection of its own to the loopback port in FILE: {"secret", "command", …}. The reply
is one line, {"ok": true, …} or {"ok": false, "error": …}; after an error nothing has changed. Commands:

- `delay` {ms, jitter_ms, clients}: hold the bytes of both directions for ms milliseconds, plus or minus jitter_ms, in
  order; with `clients`, only connections from these addresses
- `loss` {percent, clients}: hold bytes as TCP does if this share of packets is lost
- `cut`: block all traffic, like an unplugged cable: connections stay open, new ones are accepted
- `restore`: pass everything, including held bytes
- `reset`: close every open connection with RST on both sides; the mode stays
- `status`: return mode, its start, connections, passed and held bytes
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import json
import math
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fault.fault_spec import MAX_DELAY_MS, MAX_LOSS_PERCENT, suggest
from fault.proxy_control import LOOPBACK, TIMEOUT_S, ProxyError
from fault.relay import Impairment, Mode, Relay

# Required arguments of each command.
REQUIRED_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "delay": frozenset({"ms"}),
    "loss": frozenset({"percent"}),
    "cut": frozenset(),
    "reset": frozenset(),
    "restore": frozenset(),
    "status": frozenset(),
}
# Optional arguments.
OPTIONAL_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "delay": frozenset({"jitter_ms", "clients"}),
    "loss": frozenset({"clients"}),
}
_COMMAND_BYTES = 1 << 12


class _Server:
    """The running proxy: the relay's port, the control port and the control file."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._secret = secrets.token_hex(16)

    async def run(self, listen: tuple[str, int], upstream: tuple[str, int]) -> None:
        """Serve until SIGTERM or SIGINT. Raises OSError if a port or the file is not available."""
        loop = asyncio.get_running_loop()
        stop_requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_requested.set)
        self._relay = Relay(upstream)
        server = await loop.create_server(self._relay.accept, *listen, backlog=128)
        commands = await asyncio.start_server(self._serve, LOOPBACK[0], 0, limit=_COMMAND_BYTES)
        try:
            self._announce(
                port=commands.sockets[0].getsockname()[1],
                listen=_format_address(server.sockets[0].getsockname()),
                upstream=_format_address(upstream),
            )
            await stop_requested.wait()
        finally:
            server.close()
            commands.close()
            await self._relay.reset()
            self._control.unlink(missing_ok=True)

    def _announce(self, **facts: Any) -> None:
        """Write the control file atomically, readable by this user only."""
        unfinished = self._control.with_name(f".{self._control.name}.{os.getpid()}.tmp")
        content = json.dumps({**facts, "secret": self._secret, "pid": os.getpid()})
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(content)
        unfinished.rename(self._control)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reply to one command."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._answer(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the client is gone, too slow, or sent no line
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            return _error_reply("command: expected a JSON object on one line")
        secret = request.pop("secret", None)
        if not hmac.compare_digest(str(secret).encode(), self._secret.encode()):
            return _error_reply("secret: wrong or missing; expected the one in the control file")
        command = request.pop("command", None)
        if not isinstance(command, str) or command not in REQUIRED_ARGUMENTS:
            return _error_reply(f"command: got {command!r}; expected one{suggest(str(command), REQUIRED_ARGUMENTS)}")
        unknown = request.keys() - REQUIRED_ARGUMENTS[command] - OPTIONAL_ARGUMENTS.get(command, frozenset())
        missing = REQUIRED_ARGUMENTS[command] - request.keys()
        if unknown or missing:
            name = min(unknown or missing)
            return _error_reply(f"{name}: {'not allowed' if unknown else 'missing'} for {command}")
        return await self._execute(command, request)

    async def _execute(self, command: str, request: Mapping[str, Any]) -> dict[str, Any]:
        relay, reply = self._relay, {"ok": True}
        if command == "status":
            return {**reply, **relay.status()}
        if command == "reset":
            return {**reply, "connections": await relay.reset()}
        if command not in ("delay", "loss"):
            relay.switch(Mode.CUT if command == "cut" else Mode.PLAIN)
            return reply
        try:
            clients = _require_addresses(request.get("clients"))
            if command == "loss":
                impairment = Impairment(
                    loss=_require_number("percent", request["percent"], "percent", MAX_LOSS_PERCENT) / 100
                )
                return {**reply, "connections": relay.switch(Mode.LOSS, impairment, clients)}
            ms = _require_number("ms", request["ms"], "milliseconds", MAX_DELAY_MS)
            jitter = request.get("jitter_ms")
            jitter_ms = 0.0 if jitter is None else _require_number("jitter_ms", jitter, "milliseconds", ms)
        except ValueError as error:
            return _error_reply(str(error))
        return {**reply, "connections": relay.switch(Mode.DELAY, Impairment(ms / 1000, jitter_ms / 1000), clients)}


def _require_number(key: str, value: Any, unit: str, high: float) -> float:
    """Return `value`. Raises ValueError unless it is in (0, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key}: got {value!r}; expected a number of {unit}")
    if not 0 < value <= high:
        raise ValueError(f"{key}: got {value:g}; expected a number in (0, {high:g}]")
    return value


def _require_addresses(value: Any) -> list[str] | None:
    """Return `value`. Raises ValueError unless it is None or a list of texts."""
    if value is not None and not (isinstance(value, list) and value and all(isinstance(one, str) for one in value)):
        raise ValueError(f"clients: got {value!r}; expected a list of addresses")
    return value


def parse_address(text: str, *, any_port: bool = False) -> tuple[str, int]:
    """Return HOST:PORT as a pair; IPv6 in brackets. `any_port` allows 0, a port chosen by the system.

    Raises ProxyError unless it is a port of one host.
    """
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or not (0 if any_port else 1) <= int(port) <= 65535:
        raise ProxyError(f"address: got {text}; expected HOST:PORT, such as 127.0.0.1:19092")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ProxyError(f"address: got {text}; expected an IP address, such as 127.0.0.1:19092") from None
    if address.is_unspecified or address.is_multicast:
        raise ProxyError(f"address: got {text}; expected the address of one host, such as {LOOPBACK[0]}")
    return host, int(port)


def _format_address(pair: Sequence[Any]) -> str:
    host, port = pair[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _error_reply(message: str) -> dict[str, Any]:
    return {"ok": False, "error": message}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="fault.proxy", description="TCP proxy with fault injection.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="client address (port 0: any)")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT", help="address of the server")
    parser.add_argument(
        "--control", required=True, type=Path, metavar="FILE", help="control file, written once the proxy listens"
    )
    parser.add_argument("token", nargs="?", help="process tag: faultline-run=<attempt>")
    options = parser.parse_args(arguments)
    try:
        listen, upstream = parse_address(options.listen, any_port=True), parse_address(options.upstream)
    except ProxyError as error:
        print(f"proxy: {error}", file=sys.stderr)
        return 2
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_Server(options.control).run(listen, upstream))
    except OSError as error:
        print(f"proxy: {options.listen}, {options.control}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
