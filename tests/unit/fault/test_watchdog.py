"""Watchdogs on real processes: their undo, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault import host_faults, watchdog
from fault.action import Context, UndoSpec
from fault.actions.processes import PAUSE
from fault.errors import ActionRefused, WatchdogUnavailable
from fault.handler import Handler
from fault.host_faults import HostFault
from fault.identity import Presence, ProcessIdentity, Tokens
from fault.injector import Injector
from fault.victims import VictimGuard
from faultline.system.waiting import wait_until
from tests.support.fake_clock import Moment
from tests.support.processes import EVENT_S, words_of
from tests.unit.fault.conftest import Host, only
from tests.unit.sleepers import Spawn
from tests.unit.sleepers import only as local_only

HERE = Injector()


def await_presence(victim: ProcessIdentity, wanted: Presence) -> None:
    """Wait for the effect of a signal, which needs CPU time."""
    there = Handler()
    wait_until(lambda: there.ask("probe", victim=victim) is wanted, timeout_s=EVENT_S, every_s=0.01, what=str(wanted))


# Stops the executor of a run, with a watchdog after some seconds, and waits to be killed.
STOPPER = """
import signal, sys, time
from fault.identity import Tokens
from fault.injector import Injector
injector = Injector()
(victim,) = injector.find("executor", Tokens(sys.argv[1]))
injector.start_watchdog(victim, float(sys.argv[2]))
injector.signal(victim, signal.SIGSTOP)
print("stopped", flush=True)
time.sleep(900)
"""
Stopper = Callable[[float], "subprocess.Popen[bytes]"]


@pytest.fixture
def stopper(run: str) -> Iterator[Stopper]:
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


def watchdogs(before: set[int]) -> list[psutil.Process]:
    """Return the new detached watchdogs; other processes may end while they are read."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "ppid"])
        if process.pid not in before and watchdog._PROGRAM in (process.info["cmdline"] or ()) and process.ppid() == 1
    ]


@pytest.mark.parametrize("how", ["it hangs", "it is killed with all that it started"])
def test_victim_is_continued_without_its_stopper(spawn: Spawn, run: str, stopper: Stopper, how: str) -> None:
    spawn()
    victim = local_only(run)
    process = stopper(3.0)
    await_presence(victim, Presence.STOPPED)
    if how == "it hangs":
        process.send_signal(signal.SIGSTOP)
    else:
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            one.kill()
        process.wait()
    await_presence(victim, Presence.ALIVE)


def test_remote_watchdog_survives_connection_and_agent(channel: Any, host: Host, spawn: Spawn, run: str) -> None:
    spawn()
    injector = Injector({"there": channel})
    victim = only(injector, run)
    injector.start_watchdog(victim, 5.0)
    injector.signal(victim, signal.SIGSTOP)
    host.agents[0].kill()
    # The deadline continues the victim, not the end of the agent.
    await_presence(victim, Presence.STOPPED)
    await_presence(victim, Presence.ALIVE)


def test_released_watchdog_does_nothing_and_one_is_enough(injector: Injector, spawn: Spawn, run: str) -> None:
    spawn()
    victim = only(injector, run)
    injector.end_watchdog(victim)
    injector.start_watchdog(victim, 0.6)
    injector.start_watchdog(victim, 2 * EVENT_S)
    injector.signal(victim, signal.SIGSTOP)
    # The first watchdog's deadline counts; the second's is beyond the test.
    await_presence(victim, Presence.ALIVE)
    injector.end_watchdog(victim)
    injector.start_watchdog(victim, 0.6)
    injector.signal(victim, signal.SIGSTOP)
    injector.end_watchdog(victim)
    time.sleep(1.0)
    assert injector.probe(victim) is Presence.STOPPED
    injector.signal(victim, signal.SIGCONT)


def test_watchdog_of_a_dead_owner_ends_once_the_victim_runs(spawn: Spawn, run: str, stopper: Stopper) -> None:
    """Otherwise it would end the next pause of the same process, perhaps of another attempt."""
    spawn()
    victim, before = local_only(run), {process.pid for process in psutil.process_iter()}
    process = stopper(5 * EVENT_S)
    await_presence(victim, Presence.STOPPED)
    left = watchdogs(before)
    process.kill()
    process.wait()
    time.sleep(2.0)  # it noticed the pause
    HERE.signal(victim, signal.SIGCONT)
    # It checks every second, or later on a busy machine.
    assert len(left) == 1 and psutil.wait_procs(left, timeout=120)[1] == []


def test_clock_step_does_not_affect_the_watchdog(injector: Injector, spawn: Spawn, run: str) -> None:
    """Both the undo and the watchdog find the victim by its ticks."""
    spawn()
    victim = only(injector, run)
    undo = UndoSpec("pause", "SIGCONT to it", replace(victim, create_time=victim.create_time - 3600).as_json())
    tokens = Tokens(run)
    context = Context(Path(), injector, tokens, VictimGuard(tokens), Moment)
    injector.signal(victim, signal.SIGSTOP)
    await_presence(victim, Presence.STOPPED)
    assert PAUSE.driver.is_active(undo, context)
    PAUSE.driver.undo(undo, context)
    await_presence(victim, Presence.ALIVE)
    injector.start_watchdog(replace(victim, create_time=victim.create_time - 3600), 0.3)
    injector.signal(victim, signal.SIGSTOP)
    await_presence(victim, Presence.ALIVE)


# Starts a watchdog with few checks in a process of its own, to change its modules.
LEFT = """
import sys
from fault import watchdog
from fault.identity import Tokens
from fault.injector import Injector
watchdog.MAX_STOP_CHECKS = 1
if sys.argv[2] == "no pidfds":
    import os
    del os.pidfd_open
(victim,) = Injector().find("executor", Tokens(sys.argv[1]))
made = watchdog.fork_watchdog({"seconds": 900.0, "victim": victim})
assert made.is_running()
"""


@pytest.mark.parametrize("kernel", ["pidfds", "no pidfds"])
def test_watchdog_without_owner_leaves_if_no_pause_follows(spawn: Spawn, run: str, kernel: str) -> None:
    """Its owner is gone, so the next pause belongs to another run."""
    spawn()
    subprocess.run([sys.executable, "-c", LEFT, run, kernel], check=True)

    def left() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] and LEFT in one.info["cmdline"]]

    wait_until(lambda: not left(), timeout_s=120, what="its end")
    assert HERE.probe(local_only(run)) is Presence.ALIVE


def test_start_ticks_replace_missing_pidfds(spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    process = spawn()
    victim = local_only(run)
    found = watchdog._PausedProcess.find(victim)
    assert found is not None and found.handle is None and not found.is_stopped()
    process.send_signal(signal.SIGSTOP)
    await_presence(victim, Presence.STOPPED)
    other = watchdog._PausedProcess(victim.pid, None, (victim.start_ticks or 0) - 1)
    assert other.state() == ""
    other.resume()
    assert found.is_stopped()
    found.resume()
    await_presence(victim, Presence.ALIVE)


def test_watchdog_has_no_tag_and_is_detectable(spawn: Spawn, run: str) -> None:
    process = spawn()
    before = {one.pid for one in psutil.process_iter()}
    made = watchdog.start_watchdog({"seconds": 900.0, "victim": local_only(run)})
    assert made is not None and made.is_running()
    (one,) = watchdogs(before)
    assert set(one.environ()) <= {"PATH", "LC_CTYPE"} and not any(run in word for word in words_of(one.pid))
    process.kill()
    process.wait()
    # It ends with its victim.
    assert psutil.wait_procs([one], timeout=120)[1] == []
    wait_until(lambda: not made.is_running(), timeout_s=120, what="that it is gone")
    made.release()


def test_killed_watchdog_is_replaced_and_a_gone_victim_needs_none(spawn: Spawn, run: str) -> None:
    process, handler = spawn(), Handler()
    victim, before = local_only(run), {one.pid for one in psutil.process_iter()}
    handler.ask("watch", victim=victim, seconds=60.0)
    (one,) = watchdogs(before)
    one.kill()
    psutil.wait_procs([one], timeout=120)
    handler.ask("watch", victim=victim, seconds=0.3)
    handler.ask("signal", victim=victim, signum=signal.SIGSTOP)
    await_presence(victim, Presence.ALIVE)
    process.kill()
    process.wait()
    fresh = Handler()
    fresh.ask("watch", victim=victim, seconds=5.0)
    assert not fresh._watchdogs


def test_failed_start_raises_watchdog_unavailable(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_room() -> None:
        raise OSError(11, "Resource temporarily unavailable")

    spawn()
    victim = local_only(run)
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_ROOT", tmp_path)
        with pytest.raises(WatchdogUnavailable, match="^watchdog: .*No module named 'fault'"):
            HERE.start_watchdog(victim, 5.0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such")
        with pytest.raises(WatchdogUnavailable, match="^watchdog: start failed: "):
            HERE.start_watchdog(victim, 5.0)
    monkeypatch.setattr(os, "setsid", no_room)
    with pytest.raises(WatchdogUnavailable, match="^watchdog: start failed: "):
        watchdog.fork_watchdog({"seconds": 5.0, "victim": victim})


# --- host faults


def test_undo_of_a_host_fault_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detached process retries a failed undo."""
    tries, child = tmp_path / "tries", subprocess.Popen(["true"])

    def undo(name: str, asked: Mapping[str, Any]) -> None:
        with tries.open("a") as file:
            file.write(f"{os.getpid()} {os.getppid()}\n")
        if len(tries.read_text().splitlines()) < 3:
            raise ActionRefused("tc: busy")

    never = HostFault(lambda name, asked: None, lambda name, asked: None, undo, lambda name, asked: False)
    monkeypatch.setattr(host_faults, "HOST_FAULTS", {"partition": never})
    monkeypatch.setattr(watchdog, "RETRY_S", 0.01)
    began = time.monotonic()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    Handler(watchdog.fork_watchdog).ask("watch", kind="partition", name="of_a_test_0", asked={}, seconds=0.2)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # leaves the child's status to its parent
    child.wait()
    wait_until(lambda: tries.exists() and len(tries.read_text().splitlines()) == 3, timeout_s=120, what="three tries")
    assert time.monotonic() - began > 0.2
    pid, parent = (int(word) for word in tries.read_text().split()[:2])
    assert os.getpid() not in (pid, parent)
    wait_until(lambda: not psutil.pid_exists(pid), timeout_s=120, what="its end")
    assert len(tries.read_text().splitlines()) == 3


@pytest.mark.parametrize(("kind", "name"), [("dance", "of_a_test_0"), ("partition", "of a test")])
@pytest.mark.parametrize("start", [watchdog.start_watchdog, watchdog.fork_watchdog])
def test_unknown_fault_gets_no_watchdog(start: watchdog.StartWatchdog, kind: str, name: str) -> None:
    with pytest.raises(ActionRefused, match=f"^{kind}: "):
        start({"kind": kind, "name": name, "asked": {}, "seconds": 1.0})
