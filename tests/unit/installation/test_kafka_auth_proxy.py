"""Kafka auth proxy: SCRAM as specified, and rejection of other users."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faultline.installation.kafka import _digest, _has_users
from faultline.installation.kafka_auth_proxy import ScramExchange, log_in
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_private
from faultline.system.secrets import make_secrets
from faultline.system.settings import ROOT, free_port
from faultline.system.socket_owner import listener_of, owner_of
from faultline.system.waiting import wait_until
from tests.support.acceptor import LOCAL, accepting
from tests.support.decoys import only_root
from tests.support.other_user import as_other_user

# RFC 7677, 3: user "user", password "pencil".
NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
END = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_exchange_follows_rfc_7677_and_other_challenges_are_not_answered() -> None:
    exchange = ScramExchange("user", "pencil", NONCE)
    assert exchange.first_message() == f"n,,n=user,r={NONCE}".encode()
    assert exchange.final_message(CHALLENGE) == PROOF
    exchange.verify_server(END)
    with pytest.raises(InfrastructureError, match="wrong proof"):
        exchange.verify_server(END.replace(b"6rr", b"7rr"))
    with pytest.raises(InfrastructureError, match="challenge"):
        ScramExchange("user", "pencil", "mine").final_message(CHALLENGE)
    with pytest.raises(InfrastructureError, match="challenge"):
        ScramExchange("user", "pencil", NONCE).final_message(b"e=unknown-user")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (struct.pack(">iihi", 10, 0, 33, 0), "refuses the mechanism"),
        (struct.pack(">i", 2**30), "got an answer"),
    ],
)
def test_a_rejection_by_the_broker_is_one_line(answer: bytes, message: str) -> None:
    def broker(came: socket.socket) -> None:
        came.recv(struct.unpack(">i", came.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
        came.sendall(answer)
        came.close()

    async def come(port: int) -> None:
        reader, writer = await asyncio.open_connection(LOCAL, port)
        try:
            await log_in(reader, writer, "user", "pencil")
        finally:
            writer.close()

    with accepting(broker) as port, pytest.raises(InfrastructureError, match=message):
        asyncio.run(come(port))


def test_the_kernel_reports_the_owner_of_a_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert listener_of(address) == os.geteuid()
        with socket.create_connection(address) as client:
            assert owner_of(client.getsockname(), address) == os.geteuid()
            # As Java connects, by one kind of socket for both protocols.
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as both:
            both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            both.connect((f"::ffff:{address[0]}", address[1]))
            assert owner_of(("127.0.0.1", both.getsockname()[1]), address) == os.geteuid()
    assert listener_of(address) is None and owner_of(("127.0.0.1", 1), address) is None


def test_a_closed_socket_has_no_owner() -> None:
    """The kernel's tables list its owner as root."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            ours = client.getsockname()
        with server.accept()[0] as connection:
            assert connection.recv(1) == b"" and owner_of(ours, server.getsockname()) is None


@contextmanager
def gate(folder: Path, upstream: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """An auth proxy for a server without authentication."""
    listen, ready = ("127.0.0.1", free_port()), folder / "ready"
    write_private(folder / "login", "{}")
    command = [sys.executable, "-m", "faultline.installation.kafka_auth_proxy", "--listen", f"{listen[0]}:{listen[1]}"]
    command += ["--upstream", f"{upstream[0]}:{upstream[1]}", "--login", str(folder / "login"), "--ready", str(ready)]
    path = os.pathsep.join([str(ROOT / "include"), str(ROOT)])
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, env={**os.environ, "PYTHONPATH": path})
    try:
        wait_until(ready.exists, timeout_s=120, what="the gate")
        yield listen
    finally:
        process.kill()
        process.wait()


def echo(server: socket.socket) -> None:
    with server.accept()[0] as connection:
        connection.settimeout(120)
        connection.sendall(connection.recv(100).upper())


@only_root
def test_only_this_users_processes_are_forwarded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, gate(tmp_path, server.getsockname()) as listen:
        server.settimeout(120)
        with socket.create_connection(listen) as ours:
            ours.sendall(b"hello")
            echo(server)
            assert ours.recv(100) == b"HELLO"

        def knock() -> bytes:
            with socket.create_connection(listen) as client:
                client.sendall(b"hello")
                return client.recv(9) or b"shut"

        def throw() -> None:
            """Send data and disconnect, so that the socket has no owner when the proxy reads it."""
            for _ in range(40):
                with socket.create_connection(listen) as client:
                    client.sendall(b"hello")

        assert as_other_user(knock).got in (None, "b'shut'")
        as_other_user(throw)
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "connection refused: " in (tmp_path / "output").read_text()


# ---- The broker's storage ----


def test_a_storage_with_other_passwords_is_moved_aside_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, folder = make_secrets(tmp_path / "secrets"), tmp_path / "kafka"
    (folder / "data").mkdir(parents=True)
    assert not _has_users(folder, known), "empty: there is nothing to keep"
    (folder / "data" / "meta.properties").write_text("node.id=1")
    (folder / "users.sha256").write_text(_digest(known))
    assert _has_users(folder, known) and capsys.readouterr().err == ""
    (folder / "users.sha256").write_text("before")
    assert not _has_users(folder, known)
    (aside,) = folder.glob("data-before-*")
    assert (aside / "meta.properties").read_text() == "node.id=1"
    stderr = capsys.readouterr().err
    assert str(aside) in stderr and stderr.count("\n") == 1
