"""Only the installation's own API server can answer, and only for its own port."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.installation import proof
from faultline.installation.proof import answer, keep_tokens, new_challenge, require_own_listener, require_proof
from faultline.system.errors import InfrastructureError
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from faultline.system.sockets import listener_of
from tests.support.decoys import NOBODY, only_root
from tests.support.stranger import running_as_stranger


def test_the_answer_holds_for_one_key_one_challenge_and_one_port() -> None:
    challenge = new_challenge()
    given = answer("key", challenge, 1)
    assert given is not None
    require_proof("key", challenge, 1, given)
    for key, asked, port in (("other", challenge, 1), ("key", new_challenge(), 1), ("key", challenge, 2)):
        with pytest.raises(InfrastructureError, match="does not show that it is this installation's"):
            require_proof(key, asked, port, given)


@given(st.text())
def test_nothing_is_answered_to_what_is_no_challenge(text: str) -> None:
    if not (len(text) == 64 and set(text) <= set("0123456789abcdef")):
        assert answer("key", text, 1) is None
        with pytest.raises(InfrastructureError):
            require_proof("key", new_challenge(), 1, text)


@only_root
def test_a_strangers_server_is_told_by_the_kernel() -> None:
    port = free_port()
    settings = Settings(ROOT, Path("/nowhere"), Path("/nowhere"), {**DEFAULT_PORTS, "airflow": port})
    require_own_listener(settings)  # nobody listens, which is another trouble

    def listen(pipe: Connection) -> None:
        with socket.create_server(("127.0.0.1", port)):
            pipe.send("listens")
            pipe.recv()

    with running_as_stranger(listen) as (pipe, _):
        assert pipe.recv() == "listens"
        with pytest.raises(InfrastructureError, match=f"is user {NOBODY}'s"):
            require_own_listener(settings)


def hear(server: socket.socket) -> bytes:
    """What the first who comes says, who is answered; nothing when he goes without a word."""
    with server.accept()[0] as connection:
        connection.settimeout(120)
        heard = connection.recv(1000)
        if heard:
            connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        return heard


@only_root
@pytest.mark.parametrize("late", [False, True])
def test_a_task_s_token_goes_to_nobody_who_took_the_port(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Also not to one who took it just before the connection was made."""
    port = free_port()
    settings = Settings(ROOT, Path("/nowhere"), Path("/nowhere"), {**DEFAULT_PORTS, "airflow": port})

    class Client(httpx.Client):
        pass

    keep_tokens(Client, settings)
    with Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer secret"}) as client:
        with socket.create_server(("127.0.0.1", port)) as server, ThreadPoolExecutor() as pool:
            heard = pool.submit(hear, server)
            assert client.get("/x").status_code == 204
            assert b"Bearer secret" in heard.result(10)

        def listen(pipe: Connection) -> None:
            with socket.create_server(("127.0.0.1", port)) as server:
                pipe.send("listens")
                pipe.send(hear(server))

        with running_as_stranger(listen) as (pipe, _):
            assert pipe.recv() == "listens"
            if late:
                seen = iter([os.geteuid()])
                monkeypatch.setattr(proof, "listener_of", lambda address: next(seen, listener_of(address)))
            with pytest.raises(httpx.ConnectError, match=f"is user {NOBODY}'s"):
                client.get("/x")
            if late:
                assert pipe.poll(120) and pipe.recv() == b"", "he was called, and told nothing"
            else:
                assert not pipe.poll(0.5), "he was not even called"
