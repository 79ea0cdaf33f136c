"""The remote injector against a real SSH server on loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    IdentityMismatch,
    RemoteSignalRefused,
    UnsettledSignal,
)
from fault.identity import EXECUTOR, ProcessIdentity
from fault.injector import Delivery, Outcome, Presence, settle
from fault.remote import RemoteHost, RemoteInjector
from fault.victims import find_victims

pytestmark = pytest.mark.integration

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PROGRAM = "import time; print('up', flush=True); time.sleep(120)"
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Server:
    """A running server, its folder, and the address that reaches it."""

    folder: Path
    address: RemoteHost

    def drop_next(self) -> None:
        """The next session does its work and then dies without a word."""
        (self.folder / "drop").touch()

    def refuse_next(self) -> None:
        """In the next session `kill` fails as it does on another user's process."""
        (self.folder / "refuse").touch()


def key_pair(path: Path) -> str:
    """Writes a fresh private key to `path` and gives the public half as one line."""
    key = Ed25519PrivateKey.generate()
    kind = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if SSHD is None:
        pytest.fail("sshd is missing; on Debian install it with: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("sshd")
    port = free_port()
    host_key, user_key = key_pair(folder / "host_key"), key_pair(folder / "user_key")
    # The real command of every session is `sh -s`. On demand the session then kills the server process
    # that serves it: the work is done, and the acknowledgement never leaves the machine.
    (folder / "session.sh").write_text(
        f"if rm {folder}/drop 2>/dev/null; then sh -s >/dev/null 2>&1; kill -KILL $PPID; exit; fi\n"
        f"if rm {folder}/refuse 2>/dev/null; then\n"
        "  { echo 'kill() { echo kill: Operation not permitted >&2; return 1; }'; cat; } | sh -s\n"
        "else exec sh -s; fi\n"
    )
    (folder / "authorized_keys").write_text(f'command="exec sh {folder}/session.sh" {user_key}\n')
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server insists on it when run by root
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        await_port(port, process, folder / "log")
        address = RemoteHost(
            "127.0.0.1", getpass.getuser(), folder / "user_key", folder / "known_hosts", port=port, timeout_s=5
        )
        yield Server(folder, address)
    finally:
        process.terminate()
        process.wait(10)


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"sshd did not come up: {log.read_text()}")


@pytest.fixture
def injector(server: Server) -> Iterator[RemoteInjector]:
    with RemoteInjector(server.address) as remote:
        yield remote


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def spawn(run: str) -> Iterator[Spawn]:
    started: list[subprocess.Popen[bytes]] = []

    def start(token: str | None = None, main: str = EXECUTOR.main) -> object:
        arguments = [f"-Dfaultline.run={token or run}", main, "--executor-id", "0"]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield start  # type: ignore[misc]
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def only(run: str) -> ProcessIdentity:
    (found,) = find_victims(EXECUTOR, run)
    return found


@pytest.mark.parametrize("ticks_known", [True, False])
def test_a_checked_victim_is_killed_and_its_decoys_live(
    injector: RemoteInjector, spawn: Spawn, run: str, ticks_known: bool
) -> None:
    process = spawn()
    decoys = [spawn(token=f"{run}0"), spawn(token="20261121T061500Z-000000"), spawn(main="some.other.Main")]
    victim = only(run)
    if not ticks_known:
        victim = replace(victim, start_ticks=None)
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert settle(injector, victim, "kill", Delivery.SENT).outcome is Outcome.EFFECTIVE
    assert process.wait(5) == -signal.SIGKILL
    assert all(decoy.poll() is None for decoy in decoys)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("create_time", lambda victim: replace(victim, create_time=victim.create_time - 60)),
        ("create_time", lambda victim: replace(victim, start_ticks=victim.start_ticks - 1)),
        ("create_time", lambda victim: replace(victim, create_time=victim.create_time - 0.5, start_ticks=None)),
        ("token", lambda victim: replace(victim, token="20261121T061500Z-000000")),
        ("token", lambda victim: replace(victim, token=victim.token[:-1])),
        ("role", lambda victim: replace(victim, role=replace(EXECUTOR, main="some.other.Main"))),
    ],
)
def test_a_stranger_under_the_pid_is_refused_and_lives(
    injector: RemoteInjector,
    spawn: Spawn,
    run: str,
    part: str,
    change: Callable[[ProcessIdentity], ProcessIdentity],
) -> None:
    process = spawn()
    victim = change(only(run))
    assert injector.probe(victim) is Presence.OTHER
    with pytest.raises(IdentityMismatch) as caught:
        injector.signal(victim, signal.SIGKILL)
    assert caught.value.part == part
    assert process.poll() is None


def test_a_pause_is_seen_and_undone(injector: RemoteInjector, spawn: Spawn, run: str) -> None:
    spawn()
    victim = only(run)
    assert injector.signal(victim, signal.SIGSTOP) is Delivery.SENT
    assert settle(injector, victim, "pause", Delivery.SENT).outcome is Outcome.EFFECTIVE
    assert injector.signal(victim, signal.SIGCONT) is Delivery.SENT
    assert injector.probe(victim) is Presence.ALIVE


def test_a_lost_acknowledgement_is_unknown_until_a_probe_settles_it(
    server: Server, injector: RemoteInjector, spawn: Spawn, run: str
) -> None:
    process = spawn()
    victim = only(run)
    server.drop_next()
    assert injector.signal(victim, signal.SIGKILL) is Delivery.UNKNOWN
    with pytest.raises(UnsettledSignal) as caught:
        injector.signal(victim, signal.SIGKILL)
    assert caught.value.command == f"kill -s KILL {victim.pid}"
    settlement = settle(injector, victim, "kill", Delivery.UNKNOWN)
    assert settlement.outcome is Outcome.EFFECTIVE
    assert "not acknowledged" in settlement.detail
    assert process.wait(5) == -signal.SIGKILL
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE


def test_a_probe_that_loses_its_connection_is_a_typed_error(
    server: Server, injector: RemoteInjector, spawn: Spawn, run: str
) -> None:
    spawn()
    victim = only(run)
    server.drop_next()
    with pytest.raises(ConnectionLost) as caught:
        injector.probe(victim)
    assert (caught.value.host, caught.value.command) == ("127.0.0.1", f"probe {victim.pid}")
    assert injector.probe(victim) is Presence.ALIVE


def test_another_host_key_is_refused(server: Server, tmp_path: Path, run: str, spawn: Spawn) -> None:
    process = spawn()
    other = key_pair(tmp_path / "other")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{server.address.port} {other}\n")
    address = replace(server.address, known_hosts=tmp_path / "known_hosts")
    with RemoteInjector(address) as remote, pytest.raises(HostKeyRefused) as caught:
        remote.signal(only(run), signal.SIGKILL)
    assert caught.value.host == "127.0.0.1"
    assert process.poll() is None


def test_an_unknown_host_key_is_refused_and_not_learned(server: Server, tmp_path: Path, run: str, spawn: Spawn) -> None:
    spawn()
    (tmp_path / "known_hosts").touch()
    address = replace(server.address, known_hosts=tmp_path / "known_hosts")
    for _ in range(2):
        with RemoteInjector(address) as remote, pytest.raises(HostKeyRefused, match="known_hosts does not hold"):
            remote.probe(only(run))
    assert (tmp_path / "known_hosts").read_text() == ""


def test_a_key_that_the_host_does_not_know_is_refused(server: Server, tmp_path: Path, run: str, spawn: Spawn) -> None:
    spawn()
    key_pair(tmp_path / "stranger")
    address = replace(server.address, key_file=tmp_path / "stranger")
    with RemoteInjector(address) as remote, pytest.raises(AuthenticationRefused):
        remote.probe(only(run))


def test_a_dead_host_is_a_typed_error(server: Server, run: str, spawn: Spawn) -> None:
    process = spawn()
    address = replace(server.address, port=free_port())
    with RemoteInjector(address) as remote, pytest.raises(HostUnreachable) as caught:
        remote.signal(only(run), signal.SIGKILL)
    assert caught.value.host == "127.0.0.1"
    assert caught.value.command.startswith("kill -s KILL ")
    assert caught.value.status is None
    assert caught.value.stderr
    assert "\n" not in str(caught.value)
    assert process.poll() is None


def test_a_host_that_accepts_and_stays_silent_is_a_typed_error(server: Server, run: str, spawn: Spawn) -> None:
    spawn()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = replace(server.address, port=silent.getsockname()[1], timeout_s=0.3)
        with RemoteInjector(address) as remote, pytest.raises(HostUnreachable):
            remote.probe(only(run))


def test_a_signal_that_the_host_refuses_is_a_typed_error(
    server: Server, injector: RemoteInjector, spawn: Spawn, run: str
) -> None:
    process = spawn()
    victim = only(run)
    server.refuse_next()
    with pytest.raises(RemoteSignalRefused) as caught:
        injector.signal(victim, signal.SIGKILL)
    assert (caught.value.status, caught.value.stderr) == (77, "kill: Operation not permitted\n")
    assert process.poll() is None
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
