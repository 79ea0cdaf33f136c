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

import psutil
import pytest

from fault import local
from fault.errors import IdentityMismatch, RemoteError, SignalRefused
from fault.identity import EXECUTOR, ProcessIdentity
from fault.injector import Delivery, Outcome, Presence, settle
from fault.local import LocalInjector
from fault.undo import UndoStack
from fault.victims import find_victims, read_process

PROGRAM = "import sys, time; print('up', flush=True); time.sleep(120)"
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def spawn(run: str) -> Iterator[Spawn]:
    """Starts sleepers that carry the arguments of an executor, and ends those that are left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(token: str | None = None, main: str = EXECUTOR.main, number: int = 0, program: str = PROGRAM) -> object:
        arguments = [f"-Dfaultline.run={token or run}", main, "--executor-id", str(number)]
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
    (found,) = find_victims(EXECUTOR, run)
    return found


def test_finding_sees_the_run_and_nothing_else(spawn: Spawn, run: str) -> None:
    wanted = [spawn(number=1), spawn(number=0)]
    spawn(token=f"{run}0")
    spawn(token="20261121T061500Z-000000")
    spawn(main="org.apache.spark.deploy.worker.Worker")
    found = find_victims(EXECUTOR, run)
    assert [victim.pid for victim in found] == [wanted[1].pid, wanted[0].pid]
    assert all(victim.start_ticks is not None for victim in found)


def test_a_child_that_still_shows_its_parents_command_line_is_not_found(spawn: Spawn, run: str) -> None:
    program = "import os, time\nif os.fork():\n    print('up', flush=True)\ntime.sleep(120)"
    parent = spawn(program=program)
    (child,) = psutil.Process(parent.pid).children()
    try:
        assert [victim.pid for victim in find_victims(EXECUTOR, run)] == [parent.pid]
    finally:
        child.kill()


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
    settlement = settle(injector, victim, "kill", Delivery.SENT)
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
        ("role", lambda victim: replace(victim, role=replace(EXECUTOR, main="some.other.Main"))),
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


def test_rounds_beside_decoys_with_the_same_command_line(spawn: Spawn, run: str) -> None:
    """The decoy differs in nothing but its creation time, as a process on a recycled pid would."""
    injector = LocalInjector()
    for _ in range(20):
        decoy = spawn()
        real = spawn()
        victims = {victim.pid: victim for victim in find_victims(EXECUTOR, run)}
        victim = victims[real.pid]
        with pytest.raises(IdentityMismatch):
            injector.signal(replace(victim, pid=decoy.pid, start_ticks=-1), signal.SIGKILL)
        assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
        assert real.wait(5) == -signal.SIGKILL
        assert decoy.poll() is None
        decoy.kill()
        decoy.wait(5)


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
        assert settle(injector, victim, "kill", delivery).outcome is Outcome.NO_EFFECT
        process.wait(5)
    assert read_process(victim.pid) is None


def test_a_survivor_is_no_effect(spawn: Spawn, run: str) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    spawn(program=program)
    injector = LocalInjector()
    victim = only(run)
    delivery = injector.signal(victim, signal.SIGTERM)
    settlement = settle(injector, victim, "term", delivery, within_s=0.1)
    assert settlement.outcome is Outcome.NO_EFFECT
    assert "still alive" in settlement.detail


def test_a_pause_stops_and_its_undo_continues(spawn: Spawn, run: str) -> None:
    spawn()
    injector = LocalInjector()
    victim = only(run)
    undo = UndoStack()
    undo.register("SIGCONT", lambda: None if injector.signal(victim, signal.SIGCONT) else None)
    assert settle(injector, victim, "pause", injector.signal(victim, signal.SIGSTOP)).outcome is Outcome.EFFECTIVE
    assert injector.probe(victim) is Presence.STOPPED
    assert undo.run() == [("SIGCONT", None)]
    assert injector.probe(victim) is Presence.ALIVE


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


class Scripted:
    """An injector whose probes give what the test wrote down."""

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
    ("answers", "action", "outcome"),
    [
        ([Presence.ALIVE, LOST, Presence.GONE], "kill", Outcome.EFFECTIVE),
        ([Presence.OTHER], "kill", Outcome.EFFECTIVE),
        ([Presence.ALIVE], "kill", Outcome.NO_EFFECT),
        ([LOST], "kill", Outcome.UNKNOWN),
        ([Presence.ALIVE, Presence.STOPPED], "pause", Outcome.EFFECTIVE),
        ([Presence.GONE], "pause", Outcome.NO_EFFECT),
    ],
)
def test_an_unacknowledged_signal_is_settled_by_probes(
    answers: list[Presence | RemoteError], action: str, outcome: Outcome
) -> None:
    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    settlement = settle(Scripted(*answers), victim, action, Delivery.UNKNOWN, within_s=0.1)
    assert settlement.outcome is outcome


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
    assert len(undo) == 0
    assert undo.run() == []
