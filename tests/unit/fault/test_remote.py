"""The remote injector without a network: its programs run in a shell of this host, its connection is made up."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from fault import remote as remote_module
from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    IdentityMismatch,
    RemoteError,
    RemoteSignalRefused,
    UnsettledSignal,
)
from fault.identity import DRIVER, EXECUTOR, ProcessIdentity, Tokens
from fault.injector import Delivery, Presence
from fault.remote import RemoteHost, RemoteInjector
from fault.remote_shell import RELEASE, act_program, parse_survey, parse_watch, watch_program
from fault.victims import read_process
from faultline.base.waiting import wait_until
from tests.support.decoys import NOBODY, decoy, only_root

RUN = f"20261121T061500Z-{uuid.uuid4().hex[:6]}"
SLEEPER = "import time; print('up', flush=True); time.sleep(120)"
SPINNER = "print('up', flush=True)\nwhile True: pass"


class Host:
    """What every connection made here leads to. `answers`: said instead of running the next programs."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int] | Exception] = []
        self.refuses: Exception | None = None
        self.alive = True
        self.connected: list[dict[str, Any]] = []
        self.closed = 0
        self.sent: list[str] = []
        self.keepalive_s = 0
        self.standing: list[subprocess.Popen[bytes]] = []


class Channel:
    """`exec sh -s` on this host, or what was planned to be answered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._program = b""
        self.exit_status = -1
        self.status_event = threading.Event()
        self.closed = False

    def settimeout(self, seconds: float) -> None:
        assert seconds == 3.0

    def exec_command(self, command: str) -> None:
        assert command == "exec sh -s"

    def sendall(self, data: bytes) -> None:
        if data == RELEASE.encode():
            self._host.standing[-1].communicate(data, timeout=20)
        self._program += data
        self._host.sent.append(data.decode())

    def stand(self) -> subprocess.Popen[bytes]:
        """A program that talks while it runs, and is not over with its input."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        shell = subprocess.Popen(["sh", "-s"], **pipes, start_new_session=True)
        assert shell.stdin is not None
        shell.stdin.write(self._program)
        shell.stdin.flush()
        self._host.standing.append(shell)
        return shell

    def exit_status_ready(self) -> bool:
        return self._host.standing[-1].poll() is not None

    def shutdown_write(self) -> None:
        if self._host.answers:
            answer = self._host.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            self._out, self._err, self.exit_status = answer[0].encode(), b"said so", answer[1]
        else:
            done = subprocess.run(["sh", "-s"], input=self._program, capture_output=True, check=False, timeout=60)
            self._out, self._err, self.exit_status = done.stdout, done.stderr, done.returncode
        self.status_event.set()

    def makefile(self, mode: str) -> Any:
        if self.status_event.is_set():
            return io.BytesIO(self._out)
        if b"stand_by " in self._program:
            return io.BytesIO(self._host.answers.pop(0)[0].encode()) if self._host.answers else self.stand().stdout
        return Clock(self._host)

    def makefile_stderr(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._err)

    def close(self) -> None:
        self.closed = True


class Clock:
    """Answers each question for the time."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def readline(self) -> bytes:
        if self._host.answers:
            answer = self._host.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            time.sleep(answer[1] / 1000)
            return answer[0].encode()
        return f"{time.time_ns() + 5_000_000_000}\n".encode()


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
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    found = Host()

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

    monkeypatch.setattr(remote_module.paramiko, "SSHClient", Client)
    yield found
    for shell in found.standing:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        for stream in (shell.stdin, shell.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def injector(host: Host) -> RemoteInjector:
    return RemoteInjector(RemoteHost("there", "me", Path("key"), Path("known"), port=2222, timeout_s=3.0))


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
    return replace(ProcessIdentity(4_000, 1_000.0, EXECUTOR, RUN, (), 55, "there"), **values)


def test_a_connection_is_made_once_with_no_key_but_the_named_one(injector: RemoteInjector, host: Host) -> None:
    assert host.connected == []
    injector.arm(made_up())
    injector.arm(made_up())
    seconds = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), 3.0)
    how = {"port": 2222, "username": "me", "key_filename": "key", "allow_agent": False, "look_for_keys": False}
    assert host.connected == [{"host": "there", **how, **seconds}]
    assert (host.keepalive_s, host.closed) == (5, 0)
    with injector:
        pass
    assert host.closed == 1
    injector.close()
    assert host.closed == 1
    injector.arm(made_up())
    assert len(host.connected) == 2


def test_where_nothing_is_said_it_is_port_22_and_ten_seconds() -> None:
    plain = RemoteHost("there", "me", Path("key"), Path("known"))
    assert (plain.port, plain.timeout_s, plain.keepalive_s) == (22, 10.0, 5)


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
    assert injector.probe(victim) is Presence.STOPPED
    assert injector.signal(victim, signal.SIGCONT) is Delivery.SENT
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    psutil.wait_procs([process], timeout=10)
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
            with pytest.raises(IdentityMismatch) as caught:
                injector.signal(other, signal.SIGKILL)
            assert caught.value.part == part
    # What the kernel's clocks differ by is no other process.
    near = [replace(victim, create_time=victim.create_time + 1.9), by_wall_time]
    assert [injector.probe(other) for other in near] == [Presence.ALIVE] * 2


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
    wait_until(lambda: stopped(pid), timeout_s=PATIENCE_S, every_s=0.005, what="the stop")


def await_running(pid: int) -> float:
    began = time.monotonic()
    while stopped(pid):
        assert time.monotonic() - began < 30
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_dead_man_over_there_continues_the_victim_unless_he_is_released(
    injector: RemoteInjector, host: Host, spawn: Spawn
) -> None:
    process = spawn()
    victim = only(injector)
    injector.stand_down(victim)
    injector.stand_by(victim, PATIENCE_S)
    injector.stand_by(victim, 60.0)
    assert len(host.standing) == 1, "one who is there is enough"
    assert injector.signal(victim, signal.SIGSTOP) is Delivery.SENT
    await_stopped(process.pid)
    await_running(process.pid)
    injector.stand_down(victim)
    assert host.standing[0].returncode == 0
    injector.stand_by(victim, PATIENCE_S)
    injector.signal(victim, signal.SIGSTOP)
    injector.stand_down(victim)
    time.sleep(PATIENCE_S + 0.5)
    assert stopped(process.pid)
    injector.signal(victim, signal.SIGCONT)


def test_a_dead_man_over_there_stays_when_the_connection_breaks_and_another_is_posted_before_a_stop(
    injector: RemoteInjector, host: Host, spawn: Spawn
) -> None:
    process = spawn()
    victim = only(injector)
    injector.stand_by(victim, PATIENCE_S)
    injector.signal(victim, signal.SIGSTOP)
    first = host.standing[0]
    assert first.stdin is not None
    first.stdin.close()
    # The end of the connection continues nobody: his time does.
    await_stopped(process.pid)
    await_running(process.pid)
    first.wait(20)
    injector.stand_by(victim, 60.0)
    assert len(host.standing) == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("", RemoteError), ("noise\n", RemoteError), ("faultline mismatch token it has\n", IdentityMismatch)],
)
def test_where_nobody_stands_the_victim_is_not_to_be_stopped(
    injector: RemoteInjector, host: Host, answer: str, kind: type[Exception]
) -> None:
    host.answers = [(answer, 0)]
    with pytest.raises(kind) as caught:
        injector.stand_by(made_up(), 5.0)
    assert type(caught.value) is kind
    host.answers = [("faultline gone\n", 0)]
    injector.stand_by(made_up(), 5.0)
    injector.stand_down(made_up())
    host.alive = False
    with pytest.raises(ConnectionLost):
        injector.stand_by(made_up(), 5.0)


def test_one_that_works_is_told_from_one_that_sleeps(injector: RemoteInjector, host: Host, spawn: Spawn) -> None:
    assert injector.busy([]) == set() and host.connected == []
    spawn(number=1)
    spinning = spawn(SPINNER, number=2)
    candidates = injector.find("executor", Tokens(RUN))
    assert len(candidates) == 2
    until = time.monotonic() + 30
    while not (busy := injector.busy(candidates)) and time.monotonic() < until:
        pass
    assert {one.pid for one in busy} == {spinning.pid}


def test_a_lost_word_leaves_a_signal_unknown_until_a_probe_answers(injector: RemoteInjector, host: Host) -> None:
    for lost in (("", 0), ("", -1), OSError("broke"), EOFError(), paramiko.SSHException("broke")):
        host.answers = [lost]
        assert injector.signal(made_up(), signal.SIGKILL) is Delivery.UNKNOWN
        sent = len(host.sent)
        with pytest.raises(UnsettledSignal):
            injector.signal(made_up(), signal.SIGKILL)
        assert len(host.sent) == sent
        assert injector.signal(made_up(pid=4_194_400, start_ticks=1), signal.SIGKILL) is Delivery.GONE, "another victim"
        host.answers = [("faultline alive\n", 0)]
        assert injector.probe(made_up()) is Presence.ALIVE


def test_a_program_that_failed_is_an_error_and_nothing_stays_open(injector: RemoteInjector, host: Host) -> None:
    host.answers = [
        ("", 77),
        ("", 78),
        ("noise\nfaultline mismatch token it has\nfaultline mismatch role is none\n", 0),
    ]
    with pytest.raises(RemoteSignalRefused, match="said so"):
        injector.signal(made_up(), signal.SIGTERM)
    with pytest.raises(RemoteError, match="kill -s TERM 4000"):
        injector.signal(made_up(), signal.SIGTERM)
    with pytest.raises(IdentityMismatch, match="is none") as caught:
        injector.signal(made_up(), signal.SIGTERM)
    assert caught.value.part == "role", "the last word counts"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(("faultline alive\n", -1), ConnectionLost), (("faultline alive\n", 1), RemoteError), (("", 0), RemoteError),
     (("noise\n", 0), RemoteError), (OSError("broke"), ConnectionLost), (EOFError(), ConnectionLost)],
)  # fmt: skip
def test_a_look_that_says_nothing_whole_is_an_error(
    injector: RemoteInjector, host: Host, answer: Any, kind: type[Exception]
) -> None:
    host.answers = [answer]
    with pytest.raises(RemoteError) as caught:
        injector.probe(made_up())
    assert type(caught.value) is kind


def test_a_survey_that_was_cut_off_is_an_error(injector: RemoteInjector, host: Host) -> None:
    host.answers = [("faultline clock 100 1000 7\n", 0)]
    with pytest.raises(RemoteError, match="find executor.*not complete"):
        injector.find("executor", Tokens(RUN))


def test_the_offset_of_the_clocks_is_that_of_the_shortest_round_trip(injector: RemoteInjector, host: Host) -> None:
    found = injector.clock_offset()
    assert found.offset_s == pytest.approx(5, abs=0.2) and 0 < found.round_trip_s < 0.5
    assert len(host.sent) == 5
    said = time.time_ns() + 10**9
    host.answers = [(f"{said + 10**10}\n", 80), (f"{said}\n", 0), (f"{said - 10**10}\n", 80)]
    best = injector.clock_offset(samples=3)
    assert best.offset_s == pytest.approx(1, abs=0.4) and best.round_trip_s < 0.08
    host.answers = [(f"{time.time_ns() + 10**9}\n", 400)]
    (slow,) = [injector.clock_offset(samples=1)]
    assert slow.round_trip_s == pytest.approx(0.4, abs=0.15)
    assert slow.offset_s == pytest.approx(1 - slow.round_trip_s / 2, abs=0.02)


def test_no_time_is_an_error(injector: RemoteInjector, host: Host) -> None:
    for answer in ("1795241700N\n", "1795241700\n"):
        host.answers = [(answer, 0)]
        with pytest.raises(RemoteError, match="no time in ns"):
            injector.clock_offset()
    for lost in (("\n", 0), OSError("broke"), EOFError(), paramiko.SSHException("broke")):
        host.answers = [lost]
        with pytest.raises(ConnectionLost):
            injector.clock_offset()


# --- what the programs say


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_used_time_is_the_growth_between_both_looks() -> None:
    said = "first 7 100\nfirst 8 50\nfirst 9 -\nsecond 7 350\nsecond 8 -\nsecond 9 10\nsecond 10 5\nend"
    assert parse_watch(words(said)) == {7: 250}


def test_only_those_with_known_ticks_are_watched() -> None:
    program = watch_program([made_up(), made_up(pid=4_001, start_ticks=None)])
    assert program.endswith("watch 4000:55\n")


def test_an_act_carries_what_must_agree() -> None:
    known = act_program(made_up(create_time=12.345), "KILL").splitlines()[-1].split()
    assert known[:5] == ["act", "4000", "55", "1234", "200"]
    assert known[-1] == "KILL"
    assert act_program(made_up(create_time=12.345, start_ticks=None), "probe").splitlines()[-1].split()[2:5] == [
        "-", "1234", "2"
    ]  # fmt: skip


def test_a_survey_makes_processes_their_parents_and_the_line_of_the_shell() -> None:
    java = b"java\0-x y\0Main\0".hex()
    said = f"""clock 100 1000 7
stat 1 S 0 3
stat 5 S 1 40
stat 7 R 5 50
stat 20 T 1 250
stat 21 S 20 300
stat 22 Z 1 300
command 20 {java}
command 21 {java}
command 22 {java}
command 99 {java}
end"""
    seen = parse_survey(words(said), "there")
    assert seen.host == "there"
    assert seen.parents == {1: 0, 5: 1, 7: 5, 20: 1, 21: 20, 22: 1}
    assert seen.protected == {7, 5}
    assert sorted(seen.processes) == [20, 21], "neither a zombie nor one that ended meanwhile"
    stopped, running = seen.processes[20], seen.processes[21]
    assert (stopped.create_time, stopped.start_ticks, stopped.stopped) == (1_002.5, 250, True)
    assert (running.parent_pid, running.create_time, running.stopped) == (20, 1_003.0, False)
    assert running.command == ("java", "-x y", "Main")


@pytest.mark.parametrize("left_out", ["clock", "end"])
def test_a_survey_without_its_clock_or_its_end_is_none(left_out: str) -> None:
    said = [line for line in words("clock 100 1000 7\nstat 1 S 0 3\nend") if line[0] != left_out]
    with pytest.raises(ValueError, match="not complete"):
        parse_survey(said, "there")
