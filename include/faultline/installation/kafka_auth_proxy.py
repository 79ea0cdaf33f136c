"""Kafka auth proxy: accepts this user's processes and logs in to the broker for programs that cannot.

    python -m faultline.installation.kafka_auth_proxy --listen HOST:PORT --upstream HOST:PORT --login FILE --ready FILE

The broker requires a password, and a user program has none. All users of a machine can open loopback ports, so the
proxy checks the owner of each connection in the kernel's tables and closes another user's. The broker's listener behind
it advertises the proxy's address, so that clients reconnect through it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import struct
from pathlib import Path

from faultline.system.errors import InfrastructureError
from faultline.system.secrets import MECHANISM
from faultline.system.socket_owner import owner_of
from generators.kafka_credentials import read_credentials

_CHUNK = 1 << 16


class KafkaAuthProxy:
    """Relay of connections to `upstream`, (host, port), after a login."""

    def __init__(self, upstream: tuple[str, int], login: dict[str, str]) -> None:
        self._upstream = upstream
        self._user, self._password = login.get("sasl.username", ""), login.get("sasl.password", "")

    async def serve(self, listen: tuple[str, int], ready: Path) -> None:
        """Serve until cancelled; touch `ready` once it listens."""
        server = await asyncio.start_server(self._handle, *listen)
        ready.touch()
        async with server:
            await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            own, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
            if owner_of(peer[:2], own[:2]) != os.geteuid():
                print(f"connection refused: port {peer[1]} belongs to another user", flush=True)
                return
            await self._relay(reader, writer)
        except (OSError, InfrastructureError) as error:
            print(error, flush=True)
        finally:
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Log in at the broker, and relay both directions until one of them ends."""
        from_broker, to_broker = await asyncio.open_connection(*self._upstream)
        try:
            for one in (writer, to_broker):
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._user:
                await log_in(from_broker, to_broker, self._user, self._password)
            directions = (_copy(reader, to_broker), _copy(from_broker, writer))
            copies = [asyncio.ensure_future(copy) for copy in directions]
            _, unfinished = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in unfinished:
                copy.cancel()
        finally:
            to_broker.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
    gate = KafkaAuthProxy(options.upstream, read_credentials(options.login))
    asyncio.run(gate.serve(options.listen, options.ready))


# ---- Login: SASL/SCRAM-SHA-256, RFC 7677 ----


_HANDSHAKE, _AUTHENTICATE = 17, 36
_CLIENT = b"faultline-gate"
# Far above the size of any answer to these requests.
_MAX_ANSWER_BYTES = 100_000


class ScramExchange:
    """Client side of one SCRAM exchange: first and final message, and verification of the broker."""

    def __init__(self, user: str, password: str, nonce: str | None = None) -> None:
        self._password = password
        self._nonce = nonce or secrets.token_hex(16)
        self._client_first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._expected = b""

    def first_message(self) -> bytes:
        """Return the first message, without channel binding."""
        return f"n,,{self._client_first}".encode()

    def final_message(self, challenge: bytes) -> bytes:
        """Return the proof for the broker's challenge. Raises InfrastructureError for an invalid one."""
        attributes = _attributes(challenge)
        try:
            nonce, salt, rounds = attributes["r"], base64.b64decode(attributes["s"]), int(attributes["i"])
        except (KeyError, ValueError):
            raise InfrastructureError("kafka: login failed: unreadable challenge") from None
        if not nonce.startswith(self._nonce):
            raise InfrastructureError("kafka: login failed: challenge for another client")
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, rounds)
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        signed = ",".join([self._client_first, challenge.decode(), without_proof]).encode()
        client = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        self._expected = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify_server(self, end: bytes) -> None:
        """Raise InfrastructureError unless the broker proves that it knows the password."""
        given = base64.b64decode(_attributes(end).get("v", ""))
        if not hmac.compare_digest(given, self._expected):
            raise InfrastructureError("kafka: server authentication failed: wrong proof")


async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str, password: str) -> None:
    """Log this user in on a new connection. Raises InfrastructureError if the broker refuses or disconnects."""
    exchange = ScramExchange(user, password)
    answer = await _request(reader, writer, _HANDSHAKE, 1, _string(MECHANISM.encode()))
    _raise_on_error(answer, "the mechanism")
    challenge = await _authenticate(reader, writer, exchange.first_message())
    exchange.verify_server(await _authenticate(reader, writer, exchange.final_message(challenge)))


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> bytes:
    answer = await _request(reader, writer, _AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
    _raise_on_error(answer, "the login")
    (length,) = struct.unpack_from(">h", answer, 2)
    at = 4 + max(0, length)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int, version: int, body: bytes
) -> bytes:
    """Send a request and return the body of the answer."""
    request = struct.pack(">hhi", key, version, 0) + _string(_CLIENT) + body
    writer.write(struct.pack(">i", len(request)) + request)
    try:
        await writer.drain()
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 4 <= size <= _MAX_ANSWER_BYTES:
            raise InfrastructureError(f"kafka: login failed: got an answer of {size} bytes")
        return (await reader.readexactly(size))[4:]
    except (asyncio.IncompleteReadError, ConnectionError):
        raise InfrastructureError("kafka: login failed: the broker closed the connection") from None


def _raise_on_error(answer: bytes, what: str) -> None:
    (code,) = struct.unpack_from(">h", answer)
    if code:
        raise InfrastructureError(f"kafka: login failed: the broker refuses {what} (error {code})")


def _attributes(message: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.decode().split(",") if "=" in part)


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


if __name__ == "__main__":
    main()
