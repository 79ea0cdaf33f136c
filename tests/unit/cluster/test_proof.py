"""Only the installation's own API server can answer, and only for its own port."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import InfrastructureError
from faultline.base.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from faultline.cluster.proof import answer, new_challenge, require_own_listener, require_proof
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
