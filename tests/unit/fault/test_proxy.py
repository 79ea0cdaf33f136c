"""The proxy as a program, with real sockets on both sides."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fault.proxy import main, parse_address
from fault.proxy_control import ProxyControl, ProxyError, ProxyRefused, ProxySilent, ProxyUnreachable
from tests.unit.fault.conftest import until

TOKEN = "faultline-run=20261121T061500Z-3fa9c1"
# asyncio's maximum read, by which the last chunk may exceed the limit.
ONE_READ = 1 << 18
SECONDS = 120.0


class Running:
    """A proxy process in front of a listening socket of this test."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.upstream = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
        )
        self.upstream.settimeout(SECONDS)
        self.path = folder / "proxy.json"
        shown = f"[{host}]" if ":" in host else host
        port = self.upstream.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fault.proxy", "--listen", f"{shown}:0", "--upstream", f"{shown}:{port}"]
            + ["--control", str(self.path), TOKEN],
            stderr=subprocess.PIPE,
        )
        until(lambda: self.path.exists() or self.process.poll() is not None, "the control file")
        self.file: dict[str, Any] = json.loads(self.path.read_text())
        self.control = ProxyControl(self.path)
        self._sockets: list[socket.socket] = []

    def client(self) -> socket.socket:
        made = socket.create_connection(parse_address(self.file["listen"]), SECONDS)
        self._sockets.append(made)
        return made

    def server(self) -> socket.socket:
        """Return the upstream end of the next connection."""
        made, _ = self.upstream.accept()
        made.settimeout(SECONDS)
        self._sockets.append(made)
        return made

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection."""
        client = self.client()
        return client, self.server()

    def close(self) -> bytes:
        """End everything and return the proxy's standard error."""
        for one in (*self._sockets, self.upstream):
            one.close()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=SECONDS)
        return errors


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    assert running.close() == b"", "it never complains by itself"


def exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = end.recv(min(1 << 16, size - len(data)))
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


def to_the_end(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 16), b""))


def silent(end: socket.socket, seconds: float = 0.2) -> bool:
    """Return whether nothing can be read, neither bytes nor an end."""
    return select.select([end], [], [], seconds)[0] == []


def was_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b"never"
    except ConnectionResetError:
        return True


def test_control_file_is_complete_and_private(proxy: Running) -> None:
    assert set(proxy.file) == {"port", "secret", "listen", "upstream", "pid"}
    assert proxy.file["pid"] == proxy.process.pid
    assert len(proxy.file["secret"]) == 32
    assert stat.S_IMODE(proxy.path.stat().st_mode) == 0o600
    assert os.listdir(proxy.path.parent) == [proxy.path.name]
    connections = psutil.Process(proxy.process.pid).net_connections("tcp")
    assert {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    up=st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    down=st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    delay_ms=st.sampled_from([None, 1.0, 7.5]),
)
def test_bytes_arrive_unchanged(proxy: Running, up: list[bytes], down: list[bytes], delay_ms: float | None) -> None:
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
    assert to_the_end(server) == b"".join(up)
    # half-closed: the other direction stays open
    server.sendall(b"last words")
    server.shutdown(socket.SHUT_WR)
    assert to_the_end(client) == b"".join(down) + b"last words"
    until(lambda: proxy.control.status()["connections"] == 0, "the link's end")


def test_large_transfers_in_both_directions(proxy: Running) -> None:
    client, server = proxy.pair()
    size = 8 << 20
    payloads = {client: os.urandom(size), server: os.urandom(size)}
    threads = [threading.Thread(target=end.sendall, args=(data,)) for end, data in payloads.items()]
    received: dict[socket.socket, bytes] = {}
    threads += [threading.Thread(target=lambda end=end: received.update({end: exactly(end, size)})) for end in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert received[server] == payloads[client]
    assert received[client] == payloads[server]
    status = proxy.control.status()
    assert (status["bytes_up"], status["bytes_down"], status["connections"]) == (size, size, 1)


def test_only_connections_of_given_clients_are_delayed(proxy: Running) -> None:
    client, server = proxy.pair()
    assert proxy.control.delay(5_000, clients=["192.0.2.1"]) == 0
    client.sendall(b"at once")
    assert exactly(server, 7) == b"at once"
    assert proxy.control.delay(100, jitter_ms=50, clients=["127.0.0.1", "192.0.2.1"]) == 1
    status = proxy.control.status()
    assert (status["mode"], status["jitter_ms"], status["clients"]) == ("delay", 50, ["127.0.0.1", "192.0.2.1"])
    began = time.monotonic()
    client.sendall(b"held")
    assert exactly(server, 4) == b"held" and time.monotonic() - began > 0.045
    proxy.control.restore()
    assert proxy.control.status()["clients"] is None


def test_lost_bytes_come_later_and_in_order(proxy: Running) -> None:
    """The second random draw is the first loss."""
    client, server = proxy.pair()
    assert proxy.control.loss(30) == 1
    status = proxy.control.status()
    assert (status["mode"], status["loss_percent"]) == ("loss", 30)
    client.sendall(b"first")
    assert exactly(server, 5) == b"first"
    began = time.monotonic()
    client.sendall(b" second")
    assert exactly(server, 7) == b" second" and time.monotonic() - began > 0.19
    proxy.control.restore()


def test_ipv6_loopback_works_too(tmp_path: Path) -> None:
    running = Running(tmp_path, "::1")
    client, server = running.pair()
    client.sendall(b"x")
    assert server.recv(9) == b"x"
    assert running.file["listen"].startswith("[::1]:")
    assert running.close() == b""


def test_a_delay_is_a_lower_bound_and_keeps_the_order(proxy: Running) -> None:
    client, server = proxy.pair()
    proxy.control.delay(80)
    for sender, receiver in ((client, server), (server, client)):
        sent: list[float] = []
        for number in range(6):
            sent.append(time.monotonic())
            sender.sendall(bytes([number]))
            assert silent(receiver, 0.005) or time.monotonic() - sent[0] >= 0.080
        for number in range(6):
            assert receiver.recv(1) == bytes([number])
            assert time.monotonic() - sent[number] >= 0.080
    status = proxy.control.status()
    assert (status["mode"], status["delay_ms"]) == ("delay", 80)
    proxy.control.delay(60_000)
    client.sendall(b"held")
    until(lambda: proxy.control.status()["held_up"] == 4, "the bytes in the proxy")
    proxy.control.restore()
    assert exactly(server, 4) == b"held", "healing does not wait for what was due later"
    proxy.control.delay(80)
    began = time.monotonic()
    client.close()
    assert server.recv(1) == b"" and time.monotonic() - began >= 0.080, "the end is delayed like the bytes"


def test_cut_blocks_until_restored(proxy: Running) -> None:
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
        assert silent(end, 0.1)
    status = proxy.control.status()
    assert (status["mode"], status["connections"]) == ("cut", 2)
    assert status["since"] > before
    assert (status["bytes_up"], status["bytes_down"]) == (0, 0)
    proxy.control.restore()
    assert to_the_end(server) == b"up " * 1000
    assert exactly(client, 4000) == b"down" * 1000
    assert exactly(proxy.server(), 5) == b"knock"
    assert held(proxy) == (0, 0)


def held(proxy: Running) -> tuple[int, int]:
    status = proxy.control.status()
    return status["held_up"], status["held_down"]


def test_cut_hides_the_end_of_the_other_side(proxy: Running) -> None:
    client, server = proxy.pair()
    proxy.control.cut()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    proxy.upstream.close()
    late = proxy.client()
    assert silent(client)
    assert silent(late, 0.05)
    proxy.control.restore()
    assert was_reset(client)
    assert was_reset(late), "no process listens upstream"
    until(lambda: proxy.control.status()["connections"] == 0, "the end of both links")


@pytest.mark.parametrize("mode", ["plain", "cut", "delay"])
def test_a_reset_ends_every_connection_on_both_sides(proxy: Running, mode: str) -> None:
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
    assert exactly(server, 3) == b"new"


@pytest.mark.parametrize("mode", ["plain", "cut"])
def test_memory_is_bounded(proxy: Running, mode: str) -> None:
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
    taken = exactly(server, sent)
    assert all(taken[start : start + len(block)] == block[: sent - start] for start in range(0, sent, len(block)))
    assert held(proxy) == (0, 0)


def test_a_reset_by_one_side_reaches_the_other_and_a_dead_upstream_resets_the_client(proxy: Running) -> None:
    client, server = proxy.pair()
    client.sendall(b"x")
    assert server.recv(1) == b"x", "both ends stand"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert was_reset(server)
    proxy.upstream.close()
    with contextlib.suppress(ConnectionResetError):  # it may precede the return of `connect`
        assert was_reset(proxy.client())


def raw(proxy: Running, line: bytes) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", proxy.file["port"]), SECONDS) as connection:
        connection.sendall(line + b"\n")
        answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    return answer


def test_invalid_commands_change_nothing(proxy: Running) -> None:
    secret = proxy.file["secret"]
    before = proxy.control.status()
    client, server = proxy.pair()
    for asked, named in (
        ({"command": "cut"}, "secret"),
        ({"command": "cut", "secret": "0" * 32}, "secret"),
        ({"command": "reset", "secret": None}, "secret"),
        ({"command": "status", "secret": "ä"}, "secret"),
        ({"secret": secret}, "command"),
        ({"command": ["cut"], "secret": secret}, "command"),
        ({"command": "cutt", "secret": secret}, "did you mean cut?"),
        ({"command": "cut", "ms": 5, "secret": secret}, "ms"),
        ({"command": "delay", "secret": secret}, "ms"),
        *(({"command": "delay", "ms": ms, "secret": secret}, "ms") for ms in (0, -1, "5", None, True, 1e9)),
    ):
        answer = raw(proxy, json.dumps(asked).encode())
        assert answer["ok"] is False
        assert named in answer["error"], asked
        assert secret not in answer["error"]
    for line in (b"cut", b"[]", b"\xff\xfe", b'{"command": "delay", "ms": NaN, "secret": "%s"}' % secret.encode()):
        assert raw(proxy, line)["ok"] is False
    with socket.create_connection(("127.0.0.1", proxy.file["port"]), SECONDS) as connection:
        connection.sendall(b"x" * 10_000 + b"\n")  # too long for a command: no reply
        assert connection.recv(1) == b"" or was_reset(connection)
    assert {**proxy.control.status(), "connections": 0} == before
    client.sendall(b"still plain")
    assert exactly(server, 11) == b"still plain"


def test_control_errors_have_types(proxy: Running, tmp_path: Path) -> None:
    with pytest.raises(ProxyRefused, match="delay refused: ms"):
        proxy.control.delay(-1)
    with pytest.raises(ProxyUnreachable, match="cut failed: .*nothing.json"):
        ProxyControl(tmp_path / "nothing.json").cut()
    (tmp_path / "half.json").write_text('{"port": 1')
    with pytest.raises(ProxyUnreachable):
        ProxyControl(tmp_path / "half.json").status()
    other = tmp_path / "other.json"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        other.write_text(json.dumps({"port": mute.getsockname()[1], "secret": "s"}))
        with pytest.raises(ProxySilent, match="reset failed"):
            ProxyControl(other, timeout_s=0.1).reset()
    with pytest.raises(ProxyUnreachable):
        ProxyControl(other).restore()
    other.write_text(json.dumps({**proxy.file, "secret": "guessed"}))
    with pytest.raises(ProxyRefused, match="secret"):
        ProxyControl(other).cut()
    other.unlink()
    (tmp_path / "half.json").unlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_proxy_also_in_a_cut(tmp_path: Path, number: signal.Signals) -> None:
    running = Running(tmp_path)
    client, server = running.pair()
    running.control.cut()
    client.sendall(b"x")
    running.process.send_signal(number)
    assert running.process.wait(SECONDS) == 0
    assert was_reset(client)
    assert was_reset(server)
    assert not running.path.exists()
    with pytest.raises(ConnectionRefusedError):
        running.client()
    assert running.close() == b""


@pytest.mark.parametrize(
    ("listen", "upstream", "named"),
    [
        ("0.0.0.0:0", "127.0.0.1:1", "0.0.0.0:0"),
        ("[::]:0", "127.0.0.1:1", "[::]:0"),
        ("127.0.0.1:0", "0.0.0.0:9092", "0.0.0.0:9092"),
        ("224.0.0.1:0", "127.0.0.1:1", "224.0.0.1:0"),
        ("localhost:0", "127.0.0.1:1", "localhost:0"),
        ("127.0.0.1", "127.0.0.1:1", "HOST:PORT"),
        ("127.0.0.1:0", "127.0.0.1:0", "HOST:PORT"),
        ("127.0.0.1:65536", "127.0.0.1:1", "HOST:PORT"),
    ],
)
def test_wildcard_addresses_and_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listen: str, upstream: str, named: str
) -> None:
    path = tmp_path / "proxy.json"
    assert main(["--listen", listen, "--upstream", upstream, "--control", str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("proxy: ")
    assert errors.count("\n") == 1
    assert named in errors
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("10.77.0.1:19093", ("10.77.0.1", 19093)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:65535", ("::1", 65535)),
        *((f"127.0.0.1:{port}", None) for port in ("", "x", "-1", "1\u0662", "65536", "1 ", "0")),
    ],
)  # fmt: skip
def test_address_needs_one_host_and_a_decimal_port(text: str, pair: tuple[str, int] | None) -> None:
    assert parse_address("[::1]:0", any_port=True) == ("::1", 0)
    expected = contextlib.nullcontext() if pair else pytest.raises(ProxyError, match="^address: ")
    with expected:
        assert parse_address(text) == pair


def test_a_busy_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["--listen", listen, "--upstream", "127.0.0.1:1", "--control", str(tmp_path / "p.json")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"proxy: {listen}")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [b"{}", b'{"ok": false}', b"[]", b"7"])
def test_reply_without_ok_is_a_refusal(tmp_path: Path, answer: bytes) -> None:
    control = tmp_path / "control.json"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        control.write_text(json.dumps({"port": listening.getsockname()[1], "secret": "s"}))

        def reply() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as asked:
                asked.readline()
                connection.sendall(answer + b"\n")

        server = threading.Thread(target=reply)
        server.start()
        with pytest.raises(ProxyRefused, match="restore refused"):
            ProxyControl(control).restore()
        server.join(120)
