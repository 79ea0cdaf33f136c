"""The handler on real processes, directly and over a connection: the processes it signals, and those it must not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from fault import handler as handler_module
from fault.errors import (
    ActionRefused,
    IdentityMismatch,
    KernelUnsupported,
    SignalRefused,
    VictimRefused,
    WatchdogUnavailable,
    error_from_json,
)
from fault.handler import Handler, reply_to
from fault.identity import (
    DRIVER,
    EXECUTOR,
    PYTHON_WORKER,
    WORKER,
    Delivery,
    LiveProcess,
    Presence,
    ProcessIdentity,
    Tokens,
    from_line,
    to_line,
)
from fault.injector import FaultOutcome, Injector, settle
from fault.procfs import read_process
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, decoy, only_root
from tests.unit.fault.conftest import Host, only, until
from tests.unit.sleepers import NODE, Spawn

OTHER_RUN = "20261121T061500Z-000000"


def test_find_returns_only_the_run(injector: Injector, spawn: Spawn, run: str) -> None:
    wanted = [spawn(number=1), spawn(number=0)]
    spawn(token=f"{run}0")
    spawn(token=OTHER_RUN)
    spawn(main="org.apache.spark.deploy.worker.Worker")
    found = injector.find("executor", Tokens(run))
    assert [victim.pid for victim in found] == [wanted[1].pid, wanted[0].pid]
    assert [victim.number for victim in found] == [0, 1]
    assert all(victim.start_ticks is not None for victim in found)


# Program of an executor: its first process forks one worker per task and stays.
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
    """Start an executor with a first Python process and its two workers; yield the four pids in that order."""
    pids: list[int] = []

    def start(**options: str) -> list[int]:
        executor = psutil.Process(spawn(program=PARENT, **options).pid)
        (daemon,) = executor.children()
        workers = sorted(worker.pid for worker in daemon.children())
        assert len(workers) == 2
        pids.extend(made := [executor.pid, daemon.pid, *workers])
        return made

    yield start
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_python_workers_are_found_by_their_executor_and_killed_one_by_one(
    injector: Injector, tree: Callable[..., list[int]], run: str
) -> None:
    executor, daemon, *workers = tree()
    other = tree(token=OTHER_RUN)
    found = injector.find("python_worker", Tokens(run))
    assert sorted(one.pid for one in found) == workers
    assert {one.node for one in found} == {NODE}
    victim, spared = found
    assert injector.probe(victim) is Presence.ALIVE
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert settle(injector, victim, Presence.GONE, Delivery.SENT).outcome is FaultOutcome.EFFECTIVE
    assert all(psutil.pid_exists(pid) for pid in (executor, daemon, spared.pid, *other))
    assert injector.find("python_worker", Tokens(run)) == (spared,)
    for pid in (daemon, other[2]):
        with pytest.raises(IdentityMismatch, match="^create_time"):
            injector.signal(replace(spared, pid=pid), signal.SIGKILL)
    for pid, part in ((daemon, "role"), (other[2], "token")):
        with pytest.raises(IdentityMismatch, match=f"^{part}"):
            injector.signal(claimed(spared, pid), signal.SIGKILL)


def claimed(victim: ProcessIdentity, pid: int) -> ProcessIdentity:
    """Return another process with the victim's identity."""
    live = read_process(pid)
    assert live is not None
    return replace(victim, pid=pid, create_time=live.create_time, start_ticks=live.start_ticks)


def test_paused_python_worker_is_resumed_after_its_executor_died(tree: Callable[..., list[int]], run: str) -> None:
    executor, daemon, *_ = tree()
    injector = Injector()
    victim = injector.find("python_worker", Tokens(run))[0]
    stopped = settle(injector, victim, Presence.STOPPED, injector.signal(victim, signal.SIGSTOP))
    assert stopped.outcome is FaultOutcome.EFFECTIVE
    for pid in (executor, daemon):
        os.kill(pid, signal.SIGKILL)
    until(lambda: orphaned(victim), "the worker loses its parent")
    assert injector.find("python_worker", Tokens(run)) == ()
    with pytest.raises(IdentityMismatch, match="^role"):
        injector.signal(victim, signal.SIGKILL)
    assert injector.probe(victim) is Presence.STOPPED
    assert injector.signal(victim, signal.SIGCONT) is Delivery.SENT
    assert injector.probe(victim) is Presence.ALIVE


def orphaned(victim: ProcessIdentity) -> bool:
    live = read_process(victim.pid)
    parent = None if live is None else read_process(live.parent_pid)
    return parent is None or PYTHON_WORKER.main not in parent.command


@pytest.mark.parametrize("error", [None, OSError(38, "Function not implemented"), AttributeError("pidfd_open")])
def test_a_kill_is_effective_and_spares_the_decoys_also_without_pidfds(
    spawn: Spawn, run: str, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        assert error is not None
        raise error

    if error is not None:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    injector = Injector()
    decoys = [spawn(token=OTHER_RUN), spawn(token=f"{run}0"), spawn(main="some.other.Main")]
    process = spawn()
    victim = only(injector, run)
    injector.arm(victim)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    settlement = settle(injector, victim, Presence.GONE, Delivery.SENT)
    assert settlement.outcome is FaultOutcome.EFFECTIVE, settlement.detail
    assert process.wait(120) == -signal.SIGKILL
    assert all(decoy.poll() is None for decoy in decoys)


STRANGERS: list[tuple[str, Callable[[ProcessIdentity], ProcessIdentity]]] = [
    ("create_time", lambda victim: replace(victim, start_ticks=(victim.start_ticks or 0) - 1)),
    ("create_time", lambda victim: replace(victim, create_time=victim.create_time - 0.05, start_ticks=None)),
    ("token", lambda victim: replace(victim, token=OTHER_RUN)),
    ("role", lambda victim: replace(victim, role=DRIVER)),
    ("role", lambda victim: replace(victim, role=replace(EXECUTOR, mains=("some.other.Main",)))),
]


def refused_every_act(injector: Injector, impostor: ProcessIdentity, part: str, words: str = ".") -> None:
    assert injector.probe(impostor) is Presence.OTHER
    for act in (
        lambda: injector.signal(impostor, signal.SIGKILL),
        lambda: injector.arm(impostor),
        lambda: injector.start_watchdog(impostor, 5.0),
    ):
        with pytest.raises(IdentityMismatch, match=words) as caught:
            act()
        assert caught.value.part == part


def test_process_with_another_identity_is_refused_and_survives(injector: Injector, spawn: Spawn, run: str) -> None:
    process = spawn()
    victim = only(injector, run)
    for part, change in STRANGERS:
        refused_every_act(injector, change(victim), part)
    # After a clock step the victim is not signalled, but SIGCONT still reaches it.
    for apart_s in (-60.0, 2.1):
        moved = replace(victim, create_time=victim.create_time + apart_s)
        for act in (lambda one=moved: injector.signal(one, signal.SIGKILL), lambda one=moved: injector.arm(one)):
            with pytest.raises(IdentityMismatch, match="^create_time"):
                act()
        assert injector.probe(moved) is Presence.ALIVE
        assert injector.signal(moved, signal.SIGCONT) is Delivery.SENT
    # A rounding difference of the kernel's clocks is the same process.
    near = [replace(victim, create_time=victim.create_time + 1.9), replace(victim, start_ticks=None)]
    assert [injector.probe(other) for other in near] == [Presence.ALIVE] * 2
    assert process.poll() is None


def test_signal_to_an_ended_process_has_no_effect(injector: Injector, spawn: Spawn, run: str) -> None:
    process = spawn()
    victim = only(injector, run)
    process.kill()
    # A zombie until it is waited for; then its pid is free.
    for _ in range(2):
        until(lambda: injector.probe(victim) is Presence.GONE, "its end")
        injector.arm(victim)
        delivery = injector.signal(victim, signal.SIGKILL)
        assert delivery is Delivery.GONE
        assert settle(injector, victim, Presence.GONE, delivery).outcome is FaultOutcome.NO_EFFECT
        process.wait(120)
    assert read_process(victim.pid) is None


def test_armed_victim_is_signalled_once_without_another_check(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawn()
    injector = Injector()
    victim = only(injector, run)
    injector.arm(victim)
    injector.arm(victim)
    looks: list[int] = []
    monkeypatch.setattr(handler_module, "read_process", lambda pid: looks.append(pid))
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert looks == []
    process.wait(120)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE, "the handle is used up, and the process is gone"


def test_armed_victim_that_died_is_gone(injector: Injector, spawn: Spawn, run: str) -> None:
    process = spawn()
    victim = only(injector, run)
    injector.arm(victim)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.GONE, "a zombie cannot be signalled"


def test_refused_signal_raises_signal_refused(spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process, injector = spawn(), Injector()
    victim = only(injector, run)

    def refuse(handle: int, signum: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(SignalRefused, match="^pid: SIGKILL .*Operation not permitted"):
        injector.signal(victim, signal.SIGKILL)
    assert process.poll() is None


def test_own_process_and_ancestors_are_never_signalled(injector: Injector, host: Host, run: str) -> None:
    """The guard knows only the pids of the host that it runs on."""
    victim = ProcessIdentity(
        4_194_400, 1_000.0, EXECUTOR, run, (), 55, "there" if "there" in injector._channels else ""
    )
    assert not injector.find("executor", Tokens(run))
    assert len(host.agents) == (1 if victim.host else 0), "the call started the agent"
    for pid in (os.getpid(), *(one.pid for one in host.agents)):
        own = claimed(victim, pid)
        for act in (lambda own=own: injector.signal(own, signal.SIGKILL), lambda own=own: injector.arm(own)):
            with pytest.raises(IdentityMismatch, match="^pid: ") as caught:
                act()
            assert caught.value.part == "pid"


@only_root
def test_foreign_look_alike_is_never_found_or_signalled(injector: Injector, spawn: Spawn, run: str) -> None:
    """It shows all that an executor of this run shows; or of another run, on the node of this one's worker."""
    instance = uuid.uuid4().hex[:16]
    worker = spawn(main=WORKER.main, mark="-Dfaultline.instance=", token=instance)
    ours = spawn()
    alike = (EXECUTOR.main, "--executor-id", "0", "--worker-url", f"spark://Worker@{NODE}")
    with (
        decoy(f"-Dfaultline.run={run}", *alike, user=OTHER_UID) as planted,
        decoy(f"-Dfaultline.run={OTHER_RUN}", *alike, user=OTHER_UID),
    ):
        victim = only(injector, run)
        assert victim.pid == ours.pid
        assert [one.pid for one in injector.find("worker", Tokens(run, instance))] == [worker.pid]
        refused_every_act(injector, claimed(victim, planted.pid), "user", "belongs to another user")


def test_busy_process_is_distinguished_from_a_sleeping_one(spawn: Spawn, run: str) -> None:
    spawn(number=1)
    spinning = spawn(program="print('up', flush=True)\nwhile True: pass", number=2)
    candidates = Injector().find("executor", Tokens(run))
    busy = wait_until(lambda: Handler().ask("busy", candidates=candidates), timeout_s=120, every_s=0, what="work")
    assert [one.pid for one in busy] == [spinning.pid]
    assert Handler().ask("busy", candidates=[replace(one, start_ticks=1) for one in candidates]) == []


@pytest.mark.parametrize(
    ("ticks", "command", "presence"),
    [(55, (), Presence.ALIVE), (56, (), Presence.OTHER), (55, ("impostor",), Presence.OTHER)],
)
def test_process_releasing_its_memory_keeps_its_identity(
    ticks: int, command: tuple[str, ...], presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = ProcessIdentity(4000, 1000.0, EXECUTOR, OTHER_RUN, (), 55)
    monkeypatch.setattr(handler_module, "read_process", lambda pid: LiveProcess(pid, 1, 1000.0, ticks, command))
    assert Handler().ask("probe", victim=victim) is presence


def test_errors_survive_the_round_trip_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Exception] = []

    def probe(**asked: object) -> None:
        raise raised[0]

    handler = Handler()
    monkeypatch.setattr(handler, "_requests", {"probe": probe})
    for error in (
        SignalRefused("x"), VictimRefused("x"), WatchdogUnavailable("x"), KernelUnsupported("x"), ActionRefused("x"),
        IdentityMismatch(7, "role", "y"),
    ):  # fmt: skip
        raised[:] = [error]
        reply = from_line(to_line(reply_to(handler, {"n": 3, "do": "probe"})))
        again = error_from_json(reply["error"])
        assert reply["n"] == 3 and type(again) is type(error) and str(again) == str(error)
    raised[:] = [OSError("x")]
    assert reply_to(handler, {"n": 3, "do": "probe"})["error"] == {"kind": "OSError", "message": "OSError: x"}
    assert reply_to(handler, {"n": 4, "do": "dance"})["error"]["kind"] == "KeyError"


def test_victim_survives_the_round_trip() -> None:
    one = ProcessIdentity(4000, 1_000.0, EXECUTOR, OTHER_RUN, (), 55)
    for victim in (
        one,
        replace(one, role=PYTHON_WORKER, node="a:1", command=("x", "é\udc80")),
        replace(one, start_ticks=None),
        replace(one, role=replace(EXECUTOR, mains=("some.other.Main",))),
    ):
        assert from_line(to_line({"victim": victim})) == {"victim": victim}
        assert from_line(to_line([replace(victim, host="there")])) == [victim], "each host calls its own local"


def test_incomplete_request_is_ignored(spawn: Spawn, run: str) -> None:
    process = spawn()
    asked = to_line({"n": 1, "do": "signal", "victim": only(Injector(), run), "signum": 9})
    program = "import sys; from fault.handler import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
    done = subprocess.run([sys.executable, "-c", program], input=asked[:-1], capture_output=True, check=True)
    assert done.stdout == b"" and process.poll() is None
