"""Raw requests to a Kafka listener; Kafka's clients would continue at its advertised addresses."""

from __future__ import annotations

import asyncio
import struct

from faultline.installation.kafka_auth_proxy import log_in
from faultline.system.settings import HOST

# Kafka's DescribeCluster request; a controller answers it only for the endpoint type CONTROLLERS.
DESCRIBE_CLUSTER, VERSION = 60, 1
BROKERS, CONTROLLERS = 1, 2
_LIMIT_S = 120.0


def describe_cluster(port: int, *, endpoints: int = BROKERS, login: tuple[str, str] | None = None) -> bytes:
    """Return a listener's raw answer, after a `login` (user, password) if given. `endpoints`: requested type.

    Raises IncompleteReadError if it closes the connection without an answer, InfrastructureError if it rejects the
    login.
    """
    return asyncio.run(asyncio.wait_for(_describe_cluster(port, endpoints, login), _LIMIT_S))


async def _describe_cluster(port: int, endpoints: int, login: tuple[str, str] | None) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        if login:
            await log_in(reader, writer, *login)
        # No client id, no tagged fields, no authorized operations.
        request = struct.pack(">hhihbbbb", DESCRIBE_CLUSTER, VERSION, 0, -1, 0, 0, endpoints, 0)
        writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    finally:
        writer.close()
