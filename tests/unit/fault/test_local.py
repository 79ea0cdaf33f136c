"""The local injector on real processes: what it hits, and above all what it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fault import injector as injector_module
from fault import local, remote_shell
from fault.errors import IdentityMismatch, NobodyStandsBy, RemoteError, SignalRefused
from fault.identity import EXECUTOR, PYTHON_WORKER, WORKER, LiveProcess, ProcessIdentity, Tokens
from fault.injector import Delivery, Outcome, Presence, executors_on, settle
from fault.local import LocalInjector
from fault.post import Post
from fault.registry import ACTIONS
from fault.signals import Signals
from fault.undo import UndoStack
from fault.victims import find_victims, read_process
from tests.support.decoys import NOBODY, decoy, only_root

PROGRAM = "import sys, time; print('up', flush=True); time.sleep(120)"
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def spawn(run: str) -> Iterator[Spawn]:
    """Starts sleepers that carry the arguments of an executor, and ends those that are left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        token: str | None = None,
        main: str = EXECUTOR.main,
        number: int = 0,
        program: str = PROGRAM,
        mark: str = "-Dfaultline.run=",
        node: str = "127.0.0.1:7001",
    ) -> object:
        host, port = node.split(":")
        options = {
            EXECUTOR.main: ["--executor-id", str(number), "--worker-url", f"spark://Worker@{node}"],
            WORKER.main: ["--host", host, "--port", port],
        }
        arguments = [f"{mark}{token or run}", main, *options.get(main, [])]
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield start  # type: ignore[misc]
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def only(run: str) -> ProcessIdentity:
    (found,) = find_victims("executor", Tokens(run))
    return found


def test_finding_sees_the_run_and_nothing_else(spawn: Spawn, run: str) -> None:
    wanted = [spawn(number=1), spawn(number=0)]
    spawn(token=f"{run}0")
    spawn(token="20261121T061500Z-000000")
    spawn(main="org.apache.spark.deploy.worker.Worker")
    found = find_victims("executor", Tokens(run))
    assert [victim.pid for victim in found] == [wanted[1].pid, wanted[0].pid]
    assert all(victim.start_ticks is not None for victim in found)


def test_a_child_that_still_shows_its_parents_command_line_is_not_found(spawn: Spawn, run: str) -> None:
    program = "import os, time\nif os.fork():\n    print('up', flush=True)\ntime.sleep(120)"
    parent = spawn(program=program)
    (child,) = psutil.Process(parent.pid).children()
    try:
        assert [victim.pid for victim in find_victims("executor", Tokens(run))] == [parent.pid]
    finally:
        child.kill()


def test_services_are_found_by_their_own_token_and_workers_by_whom_they_host(spawn: Spawn, run: str) -> None:
    instance = uuid.uuid4().hex[:16]
    services = {"mark": "-Dfaultline.instance=", "token": instance}
    hosting = spawn(main=WORKER.main, node="127.0.0.1:7001", **services)
    spawn(main=WORKER.main, node="127.0.0.1:7002", **services)
    spawn(main=WORKER.main, node="127.0.0.1:7001", mark="-Dfaultline.instance=", token="0" * 16)
    broker = spawn(main="kafka.Kafka", **services)
    executors = [spawn(number=3), spawn(number=1)]
    tokens, injector = Tokens(run, instance), LocalInjector()
    assert [one.pid for one in injector.find("worker", tokens)] == [hosting.pid]
    assert [one.pid for one in injector.find("kafka", tokens)] == [broker.pid]
    assert {one.pid for one in injector.find("any", tokens)} == {hosting.pid, *(one.pid for one in executors)}
    assert executors_on(injector, "127.0.0.1:7001", tokens) == [1, 3]
    assert executors_on(injector, None, tokens) == []


# What an executor does: it starts a first process, which forks one for each task and lives on.
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(2):
    if os.fork() == 0:
        break
else:
    print("up", flush=True)
time.sleep(120)
"""
PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DAEMON!r}, "-m", "pyspark.daemon"])
time.sleep(120)
"""


@pytest.fixture
def tree(spawn: Spawn) -> Iterator[Callable[..., list[int]]]:
    """Starts an executor with a first Python process and its two workers; gives the four pids in that order."""
    pids: list[int] = []

    def start(**options: str) -> list[int]:
        executor = psutil.Process(spawn(program=PARENT, **options).pid)
        (daemon,) = executor.children()
        workers = sorted(worker.pid for worker in daemon.children())
        assert len(workers) == 2
        made = [executor.pid, daemon.pid, *workers]
        pids.extend(made)
        return made

    yield start
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_python_workers_are_found_by_their_executor_and_killed_one_by_one(
    tree: Callable[..., list[int]], run: str
) -> None:
    executor, daemon, *workers = tree()
    other = tree(token="20261121T061500Z-000000")
    injector = LocalInjector()
    found = injector.find("python_worker", Tokens(run))
    assert sorted(one.pid for one in found) == workers
    assert {one.node for one in found} == {"127.0.0.1:7001"}
    victim, spared = found
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert settle(injector, victim, Presence.GONE, Delivery.SENT).outcome is Outcome.EFFECTIVE
    assert all(psutil.pid_exists(pid) for pid in (executor, daemon, spared.pid, *other))
    assert injector.find("python_worker", Tokens(run)) == (spared,)
    for pid, part in ((daemon, "create_time"), (other[2], "create_time")):
        with pytest.raises(IdentityMismatch, match=f"^{part}"):
            injector.signal(replace(spared, pid=pid), signal.SIGKILL)
    for pid, part in ((daemon, "role"), (other[2], "token")):
        live = read_process(pid)
        assert live is not None
        claimed = replace(spared, pid=pid, create_time=live.create_time, start_ticks=live.start_ticks)
        with pytest.raises(IdentityMismatch, match=f"^{part}"):
            injector.signal(claimed, signal.SIGKILL)


def test_a_paused_python_worker_is_healed_also_when_its_executor_has_died(
    tree: Callable[..., list[int]], run: str
) -> None:
    executor, daemon, *_ = tree()
    injector = LocalInjector()
    victim = injector.find("python_worker", Tokens(run))[0]
    assert (
        settle(injector, victim, Presence.STOPPED, injector.signal(victim, signal.SIGSTOP)).outcome is Outcome.EFFECTIVE
    )
    for pid in (executor, daemon):
        os.kill(pid, signal.SIGKILL)
    await_orphan(victim)
    assert injector.find("python_worker", Tokens(run)) == ()
    with pytest.raises(IdentityMismatch, match="^role"):
        injector.signal(victim, signal.SIGKILL)
    assert injector.probe(victim) is Presence.STOPPED
    assert injector.signal(victim, signal.SIGCONT) is Delivery.SENT
    assert injector.probe(victim) is Presence.ALIVE


def await_orphan(victim: ProcessIdentity) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        live = read_process(victim.pid)
        parent = None if live is None else read_process(live.parent_pid)
        if parent is None or PYTHON_WORKER.main not in parent.command:
            return
        time.sleep(0.01)
    pytest.fail("the worker kept its parent")


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_kill_is_effective_and_spares_the_decoys(
    spawn: Spawn, run: str, pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    injector = LocalInjector()
    decoys = [spawn(token="20261121T061500Z-000000"), spawn(token=f"{run}0"), spawn(main="some.other.Main")]
    process = spawn()
    victim = only(run)
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    settlement = settle(injector, victim, Presence.GONE, Delivery.SENT)
    assert settlement.outcome is Outcome.EFFECTIVE, settlement.detail
    assert process.wait(5) == -signal.SIGKILL
    assert all(decoy.poll() is None for decoy in decoys)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("create_time", lambda victim: replace(victim, create_time=victim.create_time - 60)),
        ("create_time", lambda victim: replace(victim, start_ticks=victim.start_ticks - 1)),
        ("create_time", lambda victim: replace(victim, create_time=victim.create_time - 0.5, start_ticks=None)),
        ("token", lambda victim: replace(victim, token="20261121T061500Z-000000")),
        ("role", lambda victim: replace(victim, role=replace(EXECUTOR, mains=("some.other.Main",)))),
    ],
)
def test_a_stranger_under_the_pid_is_refused_and_lives(
    spawn: Spawn, run: str, part: str, change: Callable[[ProcessIdentity], ProcessIdentity]
) -> None:
    process = spawn()
    victim = change(only(run))
    injector = LocalInjector()
    assert injector.probe(victim) is Presence.OTHER
    with pytest.raises(IdentityMismatch) as caught:
        injector.signal(victim, signal.SIGKILL)
    assert caught.value.part == part
    assert process.poll() is None


def test_what_is_gone_already_has_no_effect(spawn: Spawn, run: str) -> None:
    process = spawn()
    victim = only(run)
    process.kill()
    injector = LocalInjector()
    # Not yet waited for, it is a zombie; afterwards its pid is free.
    for _ in range(2):
        deadline = time.monotonic() + 5
        while injector.probe(victim) is not Presence.GONE and time.monotonic() < deadline:
            time.sleep(0.005)
        delivery = injector.signal(victim, signal.SIGKILL)
        assert delivery is Delivery.GONE
        assert settle(injector, victim, Presence.GONE, delivery).outcome is Outcome.NO_EFFECT
        process.wait(5)
    assert read_process(victim.pid) is None


def test_a_survivor_is_no_effect(spawn: Spawn, run: str) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    spawn(program=program)
    injector = LocalInjector()
    victim = only(run)
    delivery = injector.signal(victim, signal.SIGTERM)
    settlement = settle(injector, victim, Presence.GONE, delivery, within_s=0.1)
    assert settlement.outcome is Outcome.NO_EFFECT
    assert "still alive" in settlement.detail


def test_a_pause_stops_and_its_undo_continues(spawn: Spawn, run: str) -> None:
    spawn()
    injector = LocalInjector()
    victim = only(run)
    undo = UndoStack()
    undo.register("SIGCONT", lambda: None if injector.signal(victim, signal.SIGCONT) else None)
    assert (
        settle(injector, victim, Presence.STOPPED, injector.signal(victim, signal.SIGSTOP)).outcome is Outcome.EFFECTIVE
    )
    assert injector.probe(victim) is Presence.STOPPED
    assert undo.run() == [("SIGCONT", None)]
    assert injector.probe(victim) is Presence.ALIVE


def test_an_armed_victim_is_hit_without_another_look_and_only_once(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawn()
    injector = LocalInjector()
    victim = only(run)
    injector.arm(victim)
    injector.arm(victim)
    looks: list[int] = []
    monkeypatch.setattr(local, "read_process", lambda pid: looks.append(pid))
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert looks == []
    process.wait(5)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE, "the handle is used up, and the process is gone"


def test_arming_a_stranger_is_refused_and_a_victim_that_died_armed_is_gone(spawn: Spawn, run: str) -> None:
    process = spawn()
    injector = LocalInjector()
    victim = only(run)
    with pytest.raises(IdentityMismatch):
        injector.arm(replace(victim, start_ticks=1, create_time=1.0))
    injector.arm(victim)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE, "a zombie is nobody who could be hit"
    process.wait()


def test_a_signal_that_the_system_refuses_is_a_typed_error(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawn()
    victim = only(run)

    def refuse(handle: int, signum: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(local.signal, "pidfd_send_signal", refuse)
    with pytest.raises(SignalRefused, match="SIGKILL .* is refused: Operation not permitted"):
        LocalInjector().signal(victim, signal.SIGKILL)
    assert process.poll() is None


LOOK_ALIKE = (EXECUTOR.main, "--executor-id", "0", "--worker-url", "spark://Worker@127.0.0.1:7001")


@only_root
def test_another_users_look_alike_is_never_found_nor_hit_and_shields_nobody(spawn: Spawn, run: str) -> None:
    """It shows all that an executor of this run shows; or of another run, on the node of this one's worker."""
    instance, injector = uuid.uuid4().hex[:16], LocalInjector()
    worker = spawn(main=WORKER.main, mark="-Dfaultline.instance=", token=instance)
    ours = spawn()
    alike = (f"-Dfaultline.run={run}", *LOOK_ALIKE)
    of_another = ("-Dfaultline.run=20261121T061500Z-000000", *LOOK_ALIKE)
    with decoy(*alike, user=NOBODY) as planted, decoy(*of_another, user=NOBODY):
        assert [one.pid for one in injector.find("executor", Tokens(run))] == [ours.pid]
        assert [one.pid for one in injector.find("worker", Tokens(run, instance))] == [worker.pid]
        live = read_process(planted.pid)
        assert live is not None and live.foreign
        claimed = ProcessIdentity(planted.pid, live.create_time, EXECUTOR, run, live.command, live.start_ticks)
        assert injector.probe(claimed) is Presence.OTHER
        for act in (
            lambda: injector.signal(claimed, signal.SIGKILL),
            lambda: injector.arm(claimed),
            lambda: injector.stand_by(claimed, 5.0),
        ):
            with pytest.raises(IdentityMismatch, match="^user"):
                act()


# --- the dead man


def presence_of(victim: ProcessIdentity) -> Presence:
    return LocalInjector().probe(victim)


def await_presence(victim: ProcessIdentity, wanted: Presence, timeout_s: float = 10.0) -> float:
    """Seconds until the victim is so."""
    began = time.monotonic()
    while presence_of(victim) is not wanted:
        assert time.monotonic() - began < timeout_s, f"it is {presence_of(victim)}"
        time.sleep(0.01)
    return time.monotonic() - began


# Stops the executor of a run, with somebody who stands by for so many seconds, and waits to be killed.
STOPPER = """
import signal, sys, time
from fault.identity import Tokens
from fault.local import LocalInjector
injector = LocalInjector()
(victim,) = injector.find("executor", Tokens(sys.argv[1]))
injector.stand_by(victim, float(sys.argv[2]))
injector.signal(victim, signal.SIGSTOP)
print("stopped", flush=True)
time.sleep(120)
"""


@pytest.fixture
def stopper(run: str) -> Iterator[Callable[[float], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(seconds: float) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", STOPPER, run, str(seconds)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"stopped\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["it hangs", "it is killed with all that it started"])
def test_a_victim_is_continued_though_whoever_stopped_it_never_does(
    spawn: Spawn, run: str, stopper: Callable[[float], subprocess.Popen[bytes]], how: str
) -> None:
    spawn()
    victim = only(run)
    process = stopper(3.0)
    await_presence(victim, Presence.STOPPED)
    if how == "it hangs":
        process.send_signal(signal.SIGSTOP)
    else:
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            one.kill()
        process.wait()
    await_presence(victim, Presence.ALIVE)


def test_whoever_continues_the_victim_sends_the_dead_man_home(
    spawn: Spawn, run: str, stopper: Callable[[float], subprocess.Popen[bytes]]
) -> None:
    """Else it would end the next pause of the same process, of another attempt perhaps."""
    spawn()
    victim = only(run)
    process = stopper(8.0)
    await_presence(victim, Presence.STOPPED)
    process.kill()
    process.wait()
    time.sleep(2.0)  # he has seen it stopped
    injector = LocalInjector()
    injector.signal(victim, signal.SIGCONT)
    time.sleep(3.0)  # he looks every second, or later on a busy machine
    injector.stand_by(victim, 60.0)
    injector.signal(victim, signal.SIGSTOP)
    time.sleep(5.0)
    assert presence_of(victim) is Presence.STOPPED
    injector.signal(victim, signal.SIGCONT)
    injector.stand_down(victim)


def test_one_who_was_left_before_the_pause_leaves_without_having_seen_it(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever would have stopped the victim is gone: the next pause is another's."""
    monkeypatch.setattr(remote_shell, "UNSEEN_LOOKS", 1)
    spawn()
    victim = only(run)
    before = {process.pid for process in psutil.process_iter()}
    post = Post.take(victim, 60.0)
    assert post is not None
    (dead_man,) = [
        process
        for process in psutil.process_iter()
        if process.pid not in before and process.cmdline() == ["sh", "-s"] and process.ppid() == 1
    ]
    others = psutil.Process(dead_man.pid).children(recursive=True)
    del post
    assert psutil.wait_procs([dead_man, *others], timeout=20)[1] == []
    assert presence_of(victim) is Presence.ALIVE


def test_one_who_is_released_does_nothing_and_one_who_stands_there_is_enough(spawn: Spawn, run: str) -> None:
    spawn()
    victim, injector = only(run), LocalInjector()
    injector.stand_down(victim)
    injector.stand_by(victim, 0.6)
    injector.stand_by(victim, 60.0)
    injector.signal(victim, signal.SIGSTOP)
    assert 0.2 < await_presence(victim, Presence.ALIVE) < 5, "the first one's time counts"
    injector.stand_down(victim)
    injector.stand_by(victim, 0.6)
    injector.signal(victim, signal.SIGSTOP)
    injector.stand_down(victim)
    time.sleep(1.0)
    assert presence_of(victim) is Presence.STOPPED
    injector.signal(victim, signal.SIGCONT)


def test_one_who_was_ended_himself_is_replaced(spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn()
    victim, injector = only(run), LocalInjector()
    injector.stand_by(victim, 60.0)
    post = next(iter(injector._posts.values()))
    post.release()
    monkeypatch.setattr(post, "stands", lambda: False)
    injector.stand_by(victim, 0.3)
    injector.signal(victim, signal.SIGSTOP)
    await_presence(victim, Presence.ALIVE)
    injector.stand_down(victim)


def test_a_post_knows_whether_he_is_there(spawn: Spawn, run: str) -> None:
    spawn()
    before = {process.pid for process in psutil.process_iter()}
    post = Post.take(only(run), 60.0)
    assert post is not None and post.stands()
    (dead_man,) = [
        process
        for process in psutil.process_iter()
        if process.pid not in before and process.cmdline() == ["sh", "-s"] and process.ppid() == 1
    ]
    assert not any(name.startswith("FAULTLINE") for name in dead_man.environ())
    session = os.getsid(dead_man.pid)
    dead_man.kill()
    psutil.wait_procs([dead_man], timeout=5)
    deadline = time.monotonic() + 5
    while post.stands():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    post.release()
    os.killpg(session, signal.SIGKILL)  # what he left


def test_the_clock_may_be_set_while_he_stands_there(spawn: Spawn, run: str) -> None:
    spawn()
    victim, injector = only(run), LocalInjector()
    injector.stand_by(replace(victim, create_time=victim.create_time - 3600), 0.3)
    injector.signal(victim, signal.SIGSTOP)
    await_presence(victim, Presence.ALIVE)


def test_nobody_is_posted_for_a_stranger_or_for_one_who_is_gone(spawn: Spawn, run: str) -> None:
    process = spawn()
    victim, injector = only(run), LocalInjector()
    with pytest.raises(IdentityMismatch, match="^create_time: .* it began at tick"):
        injector.stand_by(replace(victim, start_ticks=1), 5.0)
    process.kill()
    process.wait()
    injector.stand_by(victim, 5.0)
    assert injector._posts == {}


def test_a_machine_without_a_shell_has_nobody_to_post(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spawn()
    victim = only(run)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NobodyStandsBy, match="^pause: executor 0 .* is not stopped, since no shell would continue it"):
        LocalInjector().stand_by(victim, 5.0)
    (tmp_path / "sh").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "sh").chmod(0o755)
    with pytest.raises(NobodyStandsBy, match="the shell that would continue it does not answer"):
        LocalInjector().stand_by(victim, 5.0)


class Scripted:
    """An injector whose probes give what the test wrote down."""

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        raise AssertionError("settling never searches")

    def __init__(self, *answers: Presence | RemoteError) -> None:
        self._answers = list(answers)

    def probe(self, victim: ProcessIdentity) -> Presence:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, RemoteError):
            raise answer
        return answer

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        raise AssertionError("settling never sends")


LOST = RemoteError("node1", "probe 4000", stderr="gone away")


@pytest.mark.parametrize(
    ("answers", "wanted", "outcome"),
    [
        ([Presence.ALIVE, LOST, Presence.GONE], Presence.GONE, Outcome.EFFECTIVE),
        ([Presence.OTHER], Presence.GONE, Outcome.EFFECTIVE),
        ([Presence.ALIVE], Presence.GONE, Outcome.NO_EFFECT),
        ([LOST], Presence.GONE, Outcome.UNKNOWN),
        ([Presence.ALIVE, Presence.STOPPED], Presence.STOPPED, Outcome.EFFECTIVE),
        ([Presence.GONE], Presence.STOPPED, Outcome.NO_EFFECT),
    ],
)
def test_an_unacknowledged_signal_is_settled_by_probes(
    answers: list[Presence | RemoteError], wanted: Presence, outcome: Outcome
) -> None:
    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    settlement = settle(Scripted(*answers), victim, wanted, Delivery.UNKNOWN, within_s=0.1)
    assert settlement.outcome is outcome


def test_the_last_probe_lies_at_the_end_of_the_time() -> None:
    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    asked = Scripted(Presence.ALIVE, Presence.GONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(injector_module.time, "monotonic", lambda: 100.0)
        assert settle(asked, victim, Presence.GONE, Delivery.SENT, within_s=0.0).outcome is Outcome.NO_EFFECT


@pytest.mark.parametrize(
    ("ticks", "command", "presence"),
    [(55, (), Presence.ALIVE), (56, (), Presence.OTHER), (55, ("stranger",), Presence.OTHER)],
)
def test_a_process_that_is_being_torn_down_is_no_stranger(
    ticks: int, command: tuple[str, ...], presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = ProcessIdentity(4000, 1000.0, EXECUTOR, "20261121T061500Z-3fa9c1", (), 55)
    monkeypatch.setattr(local, "read_process", lambda pid: LiveProcess(pid, 1, 1000.0, ticks, command))
    assert LocalInjector().probe(victim) is presence


@pytest.mark.parametrize(("action", "within_s"), [("kill", 5.0), ("pause", 5.0), ("term", 15.0)])
def test_how_long_an_act_may_take_hangs_on_the_action(
    action: str, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = ACTIONS[action].hands
    assert isinstance(hands, Signals)
    now = [100.0]
    monkeypatch.setattr(injector_module.time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    settlement = settle(
        Scripted(Presence.ALIVE), victim, hands.shows, Delivery.SENT, within_s=hands.within_s, sleep=sleep
    )
    assert settlement.outcome is Outcome.NO_EFFECT
    assert within_s <= now[0] - 100.0 < within_s + 0.1


def test_undoing_runs_newest_first_and_past_a_failing_step() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise OSError("no such file")

    undo = UndoStack()
    undo.register("first", lambda: seen.append("first"))
    undo.register("broken", fail)
    undo.register("last", lambda: seen.append("last"))
    results = undo.run()
    assert seen == ["last", "first"]
    assert [(name, str(error) if error else None) for name, error in results] == [
        ("last", None),
        ("broken", "no such file"),
        ("first", None),
    ]
    assert len(undo) == 1, "what failed is tried again"
    assert [name for name, _ in undo.run()] == ["broken"]
    assert seen == ["last", "first"]


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), AttributeError("pidfd_open")])
def test_without_pidfds_a_signal_goes_by_its_pid(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(pid: int) -> int:
        raise error

    process = spawn()
    injector = LocalInjector()
    (victim,) = injector.find("executor", Tokens(run))
    monkeypatch.setattr("fault.local.os.pidfd_open", refuse)
    injector.arm(victim)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert process.wait(10) == -signal.SIGKILL
