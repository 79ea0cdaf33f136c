"""The dead man on real processes: who continues a victim when nobody else does, and when he leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fault.errors import IdentityMismatch, NobodyStandsBy
from fault.identity import ProcessIdentity
from fault.injector import Presence
from fault.local import LocalInjector
from fault.post import Post
from tests.support.processes import EVENT_S
from tests.unit.sleepers import Spawn, only


def presence_of(victim: ProcessIdentity) -> Presence:
    return LocalInjector().probe(victim)


def await_presence(victim: ProcessIdentity, wanted: Presence, timeout_s: float = EVENT_S) -> float:
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
time.sleep(900)
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
    victim, before = only(run), {process.pid for process in psutil.process_iter()}
    process = stopper(5 * EVENT_S)
    await_presence(victim, Presence.STOPPED)
    posted = dead_men(before)
    process.kill()
    process.wait()
    time.sleep(2.0)  # he has seen it stopped
    injector = LocalInjector()
    injector.signal(victim, signal.SIGCONT)
    # He looks every second, or later on a busy machine.
    assert len(posted) == 1 and psutil.wait_procs(posted, timeout=120)[1] == []
    injector.stand_by(victim, 5 * EVENT_S)
    injector.signal(victim, signal.SIGSTOP)
    await_presence(victim, Presence.STOPPED)
    injector.signal(victim, signal.SIGCONT)
    injector.stand_down(victim)


def dead_men(before: set[int]) -> list[psutil.Process]:
    """Who came since; of others that come and go on the machine, some are gone when they are asked."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "ppid"])
        if process.pid not in before and (process.info["cmdline"], process.info["ppid"]) == (["sh", "-s"], 1)
    ]


def test_one_who_was_left_before_the_pause_leaves_without_having_seen_it(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever would have stopped the victim is gone: the next pause is another's."""
    monkeypatch.setattr("fault.dead_man.UNSEEN_LOOKS", 1)
    spawn()
    victim = only(run)
    before = {process.pid for process in psutil.process_iter()}
    post = Post.take(victim, 60.0)
    assert post is not None
    (dead_man,) = dead_men(before)
    others = psutil.Process(dead_man.pid).children(recursive=True)
    del post
    assert psutil.wait_procs([dead_man, *others], timeout=120)[1] == []
    assert presence_of(victim) is Presence.ALIVE


def test_one_who_is_released_does_nothing_and_one_who_stands_there_is_enough(spawn: Spawn, run: str) -> None:
    spawn()
    victim, injector = only(run), LocalInjector()
    injector.stand_down(victim)
    injector.stand_by(victim, 0.6)
    injector.stand_by(victim, 2 * EVENT_S)
    injector.signal(victim, signal.SIGSTOP)
    # A signal that is sent has its effect when the process gets a core. The first one's time counts: the other's is
    # longer than what is waited for.
    await_presence(victim, Presence.ALIVE)
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
    (dead_man,) = dead_men(before)
    assert not any(name.startswith("FAULTLINE") for name in dead_man.environ())
    session = os.getsid(dead_man.pid)
    dead_man.kill()
    psutil.wait_procs([dead_man], timeout=120)
    deadline = time.monotonic() + 120
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
