"""The remote injector without a network: the agent runs on this host, behind a connection that is made up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from fault import connection as connection_module
from fault.agent import Agent, form_of, victim_of
from fault.connection import RemoteHost
from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    IdentityMismatch,
    NobodyStandsBy,
    RemoteError,
    RemoteSignalRefused,
    SignalRefused,
    UnsettledSignal,
    VictimRefused,
)
from fault.identity import DRIVER, EXECUTOR, PYTHON_WORKER, ProcessIdentity, Tokens
from fault.injector import Delivery, Presence
from fault.procfs import read_process
from fault.remote import RemoteInjector
from fault.shipping import boot_command
from faultline.system.waiting import wait_until
from tests.support.decoys import NOBODY, decoy, only_root
from tests.support.processes import EVENT_S

RUN = f"20261121T061500Z-{uuid.uuid4().hex[:6]}"
SLEEPER = "import time; print('up', flush=True); time.sleep(900)"
SPINNER = "print('up', flush=True)\nwhile True: pass"


class Host:
    """What every connection made here leads to. `lost`: what becomes of the next answers in place of being read, after
    the agent gave them; `told`: what is read in their place."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lost: list[Exception | bytes] = []
        self.told: list[dict[str, Any]] = []
        self.refuses: Exception | None = None
        self.alive = True
        self.connected: list[dict[str, Any]] = []
        self.closed = 0
        self.keepalive_s = 0
        self.agents: list[subprocess.Popen[bytes]] = []

    @property
    def left(self) -> list[str]:
        """What agents keep there."""
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
        return io.BytesIO(b"said so")

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
        if self._host.told and b"python" not in line:
            return json.dumps({"n": json.loads(line)["n"], **self._host.told.pop(0)}).encode() + b"\n"
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

    monkeypatch.setattr(connection_module.paramiko, "SSHClient", Client)
    yield found
    for agent in found.agents:
        agent.kill()
        agent.wait()
        for stream in (agent.stdin, agent.stdout, agent.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def injector(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteInjector]:
    known, key = Path("known"), tmp_path_factory.mktemp("key") / "key"
    KEY.write_private_key_file(str(key))
    with RemoteInjector(
        RemoteHost("there", "me", key, known, port=2222, python=sys.executable, timeout_s=3.0)
    ) as found:
        yield found


Spawn = Callable[..., psutil.Process]
KEY = paramiko.RSAKey.generate(1024)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts processes that carry the arguments of an executor of RUN, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str = SLEEPER, token: str = RUN, number: int = 0) -> psutil.Process:
        options = ["--executor-id", str(number), "--worker-url", "spark://Worker@127.0.0.1:7001"]
        command = [sys.executable, "-c", program, f"-Dfaultline.run={token}", EXECUTOR.main, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def only(injector: RemoteInjector) -> ProcessIdentity:
    (found,) = injector.find("executor", Tokens(RUN))
    return found


def made_up(**values: Any) -> ProcessIdentity:
    # No pid of a machine is so high.
    return replace(ProcessIdentity(4_194_400, 1_000.0, EXECUTOR, RUN, (), 55, "there"), **values)


def test_a_connection_is_made_once_with_no_key_but_the_named_one(injector: RemoteInjector, host: Host) -> None:
    assert host.connected == []
    injector.arm(made_up())
    injector.arm(made_up())
    seconds = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), 3.0)
    how = {"port": 2222, "username": "me", "pkey": KEY, "allow_agent": False, "look_for_keys": False}
    assert host.connected == [{"host": "there", **how, **seconds}]
    assert (host.keepalive_s, host.closed, len(host.agents)) == (5, 0, 1)
    injector.close()
    assert host.closed == 1
    injector.close()
    assert host.closed == 1
    injector.arm(made_up())
    assert len(host.connected) == len(host.agents) == 2


def test_an_agent_keeps_a_folder_while_it_is_asked_and_then_nothing(injector: RemoteInjector, host: Host) -> None:
    injector.clock_offset()
    (folder,) = host.left
    assert (host.home / folder).stat().st_mode & 0o777 == 0o700
    injector.close()
    assert host.left == []


def test_the_next_agent_removes_what_a_killed_one_left_and_no_folder_of_one_that_lives(
    injector: RemoteInjector, host: Host, tmp_path: Path
) -> None:
    injector.clock_offset()
    host.agents[0].kill()
    host.agents[0].wait()
    (dead,) = host.left
    (tmp_path / "faultline-agent-link").symlink_to(tmp_path.parent)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConnectionLost):
        injector.clock_offset()
    with RemoteInjector(replace(injector._host)) as second:
        second.clock_offset()
        living = set(host.left)
        assert dead not in living and len(living) == 3
        injector.clock_offset()
        assert living < set(host.left)
    assert (tmp_path / "faultline-agent-link").is_symlink() and tmp_path.parent.exists()


def test_where_nothing_is_said_it_is_port_22_and_ten_seconds() -> None:
    plain = RemoteHost("there", "me", Path("key"), Path("known"))
    assert (plain.port, plain.python, plain.timeout_s, plain.keepalive_s) == (22, "python3", 10.0, 5)


def test_a_host_without_python_says_so_and_was_asked_nothing(injector: RemoteInjector, host: Host) -> None:
    with RemoteInjector(replace(injector._host, python="false")) as there:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Channel, "exec_command", lambda self, command: _run_false(self))
            with pytest.raises(RemoteError, match=r"probe.*said so"):
                there.probe(made_up())
    assert host.closed >= 1


def _run_false(channel: Channel) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    channel._agent = subprocess.Popen(["sh", "-c", "cat >/dev/null & exec >&-; exec 2>&-; wait"], **pipes)
    channel._host.agents.append(channel._agent)


def test_a_dead_connection_is_made_anew(injector: RemoteInjector, host: Host) -> None:
    injector.arm(made_up())
    host.alive = False
    with pytest.raises(ConnectionLost, match="not active"):
        injector.probe(made_up())
    assert len(host.connected) == 2 and host.closed == 2


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (paramiko.BadHostKeyException("there", KEY, KEY), HostKeyRefused),
        (paramiko.AuthenticationException("no"), AuthenticationRefused),
        (paramiko.PasswordRequiredException("no"), AuthenticationRefused),
        (paramiko.SSHException("no"), HostUnreachable),
        (OSError("no"), HostUnreachable),
        (EOFError(), HostUnreachable),
        (ZeroDivisionError("no"), ZeroDivisionError),
    ],
)  # fmt: skip
def test_what_keeps_from_connecting_has_a_type(
    injector: RemoteInjector, host: Host, refused: Exception, kind: type[Exception]
) -> None:
    host.refuses = refused
    with pytest.raises(kind) as caught:
        injector.arm(made_up())
    assert type(caught.value) is kind
    assert host.closed == 1


def test_an_executor_is_found_stopped_continued_and_killed(injector: RemoteInjector, spawn: Spawn) -> None:
    process = spawn(number=3)
    spawn(token=f"{RUN}0")
    victim = only(injector)
    assert (victim.pid, victim.number, victim.host) == (process.pid, 3, "there")
    assert victim.create_time == pytest.approx(process.create_time(), abs=0.02)
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGSTOP) is Delivery.SENT
    await_stopped(process.pid)
    assert injector.probe(victim) is Presence.STOPPED
    assert injector.signal(victim, signal.SIGCONT) is Delivery.SENT
    injector.arm(victim)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    psutil.wait_procs([process], timeout=120)
    assert injector.probe(victim) is Presence.GONE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE


def test_another_process_under_the_pid_is_told_by_what_differs(injector: RemoteInjector, spawn: Spawn) -> None:
    spawn()
    victim = only(injector)
    assert victim.start_ticks is not None
    by_wall_time = replace(victim, start_ticks=None)
    strangers = {
        "create_time": [
            replace(victim, start_ticks=victim.start_ticks + 1),
            replace(victim, create_time=victim.create_time + 2.1),
            replace(by_wall_time, create_time=victim.create_time + 0.05),
        ],
        "token": [replace(victim, token=f"{RUN}1")],
        "role": [replace(victim, role=DRIVER)],
    }
    for part, others in strangers.items():
        for other in others:
            assert injector.probe(other) is Presence.OTHER
            for act in (
                lambda other=other: injector.signal(other, signal.SIGKILL),
                lambda other=other: injector.arm(other),
            ):
                with pytest.raises(IdentityMismatch) as caught:
                    act()
                assert caught.value.part == part
    # What the kernel's clocks differ by is no other process.
    near = [replace(victim, create_time=victim.create_time + 1.9), by_wall_time]
    assert [injector.probe(other) for other in near] == [Presence.ALIVE] * 2


def test_an_agent_does_not_signal_itself_nor_whoever_started_it(injector: RemoteInjector, host: Host) -> None:
    injector.clock_offset()
    for pid in (host.agents[0].pid, os.getpid()):
        live = read_process(pid)
        assert live is not None
        own = made_up(pid=pid, create_time=live.create_time, start_ticks=live.start_ticks)
        for act in (lambda own=own: injector.signal(own, signal.SIGKILL), lambda own=own: injector.arm(own)):
            with pytest.raises(IdentityMismatch, match="an ancestor of it") as caught:
                act()
            assert caught.value.part == "pid"
    assert host.agents[0].poll() is None


@only_root
def test_another_users_look_alike_is_never_found_nor_hit(injector: RemoteInjector, spawn: Spawn) -> None:
    """It shows all that an executor of this run shows."""
    ours = spawn()
    alike = ("--executor-id", "0", "--worker-url", "spark://Worker@127.0.0.1:7001")
    with decoy(f"-Dfaultline.run={RUN}", EXECUTOR.main, *alike, user=NOBODY) as planted:
        victim = only(injector)
        assert victim.pid == ours.pid
        live = read_process(planted.pid)
        assert live is not None
        claimed = replace(victim, pid=planted.pid, create_time=live.create_time, start_ticks=live.start_ticks)
        assert injector.probe(claimed) is Presence.OTHER
        for act in (lambda: injector.signal(claimed, signal.SIGKILL), lambda: injector.stand_by(claimed, 5.0)):
            with pytest.raises(IdentityMismatch, match="belongs to another user") as caught:
                act()
            assert caught.value.part == "user"


# How long a dead man over there waits: long enough that a stop and a look at it fit on a machine with a load of 30.
PATIENCE_S = 5.0


def stopped(pid: int) -> bool:
    live = read_process(pid)
    return live is not None and live.stopped


def await_stopped(pid: int) -> None:
    """A signal that is sent has its effect when the process gets a core."""
    wait_until(lambda: stopped(pid), timeout_s=EVENT_S, every_s=0.005, what="the stop")


def await_running(pid: int) -> float:
    began = time.monotonic()
    while stopped(pid):
        assert time.monotonic() - began < EVENT_S
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_dead_man_over_there_continues_the_victim_unless_he_is_released(
    injector: RemoteInjector, spawn: Spawn
) -> None:
    process = spawn()
    victim = only(injector)
    injector.stand_down(victim)
    injector.stand_by(victim, PATIENCE_S)
    injector.stand_by(victim, 60.0)  # one who is there is enough
    assert injector.signal(victim, signal.SIGSTOP) is Delivery.SENT
    await_stopped(process.pid)
    await_running(process.pid)
    injector.stand_down(victim)
    injector.stand_by(victim, PATIENCE_S)
    injector.signal(victim, signal.SIGSTOP)
    injector.stand_down(victim)
    time.sleep(PATIENCE_S + 0.5)
    assert stopped(process.pid)
    injector.signal(victim, signal.SIGCONT)


def test_a_dead_man_over_there_stays_when_connection_and_agent_are_gone(
    injector: RemoteInjector, host: Host, spawn: Spawn
) -> None:
    process = spawn()
    victim = only(injector)
    injector.stand_by(victim, PATIENCE_S)
    injector.signal(victim, signal.SIGSTOP)
    host.agents[0].kill()
    # The end of the agent continues nobody: his time does.
    await_stopped(process.pid)
    await_running(process.pid)


def test_one_that_works_is_told_from_one_that_sleeps(injector: RemoteInjector, host: Host, spawn: Spawn) -> None:
    assert injector.busy([]) == set() and host.connected == []
    spawn(number=1)
    spinning = spawn(SPINNER, number=2)
    candidates = injector.find("executor", Tokens(RUN))
    assert len(candidates) == 2
    until = time.monotonic() + 120
    while not (busy := injector.busy(candidates)) and time.monotonic() < until:
        pass
    assert {one.pid for one in busy} == {spinning.pid}
    assert injector.busy([replace(one, start_ticks=1) for one in candidates]) == set()


def test_a_lost_word_leaves_a_signal_unknown_until_a_probe_answers(injector: RemoteInjector, host: Host) -> None:
    for lost in (b"", b'{"n": 2', b'{"n": 0, "value": "sent"}\n', OSError("broke"), EOFError(), TimeoutError()):
        host.lost = [lost]
        assert injector.signal(made_up(), signal.SIGKILL) is Delivery.UNKNOWN
        agents = len(host.agents)
        with pytest.raises(UnsettledSignal):
            injector.signal(made_up(), signal.SIGKILL)
        assert len(host.agents) == agents, "nothing was asked"
        assert injector.signal(made_up(pid=4_194_401), signal.SIGKILL) is Delivery.GONE, "another victim"
        host.lost = [OSError("broke")]
        with pytest.raises(ConnectionLost):
            injector.probe(made_up())
        with pytest.raises(UnsettledSignal):
            injector.signal(made_up(), signal.SIGKILL)
        assert injector.probe(made_up()) is Presence.GONE
        assert injector.signal(made_up(), signal.SIGKILL) is Delivery.GONE


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"kind": "SignalRefused", "said": "pid: no"}, RemoteSignalRefused, "there: the signal is refused.*pid: no"),
        ({"kind": "VictimRefused", "said": "pid: no"}, VictimRefused, "^pid: no$"),
        ({"kind": "NobodyStandsBy", "said": "no shell"}, NobodyStandsBy, "^there: no shell"),
        ({"kind": "KeyError", "said": "KeyError: 'x'"}, RemoteError, "kill -s TERM 4194400: KeyError"),
        ({"kind": "IdentityMismatch", "said": "", "pid": 7, "part": "role", "detail": "is none"}, IdentityMismatch,
         "role: process 7 is refused: is none"),
    ],
)  # fmt: skip
def test_what_an_agent_refuses_is_an_error_of_that_host(
    injector: RemoteInjector, host: Host, told: dict[str, Any], kind: type[Exception], words: str
) -> None:
    host.told = [{"error": told}]
    with pytest.raises(kind, match=words) as caught:
        injector.signal(made_up(), signal.SIGTERM)
    assert type(caught.value) is kind


def test_an_agent_tells_every_error_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        error: Exception = SignalRefused("pid: SIGTERM is refused")

        def probe(self, victim: ProcessIdentity) -> Presence:
            raise self.error

    refusing = Refusing()
    agent = Agent(refusing)  # type: ignore[arg-type]
    asked = {"n": 3, "do": "probe", "victim": form_of(made_up())}
    for error, kind in (
        (SignalRefused("x"), "SignalRefused"), (VictimRefused("x"), "VictimRefused"), (OSError("x"), "OSError"),
        (NobodyStandsBy("x"), "NobodyStandsBy"), (IdentityMismatch(7, "role", "y"), "IdentityMismatch"),
    ):  # fmt: skip
        refusing.error = error
        answer = agent.answer(asked)
        assert (answer["n"], answer["error"]["kind"]) == (3, kind)
    assert agent.answer({"n": 4, "do": "dance"})["error"]["kind"] == "KeyError"
    assert agent.answer({"do": "clock"})["error"]["kind"] == "KeyError"


def test_a_victim_comes_back_as_it_went() -> None:
    for one in (
        made_up(),
        made_up(role=PYTHON_WORKER, node="a:1", command=("x", "é\udc80")),
        made_up(start_ticks=None),
    ):
        assert victim_of(json.loads(json.dumps(form_of(one))), "there") == one


def test_the_offset_of_the_clocks_is_that_of_the_shortest_round_trip(injector: RemoteInjector, host: Host) -> None:
    found = injector.clock_offset()
    assert abs(found.offset_s) <= found.round_trip_s / 2 + 0.001 and found.round_trip_s > 0
    said = time.time_ns() + 10**9
    host.told = [{"value": said + 10**10}, {"value": said}, {"value": said - 10**10}]
    seen = injector.clock_offset(samples=3)
    assert min(abs(seen.offset_s - by) for by in (1, 11, -9)) < 4
    host.lost = [EOFError()]
    with pytest.raises(ConnectionLost, match="read the clock"):
        injector.clock_offset()
