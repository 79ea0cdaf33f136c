"""The gate to the broker for a program that cannot log in: it lets this user's processes through, and logs in for them.

    python -m faultline.installation.kafka_gate --listen HOST:PORT --upstream HOST:PORT --login FILE --ready FILE

The broker asks everybody for a password, and a program of the user's knows of none. Loopback is open to all users of a
machine; whose a connection is, the kernel tells: the gate looks at the owner of its other end, and closes a stranger's.
The broker's listener behind it advertises the gate's own address, so that clients come back to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
from pathlib import Path

from faultline.installation.scram import log_in
from faultline.system.errors import InfrastructureError
from faultline.system.sockets import owner_of
from generators.login import read_login

_CHUNK = 1 << 16


class Gate:
    """Connections from `listen` to `upstream`, both (host, port)."""

    def __init__(self, upstream: tuple[str, int], login: dict[str, str]) -> None:
        self._upstream = upstream
        self._user, self._password = login.get("sasl.username", ""), login.get("sasl.password", "")

    async def serve(self, listen: tuple[str, int], ready: Path) -> None:
        """Runs until it is ended; touches `ready` once it listens."""
        server = await asyncio.start_server(self._let_in, *listen)
        ready.touch()
        async with server:
            await server.serve_forever()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            here, there = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
            if owner_of(there[:2], here[:2]) != os.geteuid():
                print(f"closed a connection of another user's, from port {there[1]}", flush=True)
                return
            await self._through(reader, writer)
        except (OSError, InfrastructureError) as error:
            print(error, flush=True)
        finally:
            writer.close()

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Logs in at the broker, and hands on what both say, until one of them is done."""
        from_broker, to_broker = await asyncio.open_connection(*self._upstream)
        try:
            for one in (writer, to_broker):
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._user:
                await log_in(from_broker, to_broker, self._user, self._password)
            both = (_hand_on(reader, to_broker), _hand_on(from_broker, writer))
            ways = [asyncio.ensure_future(way) for way in both]
            _, unfinished = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in unfinished:
                way.cancel()
        finally:
            to_broker.close()


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while content := await reader.read(_CHUNK):
            writer.write(content)
            await writer.drain()


def _address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=_address, required=True)
    parser.add_argument("--upstream", type=_address, required=True)
    parser.add_argument("--login", type=Path, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    options, _ = parser.parse_known_args()
    gate = Gate(options.upstream, read_login(options.login))
    asyncio.run(gate.serve(options.listen, options.ready))


if __name__ == "__main__":
    main()
