"""The proxy as a program: arguments, control file, commands and signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.proxy import main, parse_address
from fault.proxy_control import ProxyControl, ProxyError, ProxyRefused, ProxySilent, ProxyUnreachable
from tests.unit.fault.running_proxy import (
    SECONDS,
    RunningProxy,
    read_exactly,
    was_reset,
)


def test_control_file_is_complete_and_private(proxy: RunningProxy) -> None:
    assert set(proxy.file) == {"port", "secret", "listen", "upstream", "pid"}
    assert proxy.file["pid"] == proxy.process.pid
    assert len(proxy.file["secret"]) == 32
    assert stat.S_IMODE(proxy.path.stat().st_mode) == 0o600
    assert os.listdir(proxy.path.parent) == [proxy.path.name]
    connections = psutil.Process(proxy.process.pid).net_connections("tcp")
    assert {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def raw(proxy: RunningProxy, line: bytes) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", proxy.file["port"]), SECONDS) as connection:
        connection.sendall(line + b"\n")
        answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    return answer


def test_invalid_commands_change_nothing(proxy: RunningProxy) -> None:
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
    assert read_exactly(server, 11) == b"still plain"


def test_control_errors_have_types(proxy: RunningProxy, tmp_path: Path) -> None:
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
    running = RunningProxy(tmp_path)
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
