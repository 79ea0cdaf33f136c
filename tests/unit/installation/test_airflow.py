"""Only the installation's own API server can answer, and only for its own port."""

from __future__ import annotations

import io
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.installation import airflow as airflow_home
from faultline.installation import server_proof
from faultline.installation.airflow import DATABASE, choose_database, login_text, password, write_airflow_home
from faultline.installation.server_proof import (
    compute_proof,
    guard_tokens,
    new_challenge,
    require_own_listener,
    require_proof,
)
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from faultline.system.socket_owner import listener_of
from tests.support.decoys import OTHER_UID, only_root
from tests.support.other_user import running_as_other_user


def test_the_answer_holds_for_one_key_one_challenge_and_one_port() -> None:
    challenge = new_challenge()
    given = compute_proof("key", challenge, 1)
    assert given is not None
    require_proof("key", challenge, 1, given)
    for key, asked, port in (("other", challenge, 1), ("key", new_challenge(), 1), ("key", challenge, 2)):
        with pytest.raises(InfrastructureError, match="^airflow: server authentication failed"):
            require_proof(key, asked, port, given)


@given(st.text())
def test_invalid_challenges_are_not_answered(text: str) -> None:
    if not (len(text) == 64 and set(text) <= set("0123456789abcdef")):
        assert compute_proof("key", text, 1) is None
        with pytest.raises(InfrastructureError):
            require_proof("key", new_challenge(), 1, text)


def at_a_port() -> tuple[int, Settings]:
    """A free port, and an installation whose Airflow is configured to use it."""
    port = free_port()
    return port, Settings(ROOT, Path("/nowhere"), Path("/nowhere"), {**DEFAULT_PORTS, "airflow": port})


@only_root
def test_a_server_of_another_user_is_detected_by_the_kernel() -> None:
    port, settings = at_a_port()
    require_own_listener(settings)  # no process listens

    def listen(pipe: Connection) -> None:
        with socket.create_server(("127.0.0.1", port)):
            pipe.send("listens")
            pipe.recv()

    with running_as_other_user(listen) as (pipe, _):
        assert pipe.recv() == "listens"
        with pytest.raises(InfrastructureError, match=f"is owned by user {OTHER_UID}"):
            require_own_listener(settings)


def hear(server: socket.socket) -> bytes:
    """Answer the first client and return its request; empty if it disconnects without one."""
    with server.accept()[0] as connection:
        connection.settimeout(120)
        request = connection.recv(1000)
        if request:
            connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        return request


@only_root
@pytest.mark.parametrize("late", [False, True])
def test_a_task_token_is_not_sent_to_another_user_on_the_port(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Also not to a process that took the port just before the connection."""
    port, settings = at_a_port()

    class Client(httpx.Client):
        pass

    guard_tokens(Client, settings)
    with Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer secret"}) as client:
        with socket.create_server(("127.0.0.1", port)) as server, ThreadPoolExecutor() as pool:
            request = pool.submit(hear, server)
            assert client.get("/x").status_code == 204
            assert b"Bearer secret" in request.result(10)

        def listen(pipe: Connection) -> None:
            with socket.create_server(("127.0.0.1", port)) as server:
                pipe.send("listens")
                pipe.send(hear(server))

        with running_as_other_user(listen) as (pipe, _):
            assert pipe.recv() == "listens"
            if late:
                seen = iter([os.geteuid()])
                monkeypatch.setattr(server_proof, "listener_of", lambda address: next(seen, listener_of(address)))
            with pytest.raises(httpx.ConnectError, match=f"is owned by user {OTHER_UID}"):
                client.get("/x")
            if late:
                assert pipe.poll(120) and pipe.recv() == b"", "connected, but no request sent"
            else:
                assert not pipe.poll(0.5), "no connection"


# ---- Airflow's folder ----


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_its_secrets_are_for_their_owner_only(settings: Settings, umask: int) -> None:
    before = os.umask(umask)
    try:
        home = write_airflow_home(settings, "postgresql://user:word@127.0.0.1:1/name")
        first = {path.name: path.read_bytes() for path in home.iterdir()}
        write_airflow_home(settings, "postgresql://user:word@127.0.0.1:1/name")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert len(modes) >= 3 and set(modes.values()) == {0o600}, modes
    assert first == {path.name: path.read_bytes() for path in home.iterdir()}, "made once, and kept"


def test_the_password_is_shown_on_a_terminal_only(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="./faultline up"):
        password(settings)
    write_airflow_home(settings)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert login_text(settings, terminal) == f"user admin, password {password(settings)}"
    assert login_text(settings, io.StringIO()) == "user admin, ./faultline password shows the password"


def test_the_previous_database_is_kept_until_another_is_set(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(airflow_home, "require_database", asked.append)
    monkeypatch.delenv(DATABASE, raising=False)
    assert choose_database(settings, running=False) is None, "SQLite, at first"
    monkeypatch.setenv(DATABASE, "postgresql://user:wo%25rd@127.0.0.1:1/name")
    address = "postgresql+psycopg2://user:wo%25rd@127.0.0.1:1/name"
    assert choose_database(settings, running=False) == address
    write_airflow_home(settings, address)
    monkeypatch.delenv(DATABASE)
    assert choose_database(settings, running=True) == address and asked == [address]
    assert choose_database(settings, running=False) == address and asked == [address] * 2, "it has to answer"
    monkeypatch.setenv(DATABASE, "")
    with pytest.raises(ConfigError, match="runs on another database"):
        choose_database(settings, running=True)
    assert choose_database(settings, running=False) is None, "selected by an empty value"


def test_keys_that_others_can_read_and_a_damaged_configuration_are_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write_airflow_home(settings) / "secrets.json"
    keys.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 0600 {keys}$"):
        write_airflow_home(settings)
    monkeypatch.delenv(DATABASE, raising=False)
    (keys.parent / "airflow.cfg").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"airflow\.cfg: damaged"):
        choose_database(settings, running=False)
