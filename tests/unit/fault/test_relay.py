"""Links that end at instants which no real connection meets on purpose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from fault.relay import Relay

SECONDS = 120.0


def test_a_link_that_ends_while_it_is_being_opened_is_reset_on_both_sides() -> None:
    """The upstream end comes to stand when the link is over already."""
    with socket.create_server(("127.0.0.1", 0)) as upstream, socket.socket() as client:
        upstream.settimeout(SECONDS)
        asyncio.run(_broken_off_while_opening(upstream, client))
        server, _ = upstream.accept()
        with server:
            server.settimeout(SECONDS)
            for end in (client, server):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)


async def _broken_off_while_opening(upstream: socket.socket, client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    relay, over, connect = Relay(upstream.getsockname()), asyncio.Event(), loop.create_connection

    async def connect_late(protocol: Callable[[], asyncio.Protocol], *address: object) -> object:
        # The socket stands when its protocol is made, and the protocol learns of it a moment later.
        return await connect(lambda: ended_before(protocol()), *address)  # type: ignore[call-overload]

    def ended_before(protocol: asyncio.Protocol) -> asyncio.Protocol:
        for link in relay.links:
            link.abort()
        over.set()
        return protocol

    loop.create_connection = connect_late  # type: ignore[method-assign, assignment]
    listening = await loop.create_server(relay.accept, "127.0.0.1", 0)
    client.setblocking(False)
    async with asyncio.timeout(SECONDS):
        await loop.sock_connect(client, listening.sockets[0].getsockname())
        await over.wait()
        while relay.links:
            await asyncio.sleep(0)
    client.settimeout(SECONDS)
    listening.close()
