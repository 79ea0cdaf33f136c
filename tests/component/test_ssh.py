"""The SSH channel against a real server on loopback; the handler itself: tests/unit/fault/test_handler.py."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fault.cpu_busy import await_busy
from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    UnsettledSignal,
)
from fault.identity import EXECUTOR, KAFKA, WORKER, Delivery, Presence, ProcessIdentity, Tokens
from fault.injector import FaultOutcome, Injector, settle
from fault.registry import ALLOWED
from fault.remote_bootstrap import boot_command
from fault.ssh_connection import RemoteHost, SshChannel
from fault.victims import find_victims
from faultline.system.settings import free_port
from tests.support.needs import needed
from tests.support.processes import EVENT_S

PROGRAM = "import time; print('up', flush=True); time.sleep(900)"
Spawn = Callable[..., "subprocess.Popen[bytes]"]
SAY = """
import os, signal, sys
for line in iter(sys.stdin.buffer.readline, b""):
    if b"python" not in line:
        try:
            os.unlink("{drop}")
        except FileNotFoundError:
            pass
        else:
            os.kill(int(sys.argv[1]), signal.SIGKILL)
            break
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class Server:
    """Running server with its folder and address."""

    folder: Path
    address: RemoteHost

    def drop_next(self) -> None:
        """Kill the session after the next request, before its acknowledgement."""
        (self.folder / "drop").touch()


def key_pair(path: Path) -> str:
    """Write a new private key to `path` and return the public key as one line."""
    key = Ed25519PrivateKey.generate()
    kind = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sshd = needed("sshd")
    folder = tmp_path_factory.mktemp("sshd")
    port = free_port()
    host_key, user_key = key_pair(folder / "host_key"), key_pair(folder / "user_key")
    # The real forced command. On demand, its next output kills its server process: the work is done, but the
    # acknowledgement is lost.
    (folder / "say.py").write_text(SAY.format(drop=folder / "drop"))
    boot = boot_command(sys.executable)
    (folder / "session.sh").write_text(f"{boot} | {sys.executable} {folder}/say.py $PPID\n")
    (folder / "authorized_keys").write_text(f'restrict,command="exec sh {folder}/session.sh" {user_key}\n')
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
        "SetEnv": "SHLVL=1",  # and no .bashrc
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # required by a server that runs as root
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        await_port(port, process, folder / "log")
        address = RemoteHost(
            "127.0.0.1", getpass.getuser(), folder / "user_key", folder / "known_hosts", port=port, timeout_s=5
        )
        yield Server(folder, address)
    finally:
        process.terminate()
        process.wait(120)


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"sshd did not come up: {log.read_text()}")


@contextlib.contextmanager
def injector_at(address: RemoteHost) -> Iterator[Injector]:
    """Connect an injector to the host `node1` at this address."""
    with contextlib.closing(Injector({"node1": SshChannel(address)})) as made:
        yield made


@pytest.fixture
def injector(server: Server) -> Iterator[Injector]:
    with injector_at(server.address) as made:
        yield made


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def spawn(run: str) -> Iterator[Spawn]:
    started: list[subprocess.Popen[bytes]] = []

    def start(
        token: str | None = None, main: str = EXECUTOR.main, program: str = PROGRAM, mark: str = "-Dfaultline.run="
    ) -> object:
        options = {
            EXECUTOR.main: ("--executor-id", "0", "--worker-url", "spark://Worker@node1:7001"),
            WORKER.main: ("--host", "node1", "--port", "7001"),
        }
        arguments = [f"{mark}{token or run}", main, *options.get(main, ())]
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
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
    (found,) = find_victims("executor", Tokens(run))
    return replace(found, host="node1")


@pytest.mark.parametrize("ticks_known", [True, False])
def test_a_checked_victim_is_killed_and_its_decoys_live(
    injector: Injector, spawn: Spawn, run: str, ticks_known: bool
) -> None:
    process = spawn()
    decoys = [spawn(token=f"{run}0"), spawn(token="20261121T061500Z-000000"), spawn(main="some.other.Main")]
    victim = only(run)
    if not ticks_known:
        victim = replace(victim, start_ticks=None)
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert settle(injector, victim, Presence.GONE, Delivery.SENT).outcome is FaultOutcome.EFFECTIVE
    assert process.wait(120) == -signal.SIGKILL
    assert all(decoy.poll() is None for decoy in decoys)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE


def await_presence(injector: Injector, victim: ProcessIdentity, wanted: Presence) -> float:
    began = time.monotonic()
    while injector.probe(victim) is not wanted:
        assert time.monotonic() - began < EVENT_S
        time.sleep(0.05)
    return time.monotonic() - began


def test_a_paused_victim_is_continued_after_a_lost_connection(server: Server, spawn: Spawn, run: str) -> None:
    """The client does not reconnect; the watchdog started before the stop survives the connection."""
    spawn()
    victim = only(run)
    with injector_at(server.address) as remote:
        remote.start_watchdog(victim, 2.0)
        assert remote.signal(victim, signal.SIGSTOP) is Delivery.SENT
    with injector_at(server.address) as later:
        assert later.probe(victim) is Presence.STOPPED
        assert await_presence(later, victim, Presence.ALIVE) > 0.5


def test_a_lost_acknowledgement_is_unknown_until_a_probe_settles_it(
    server: Server, injector: Injector, spawn: Spawn, run: str
) -> None:
    process = spawn()
    victim = only(run)
    server.drop_next()
    assert injector.signal(victim, signal.SIGKILL) is Delivery.UNKNOWN
    with pytest.raises(UnsettledSignal) as caught:
        injector.signal(victim, signal.SIGKILL)
    assert caught.value.command == f"kill -s KILL {victim.pid}"
    settlement = settle(injector, victim, Presence.GONE, Delivery.UNKNOWN)
    assert settlement.outcome is FaultOutcome.EFFECTIVE
    assert "not acknowledged" in settlement.detail
    assert process.wait(120) == -signal.SIGKILL
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE


def test_a_probe_that_loses_its_connection_is_a_typed_error(
    server: Server, injector: Injector, spawn: Spawn, run: str
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
    with injector_at(address) as remote, pytest.raises(HostKeyRefused) as caught:
        remote.signal(only(run), signal.SIGKILL)
    assert caught.value.host == "127.0.0.1"
    assert process.poll() is None


def test_an_unknown_host_key_is_refused_and_not_learned(server: Server, tmp_path: Path, run: str, spawn: Spawn) -> None:
    spawn()
    (tmp_path / "known_hosts").touch()
    address = replace(server.address, known_hosts=tmp_path / "known_hosts")
    for _ in range(2):
        with injector_at(address) as remote, pytest.raises(HostKeyRefused, match="known_hosts"):
            remote.probe(only(run))
    assert (tmp_path / "known_hosts").read_text() == ""


def test_a_key_that_the_host_does_not_know_is_refused(server: Server, tmp_path: Path, run: str, spawn: Spawn) -> None:
    spawn()
    key_pair(tmp_path / "stranger")
    address = replace(server.address, key_file=tmp_path / "stranger")
    with injector_at(address) as remote, pytest.raises(AuthenticationRefused):
        remote.probe(only(run))


def test_a_dead_host_is_a_typed_error(server: Server, run: str, spawn: Spawn) -> None:
    process = spawn()
    address = replace(server.address, port=free_port())
    with injector_at(address) as remote, pytest.raises(HostUnreachable) as caught:
        remote.signal(only(run), signal.SIGKILL)
    assert caught.value.host == "127.0.0.1"
    assert caught.value.command.startswith("kill -s KILL ")
    assert caught.value.stderr
    assert "\n" not in str(caught.value)
    assert process.poll() is None


def test_a_host_that_accepts_and_stays_silent_is_a_typed_error(server: Server, run: str, spawn: Spawn) -> None:
    spawn()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = replace(server.address, port=silent.getsockname()[1], timeout_s=0.3)
        with injector_at(address) as remote, pytest.raises(HostUnreachable):
            remote.probe(only(run))


INSTANCE = "-Dfaultline.instance="


def test_remote_and_local_searches_find_the_same_victims(injector: Injector, spawn: Spawn, run: str) -> None:
    instance = uuid.uuid4().hex[:16]
    tokens = Tokens(run, instance)
    spawn(main=WORKER.main, token=instance, mark=INSTANCE)
    spawn(main=KAFKA.main, token=instance, mark=INSTANCE)
    spawn(main=KAFKA.main, token="0" * 16, mark=INSTANCE)
    spawn(main="faultline.engines.ground_truth", mark="faultline-run=")
    spawn(main="faultline.engines.ground_truth", token=f"{run}0", mark="faultline-run=")
    spawn()
    found = {}
    for word in ALLOWED:
        there = injector.find(word, tokens)
        here = Injector().find(word, tokens)
        assert all(one.host == ("" if word in ("driver", "kafka") else "node1") for one in there)
        assert [replace(one, host="", create_time=0.0) for one in there] == [
            replace(one, create_time=0.0) for one in here
        ]
        assert all(abs(a.create_time - b.create_time) < 0.02 for a, b in zip(there, here, strict=True))
        found[word] = len(there)
    assert found == {"executor": 1, "worker": 1, "driver": 1, "python_worker": 0, "kafka": 1, "any": 2}


def test_each_victim_is_hit_on_its_host(injector: Injector, spawn: Spawn, run: str) -> None:
    process = spawn()
    (victim,) = injector.find("executor", Tokens(run))
    assert victim.host == "node1"
    assert injector.find("driver", Tokens(run)) == ()
    assert set(injector.clock_offsets()) == {"node1"}
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert settle(injector, victim, Presence.GONE, Delivery.SENT).outcome is FaultOutcome.EFFECTIVE
    assert process.wait(120) == -signal.SIGKILL


def test_a_busy_remote_process_is_distinguished_from_an_idle_one(injector: Injector, spawn: Spawn, run: str) -> None:
    busy = spawn(program="print('up', flush=True)\nwhile True: pass")
    spawn()
    time.sleep(0.2)  # the idle one sleeps now
    candidates = injector.find("executor", Tokens(run))
    assert len(candidates) == 2
    until_ns = time.monotonic_ns() + round(EVENT_S * 1e9)
    assert [one.pid for one in await_busy(candidates, 1, until_ns, find_remote=injector.busy)] == [busy.pid]
    assert injector.busy([replace(one, start_ticks=1) for one in candidates]) == set()
    assert injector.busy([]) == set()


def test_the_clock_offset_to_the_same_clock_is_zero(injector: Injector) -> None:
    offset = injector.clock_offsets()["node1"]
    assert offset.round_trip_s > 0
    assert abs(offset.offset_s) <= offset.round_trip_s / 2 + 0.001


def test_finding_and_the_clock_have_typed_errors(server: Server, tmp_path: Path, run: str) -> None:
    tokens = Tokens(run)
    other = key_pair(tmp_path / "other")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{server.address.port} {other}\n")
    cases = (
        (replace(server.address, port=free_port()), HostUnreachable),
        (replace(server.address, known_hosts=tmp_path / "known_hosts"), HostKeyRefused),
    )
    for address, kind in cases:
        with injector_at(address) as remote:
            with pytest.raises(kind) as caught:
                remote.find("executor", tokens)
            assert (caught.value.host, caught.value.command) == ("127.0.0.1", "find executor")
            with pytest.raises(kind) as caught:
                remote.clock_offsets()
            assert caught.value.command == "read the clock"


def test_a_connection_that_breaks_while_finding_or_reading_the_clock(
    server: Server, injector: Injector, run: str
) -> None:
    for act in (lambda: injector.find("executor", Tokens(run)), injector.clock_offsets):
        server.drop_next()
        with pytest.raises(ConnectionLost):
            act()
        act()


def test_a_host_without_python_is_a_typed_error(server: Server, tmp_path: Path) -> None:
    """The account may run any command."""
    address = without_forced_command(server)
    with injector_at(replace(address, python="no-such-python")) as remote:
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"read the clock.*no-such-python"):
                remote.clock_offsets()
    with injector_at(replace(address, python=sys.executable)) as remote:
        assert remote.clock_offsets()["node1"].round_trip_s > 0


def without_forced_command(server: Server) -> RemoteHost:
    """Return the address with another key, which may run any command."""
    key = key_pair(server.folder / "free_key")
    with (server.folder / "authorized_keys").open("a") as keys:
        keys.write(f"{key}\n")
    return replace(server.address, key_file=server.folder / "free_key")


def test_a_forced_command_allows_nothing_but_the_agent(server: Server) -> None:
    client = paramiko.SSHClient()
    with contextlib.closing(client):
        client.load_host_keys(str(server.address.known_hosts))
        client.connect(
            "127.0.0.1", server.address.port, server.address.user, key_filename=str(server.address.key_file),
            allow_agent=False, look_for_keys=False,
        )  # fmt: skip
        stdin, stdout, _ = client.exec_command("echo free")
        stdin.close()
        assert stdout.read() == b""
