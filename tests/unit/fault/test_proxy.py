"""The proxy as a program, with real sockets on both sides: transfer, delay, cut and reset."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.fault.conftest import until
from tests.unit.fault.running_proxy import (
    ONE_READ,
    SECONDS,
    RunningProxy,
    is_silent,
    read_exactly,
    read_to_end,
    was_reset,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    up=st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    down=st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    delay_ms=st.sampled_from([None, 1.0, 7.5]),
)
def test_bytes_arrive_unchanged(
    proxy: RunningProxy, up: list[bytes], down: list[bytes], delay_ms: float | None
) -> None:
    if delay_ms is None:
        proxy.control.restore()
    else:
        proxy.control.delay(delay_ms)
    client, server = proxy.pair()
    for index in range(max(len(up), len(down))):
        for end, chunks in ((client, up), (server, down)):
            if index < len(chunks):
                end.sendall(chunks[index])
    client.shutdown(socket.SHUT_WR)
    assert read_to_end(server) == b"".join(up)
    # half-closed: the other direction stays open
    server.sendall(b"last words")
    server.shutdown(socket.SHUT_WR)
    assert read_to_end(client) == b"".join(down) + b"last words"
    until(lambda: proxy.control.status()["connections"] == 0, "the link's end")


def test_large_transfers_in_both_directions(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    size = 8 << 20
    payloads = {client: os.urandom(size), server: os.urandom(size)}
    threads = [threading.Thread(target=end.sendall, args=(data,)) for end, data in payloads.items()]
    received: dict[socket.socket, bytes] = {}
    threads += [
        threading.Thread(target=lambda end=end: received.update({end: read_exactly(end, size)})) for end in payloads
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert received[server] == payloads[client]
    assert received[client] == payloads[server]
    status = proxy.control.status()
    assert (status["bytes_up"], status["bytes_down"], status["connections"]) == (size, size, 1)


def test_only_connections_of_given_clients_are_delayed(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    assert proxy.control.delay(5_000, clients=["192.0.2.1"]) == 0
    client.sendall(b"at once")
    assert read_exactly(server, 7) == b"at once"
    assert proxy.control.delay(100, jitter_ms=50, clients=["127.0.0.1", "192.0.2.1"]) == 1
    status = proxy.control.status()
    assert (status["mode"], status["jitter_ms"], status["clients"]) == ("delay", 50, ["127.0.0.1", "192.0.2.1"])
    began = time.monotonic()
    client.sendall(b"held")
    assert read_exactly(server, 4) == b"held" and time.monotonic() - began > 0.045
    proxy.control.restore()
    assert proxy.control.status()["clients"] is None


def test_lost_bytes_come_later_and_in_order(proxy: RunningProxy) -> None:
    """The second random draw is the first loss."""
    client, server = proxy.pair()
    assert proxy.control.loss(30) == 1
    status = proxy.control.status()
    assert (status["mode"], status["loss_percent"]) == ("loss", 30)
    client.sendall(b"first")
    assert read_exactly(server, 5) == b"first"
    began = time.monotonic()
    client.sendall(b" second")
    assert read_exactly(server, 7) == b" second" and time.monotonic() - began > 0.19
    proxy.control.restore()


def test_ipv6_loopback_works_too(tmp_path: Path) -> None:
    running = RunningProxy(tmp_path, "::1")
    client, server = running.pair()
    client.sendall(b"x")
    assert server.recv(9) == b"x"
    assert running.file["listen"].startswith("[::1]:")
    assert running.close() == b""


def test_a_delay_is_a_lower_bound_and_keeps_the_order(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    proxy.control.delay(80)
    for sender, receiver in ((client, server), (server, client)):
        sent: list[float] = []
        for number in range(6):
            sent.append(time.monotonic())
            sender.sendall(bytes([number]))
            assert is_silent(receiver, 0.005) or time.monotonic() - sent[0] >= 0.080
        for number in range(6):
            assert receiver.recv(1) == bytes([number])
            assert time.monotonic() - sent[number] >= 0.080
    status = proxy.control.status()
    assert (status["mode"], status["delay_ms"]) == ("delay", 80)
    proxy.control.delay(60_000)
    client.sendall(b"held")
    until(lambda: proxy.control.status()["held_up"] == 4, "the bytes in the proxy")
    proxy.control.restore()
    assert read_exactly(server, 4) == b"held", "healing does not wait for what was due later"
    proxy.control.delay(80)
    began = time.monotonic()
    client.close()
    assert server.recv(1) == b"" and time.monotonic() - began >= 0.080, "the end is delayed like the bytes"


def test_cut_blocks_until_restored(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    before = proxy.control.status()["since"]
    proxy.control.cut()
    client.sendall(b"up " * 1000)
    server.sendall(b"down" * 1000)
    late = proxy.client()
    late.sendall(b"knock")
    until(lambda: held(proxy) == (3005, 4000), "all bytes in the proxy")
    client.shutdown(socket.SHUT_WR)
    for end in (client, server, late, proxy.upstream):
        assert is_silent(end, 0.1)
    status = proxy.control.status()
    assert (status["mode"], status["connections"]) == ("cut", 2)
    assert status["since"] > before
    assert (status["bytes_up"], status["bytes_down"]) == (0, 0)
    proxy.control.restore()
    assert read_to_end(server) == b"up " * 1000
    assert read_exactly(client, 4000) == b"down" * 1000
    assert read_exactly(proxy.server(), 5) == b"knock"
    assert held(proxy) == (0, 0)


def held(proxy: RunningProxy) -> tuple[int, int]:
    status = proxy.control.status()
    return status["held_up"], status["held_down"]


def test_cut_hides_the_end_of_the_other_side(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    proxy.control.cut()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    proxy.upstream.close()
    late = proxy.client()
    assert is_silent(client)
    assert is_silent(late, 0.05)
    proxy.control.restore()
    assert was_reset(client)
    assert was_reset(late), "no process listens upstream"
    until(lambda: proxy.control.status()["connections"] == 0, "the end of both links")


@pytest.mark.parametrize("mode", ["plain", "cut", "delay"])
def test_a_reset_ends_every_connection_on_both_sides(proxy: RunningProxy, mode: str) -> None:
    pairs = [proxy.pair() for _ in range(3)]
    if mode == "cut":
        proxy.control.cut()
    elif mode == "delay":
        proxy.control.delay(60_000)
    for client, _ in pairs:
        client.sendall(b"lost on the way" if mode != "plain" else b"")
    assert proxy.control.reset() == 3
    assert all(was_reset(end) for pair in pairs for end in pair)
    assert proxy.control.status()["mode"] == mode
    assert proxy.control.status()["connections"] == 0
    assert proxy.control.reset() == 0
    proxy.control.restore()
    client, server = proxy.pair()
    client.sendall(b"new")
    assert read_exactly(server, 3) == b"new"


@pytest.mark.parametrize("mode", ["plain", "cut"])
def test_memory_is_bounded(proxy: RunningProxy, mode: str) -> None:
    """A sender without a reader is blocked, also in a cut; no byte is lost."""
    client, server = proxy.pair()
    if mode == "cut":
        proxy.control.cut()
    block, sent = os.urandom(1 << 16), 0
    client.setblocking(False)
    while select.select([], [client], [], 0.5)[1]:
        sent += client.send(block[sent % len(block) :])
        assert sent < 64 << 20, "the sender is never held up"
    up, down = held(proxy)
    assert 1_048_576 < up <= 1_048_576 + ONE_READ
    assert down == 0
    proxy.control.restore()
    taken = read_exactly(server, sent)
    assert all(taken[start : start + len(block)] == block[: sent - start] for start in range(0, sent, len(block)))
    assert held(proxy) == (0, 0)


def test_a_reset_by_one_side_reaches_the_other_and_a_dead_upstream_resets_the_client(proxy: RunningProxy) -> None:
    client, server = proxy.pair()
    client.sendall(b"x")
    assert server.recv(1) == b"x", "both ends stand"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert was_reset(server)
    proxy.upstream.close()
    with contextlib.suppress(ConnectionResetError):  # it may precede the return of `connect`
        assert was_reset(proxy.client())
