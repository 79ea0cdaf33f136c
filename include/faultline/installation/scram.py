"""Logging in at a Kafka broker on a connection that somebody else is to use afterwards: SASL/SCRAM-SHA-256, RFC 7677.

The broker's protocol wraps it into two requests, SaslHandshake (17) and SaslAuthenticate (36), each with a length
before it, a header of key, version, correlation and client id, and strings and bytes with their own lengths.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import struct

from faultline.system.errors import InfrastructureError
from faultline.system.secrets import MECHANISM

_HANDSHAKE, _AUTHENTICATE = 17, 36
_CLIENT = b"faultline-gate"
# No answer of these requests comes near it.
_LONGEST = 100_000


class Exchange:
    """One exchange of SCRAM, as the client: what it says first, and last; and whether the broker knew the password."""

    def __init__(self, user: str, password: str, nonce: str | None = None) -> None:
        self._password = password
        self._nonce = nonce or secrets.token_hex(16)
        self._first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """The first message: without channel binding."""
        return f"n,,{self._first}".encode()

    def last(self, challenge: bytes) -> bytes:
        """The proof that answers the broker's challenge. Raises InfrastructureError for one that is none."""
        told = _attributes(challenge)
        try:
            nonce, salt, rounds = told["r"], base64.b64decode(told["s"]), int(told["i"])
        except (KeyError, ValueError):
            raise InfrastructureError("kafka: the broker's challenge cannot be read") from None
        if not nonce.startswith(self._nonce):
            raise InfrastructureError("kafka: the broker's challenge is another's")
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, rounds)
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        signed = ",".join([self._first, challenge.decode(), without_proof]).encode()
        client = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        self._expected = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, end: bytes) -> None:
        """Raises InfrastructureError unless the broker proves that it knows the password, too."""
        given = base64.b64decode(_attributes(end).get("v", ""))
        if not hmac.compare_digest(given, self._expected):
            raise InfrastructureError("kafka: whoever answers there does not know the password")


async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str, password: str) -> None:
    """Makes a fresh connection to the broker this user's. Raises InfrastructureError when it refuses, or goes away."""
    exchange = Exchange(user, password)
    answer = await _ask(reader, writer, _HANDSHAKE, 1, _string(MECHANISM.encode()))
    _refuse(answer, "the mechanism")
    challenge = await _authenticate(reader, writer, exchange.first())
    exchange.check(await _authenticate(reader, writer, exchange.last(challenge)))


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> bytes:
    answer = await _ask(reader, writer, _AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
    _refuse(answer, "the login")
    (length,) = struct.unpack_from(">h", answer, 2)
    at = 4 + max(0, length)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: int, version: int, body: bytes
) -> bytes:
    """The body of the answer to a request."""
    request = struct.pack(">hhi", key, version, 0) + _string(_CLIENT) + body
    writer.write(struct.pack(">i", len(request)) + request)
    try:
        await writer.drain()
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 4 <= size <= _LONGEST:
            raise InfrastructureError(f"kafka: an answer of {size} bytes to a login is none")
        return (await reader.readexactly(size))[4:]
    except (asyncio.IncompleteReadError, ConnectionError):
        raise InfrastructureError("kafka: the broker closed the connection while the gate logged in") from None


def _refuse(answer: bytes, what: str) -> None:
    (code,) = struct.unpack_from(">h", answer)
    if code:
        raise InfrastructureError(f"kafka: the broker refuses {what} (error {code})")


def _attributes(message: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.decode().split(",") if "=" in part)


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
