"""Preflight checks of a target's hosts: unreachable hosts and rejected logins are one line each."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from faultline.installation.targets.machines import check_host
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from tests.support.acceptor import LOCAL, accepting


def pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


SHOWN, OTHER = (paramiko.ECDSAKey.generate() for _ in range(2))
OWN = pem(Ed25519PrivateKey.generate())


class Host(paramiko.ServerInterface):
    """SSH server that runs commands on this machine for the owner of one key."""

    def __init__(self, key: paramiko.PKey) -> None:
        self._key = key

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL if key == self._key else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=run, args=(channel, command.decode()), daemon=True).start()
        return True


def run(channel: paramiko.Channel, command: str) -> None:
    with subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process, suppress(OSError, EOFError):  # fmt: skip  # the client may have disconnected
        assert process.stdin is not None and process.stdout is not None
        output = process.stdout

        def answer() -> None:
            with suppress(OSError, EOFError):
                while data := output.read(65536):
                    channel.sendall(data)
                channel.close()

        threading.Thread(target=answer, daemon=True).start()
        while data := channel.recv(65536):
            process.stdin.write(data)
        process.stdin.close()
        process.wait(120)


@contextmanager
def server() -> Iterator[int]:
    """Port of an SSH server with host key SHOWN that accepts the key OWN."""
    let_in = paramiko.Ed25519Key.from_private_key(io.StringIO(OWN))
    transports: list[paramiko.Transport] = []

    def play(came: socket.socket) -> None:
        transports.append(paramiko.Transport(came))
        transports[-1].add_server_key(SHOWN)
        transports[-1].start_server(threading.Event(), Host(let_in))

    with accepting(play) as port:
        yield port
    for one in transports:
        one.close()


@pytest.fixture
def at(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A host at a port, in the form of a target's endpoints."""

    def make(port: int, known: paramiko.PKey = SHOWN, own: str = OWN, python: str = sys.executable) -> dict[str, Any]:
        key, hosts = tmp_path / "key", tmp_path / "known_hosts"
        key.write_text(own)
        hosts.write_text(f"[{LOCAL}]:{port} {known.get_name()} {known.get_base64()}\n")
        return {"host": LOCAL, "port": port, "user": "bench", "key_file": str(key), "known_hosts": str(hosts),
                "python": python}  # fmt: skip

    return make


At = Callable[..., dict[str, Any]]


def test_the_clock_of_a_reachable_host_is_reported(at: At) -> None:
    with server() as port:
        line = check_host(at(port), "faultline_host_a")
    assert line.startswith(f"bench@{LOCAL}:{port} accepts the agent, clock offset ")


REFUSES = r"\S+ refuses bench with this key \("


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ({"known": OTHER}, ConfigError, r"extra: known_hosts: "),
        ({"own": pem(Ed25519PrivateKey.generate())}, ConfigError, REFUSES),
        ({"own": pem(generate_private_key(SECP256R1()))}, ConfigError, REFUSES),
        ({"own": "KEY"}, ConfigError, REFUSES),
        ({"python": "/no/python3"}, InfrastructureError, r"agent start failed on "),
        ({"port": 1}, InfrastructureError, rf"{LOCAL}:1 is unreachable"),
    ],
)
def test_a_host_that_refuses_or_is_unreachable_is_reported(
    at: At, given: dict[str, Any], kind: type[FaultlineError], why: str
) -> None:
    with server() as port, pytest.raises(kind, match=f"^Connection faultline_host_a: {why}") as refused:
        check_host(at(**{"port": port, **given}), "faultline_host_a")
    assert "\n" not in str(refused.value)
