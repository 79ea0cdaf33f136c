"""What a listener of Kafka answers to whom. Kafka's own clients cannot tell: they go to where a listener sends them."""

from __future__ import annotations

import asyncio
import struct

from faultline.installation.kafka_auth_proxy import log_in
from faultline.system.settings import HOST

# Of Kafka's protocol. The controller answers it too, when it is asked for controllers.
DESCRIBE_CLUSTER, VERSION = 60, 1
BROKERS, CONTROLLERS = 1, 2
_LIMIT_S = 120.0


def asked(port: int, *, of: int = BROKERS, login: tuple[str, str] | None = None) -> bytes:
    """What the listener says of its cluster, whatever it is, after a `login` by user and password where one is given.

    Raises IncompleteReadError when it closes the connection without an answer, InfrastructureError for a login that it
    refuses.
    """
    return asyncio.run(asyncio.wait_for(_asked(port, of, login), _LIMIT_S))


async def _asked(port: int, of: int, login: tuple[str, str] | None) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        if login:
            await log_in(reader, writer, *login)
        # Without a client id, tagged fields, or asking for rights.
        request = struct.pack(">hhihbbbb", DESCRIBE_CLUSTER, VERSION, 0, -1, 0, 0, of, 0)
        writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    finally:
        writer.close()
