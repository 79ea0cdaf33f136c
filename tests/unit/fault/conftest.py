"""Fixtures of the fault tests: processes to find and signal, and a fake SSH connection to this host."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from fault import ssh_connection
from fault.identity import ProcessIdentity, Tokens
from fault.injector import Injector
from fault.remote_bootstrap import boot_command
from fault.ssh_connection import RemoteHost, SshChannel
from faultline.system.waiting import wait_until
from tests.unit.fault.running_proxy import proxy as proxy
from tests.unit.sleepers import run as run
from tests.unit.sleepers import spawn as spawn

KEY = paramiko.RSAKey.generate(1024)


class SleepClock:
    """A clock that advances only by sleeping."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, timeout_s=120, every_s=0.002, what=what)


class Host:
    """State of the fake connections.

    `lost`: errors or bytes that replace the next replies. `replies`: values that replace them.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lost: list[Exception | bytes] = []
        self.replies: list[dict[str, Any]] = []
        self.refuses: Exception | None = None
        self.alive = True
        self.connected: list[dict[str, Any]] = []
        self.closed = 0
        self.keepalive_s = 0
        self.agents: list[subprocess.Popen[bytes]] = []

    @property
    def left(self) -> list[str]:
        """Files of agents in their temporary folder."""
        return [path.name for path in self.home.iterdir()]


class Channel:
    """A command on this host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.closed = False

    def settimeout(self, seconds: float) -> None:
        assert seconds == 3.0

    def exec_command(self, command: str) -> None:
        assert command == boot_command(sys.executable)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._agent = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], **pipes, env={**os.environ, "TMPDIR": str(self._host.home)}
        )
        self._host.agents.append(self._agent)

    def sendall(self, data: bytes) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.write(data)
        self._agent.stdin.flush()

    def makefile(self, mode: str) -> Answers:
        return Answers(self._host, self._agent)

    def makefile_stderr(self, mode: str) -> Any:
        return io.BytesIO(b"reason")

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(BrokenPipeError):
            self._agent.communicate(timeout=120)


class Answers:
    def __init__(self, host: Host, agent: subprocess.Popen[bytes]) -> None:
        self._host, self._agent = host, agent

    def readline(self) -> bytes:
        assert self._agent.stdout is not None
        line = self._agent.stdout.readline()
        if self._host.lost and b"python" not in line:
            lost = self._host.lost.pop(0)
            if isinstance(lost, Exception):
                raise lost
            return lost
        if self._host.replies and b"python" not in line:
            return json.dumps({"n": json.loads(line)["n"], **self._host.replies.pop(0)}).encode() + b"\n"
        return line


class Transport:
    def __init__(self, host: Host) -> None:
        self._host = host

    def is_active(self) -> bool:
        return self._host.alive

    def open_session(self, timeout: float) -> Channel:
        assert timeout == 3.0
        if not self._host.alive:
            raise paramiko.SSHException("not active")
        return Channel(self._host)

    def set_keepalive(self, seconds: int) -> None:
        self._host.keepalive_s = seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)

    class Client:
        def load_host_keys(self, path: str) -> None:
            assert path == "known"

        def set_missing_host_key_policy(self, policy: object) -> None:
            self._policy = policy

        def connect(self, name: str, **how: Any) -> None:
            if found.refuses is not None:
                raise found.refuses
            found.connected.append({"host": name, **how})

        def get_transport(self) -> Transport:
            return Transport(found)

        def close(self) -> None:
            found.closed += 1

    monkeypatch.setattr(ssh_connection.paramiko, "SSHClient", Client)
    yield found
    for agent in found.agents:
        agent.kill()
        agent.wait()
        for stream in (agent.stdin, agent.stdout, agent.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def channel(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshChannel]:
    known, key = Path("known"), tmp_path_factory.mktemp("key") / "key"
    KEY.write_private_key_file(str(key))
    address = RemoteHost("there", "me", key, known, port=2222, python=sys.executable, timeout_s=3.0)
    with contextlib.closing(SshChannel(address)) as made:
        yield made


@pytest.fixture(params=["here", "there"])
def injector(request: pytest.FixtureRequest) -> Injector:
    """Injector for this host, directly and through a connection."""
    return Injector({} if request.param == "here" else {"there": request.getfixturevalue("channel")})


def only(injector: Injector, run: str) -> ProcessIdentity:
    """Return the only executor of a run."""
    (found,) = injector.find("executor", Tokens(run))
    return found
