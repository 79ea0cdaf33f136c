"""The local injector on real processes: what it hits, and above all what it does not."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from fault import local
from fault.errors import IdentityMismatch, SignalRefused
from fault.identity import EXECUTOR, PYTHON_WORKER, WORKER, ProcessIdentity, Tokens
from fault.injector import Delivery, Outcome, Presence, executors_on, settle
from fault.local import LocalInjector
from fault.procfs import read_process
from fault.undo import UndoStack
from fault.victims import find_victims
from tests.support.decoys import NOBODY, decoy, only_root
from tests.unit.sleepers import Spawn, only


def test_finding_sees_the_run_and_nothing_else(spawn: Spawn, run: str) -> None:
    wanted = [spawn(number=1), spawn(number=0)]
    spawn(token=f"{run}0")
    spawn(token="20261121T061500Z-000000")
    spawn(main="org.apache.spark.deploy.worker.Worker")
    found = find_victims("executor", Tokens(run))
    assert [victim.pid for victim in found] == [wanted[1].pid, wanted[0].pid]
    assert all(victim.start_ticks is not None for victim in found)


def test_a_child_that_still_shows_its_parents_command_line_is_not_found(spawn: Spawn, run: str) -> None:
    program = "import os, time\nif os.fork():\n    print('up', flush=True)\ntime.sleep(900)"
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
time.sleep(900)
"""

PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DAEMON!r}, "-m", "pyspark.daemon"])
time.sleep(900)
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
    deadline = time.monotonic() + 120
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
    assert process.wait(120) == -signal.SIGKILL
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
        deadline = time.monotonic() + 120
        while injector.probe(victim) is not Presence.GONE and time.monotonic() < deadline:
            time.sleep(0.005)
        delivery = injector.signal(victim, signal.SIGKILL)
        assert delivery is Delivery.GONE
        assert settle(injector, victim, Presence.GONE, delivery).outcome is Outcome.NO_EFFECT
        process.wait(120)
    assert read_process(victim.pid) is None


def test_a_survivor_is_no_effect(spawn: Spawn, run: str) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(900)"
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
    process.wait(120)
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
