"""Healing after a conductor: what its journal registered is replayed, also that of journals from before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault.action import UndoSpec
from fault.identity import EXECUTOR, Tokens
from fault.procfs import read_process
from fault.proxy_control import ProxyControl
from fault.victims import find_victims
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.healing import as_line, heal
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Journal
from faultline.system.waiting import wait_until
from tests.support.attempts import prepared


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


def write_attempt(attempt: Attempt, run: str, faults: list[dict[str, Any]]) -> None:
    """What a healer reads of an attempt."""
    prepared(attempt.folder, {"duration_s": 200, "fault_plan": {"faults": faults}}, said={"attempt": run})


@pytest.fixture
def stopped(run: str) -> Iterator[subprocess.Popen[bytes]]:
    """An executor that a pause left stopped."""
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    arguments = [f"-Dfaultline.run={run}", EXECUTOR.main, "--executor-id", "0"]
    process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid), timeout_s=120, every_s=0.01, what="it stops")
    yield process
    process.kill()
    process.communicate()


def is_stopped(pid: int) -> bool:
    live = read_process(pid)
    return live is not None and live.stopped


@pytest.fixture
def proxy(attempt: Attempt) -> Iterator[ProxyControl]:
    """A proxy that a cut left mute."""
    path = attempt.folder / "proxy.json"
    ends = ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1"]
    process = subprocess.Popen([sys.executable, "-m", "fault.proxy", *ends, "--control", str(path)])
    wait_until(path.exists, timeout_s=120, every_s=0.01, what="the proxy listens")
    control = ProxyControl(path)
    control.cut()
    yield control
    process.terminate()
    process.wait(120)


PAUSE = {"victim": "executor", "action": "pause", "at_s": 45, "duration_s": 5}
CUT = {"victim": "kafka", "action": "cut", "at_s": 60, "duration_s": 5}


@pytest.mark.parametrize("named", [True, False], ids=["names its action", "from before"])
def test_a_pause_and_a_cut_are_healed(
    attempt: Attempt, run: str, stopped: subprocess.Popen[bytes], proxy: ProxyControl, named: bool
) -> None:
    write_attempt(attempt, run, [PAUSE, CUT])
    (victim,) = find_victims("executor", Tokens(run))
    with Journal(attempt.conductor_journal) as journal:
        for fault, action, name, fields in (
            (0, "pause", f"SIGCONT to {victim}", victim.as_json()),
            (1, "cut", "heal the proxy", {}),
        ):
            if named:
                journal.write("undo_registered", **as_line(UndoSpec(action, name, fields), fault))
            else:
                journal.write("undo_registered", **fields, fault=fault, undo=name)
    assert heal(attempt) == ["heal the proxy", f"SIGCONT to {victim}"], "newest first"
    assert not is_stopped(stopped.pid)
    assert proxy.status()["mode"] == "plain"
    assert heal(attempt) == []


def test_a_proxy_that_is_gone_needs_no_healing(attempt: Attempt, run: str) -> None:
    write_attempt(attempt, run, [CUT])
    with Journal(attempt.conductor_journal) as journal:
        journal.write("undo_registered", **as_line(UndoSpec("cut", "heal the proxy"), 0))
    assert heal(attempt) == []


def test_what_cannot_be_healed_is_named_with_what_to_do_and_stops_nothing_else(
    attempt: Attempt, run: str, stopped: subprocess.Popen[bytes], proxy: ProxyControl
) -> None:
    """The victim is on a host that is not known any more, and another version knew an action that is none here."""
    write_attempt(attempt, run, [CUT, {**PAUSE, "at_s": 70}])
    (victim,) = find_victims("executor", Tokens(run))
    with Journal(attempt.conductor_journal) as journal:
        journal.write("undo_registered", **as_line(UndoSpec("cut", "heal the proxy"), 0))
        lost = {**victim.as_json(), "host": "node9"}
        journal.write("undo_registered", **as_line(UndoSpec("pause", "SIGCONT to it", lost), 1))
        journal.write("undo_registered", **as_line(UndoSpec("melt", "freeze it"), 2))
    with pytest.raises(InfrastructureError) as caught:
        heal(attempt)
    message = "healing: action: melt is not known here; freeze it by hand; "
    message += "host: node9 is not known; known: none; continue it by hand with kill -CONT"
    assert str(caught.value) == message
    assert proxy.status()["mode"] == "plain"
    assert is_stopped(stopped.pid)


def test_a_stranger_under_the_victims_pid_is_left_alone(
    attempt: Attempt, run: str, stopped: subprocess.Popen[bytes]
) -> None:
    write_attempt(attempt, run, [PAUSE])
    (victim,) = find_victims("executor", Tokens(run))
    with Journal(attempt.conductor_journal) as journal:
        other = {**victim.as_json(), "start_ticks": 1, "create_time": time.time() - 10_000}
        journal.write("undo_registered", **as_line(UndoSpec("pause", "SIGCONT to it", other), 0))
    assert heal(attempt) == []
    assert is_stopped(stopped.pid)


def test_an_undo_that_breaks_stops_no_other(attempt: Attempt, run: str, proxy: ProxyControl) -> None:
    """What it needs is not in its line, as after an update; that is no error of the kinds that undos have."""
    write_attempt(attempt, run, [CUT, {**PAUSE, "at_s": 70}])
    with Journal(attempt.conductor_journal) as journal:
        journal.write("undo_registered", **as_line(UndoSpec("cut", "heal the proxy"), 0))
        journal.write("undo_registered", **as_line(UndoSpec("pause", "SIGCONT to it", {}), 1))
    with pytest.raises(InfrastructureError, match="^healing: SIGCONT to it: KeyError: .*; continue it by hand"):
        heal(attempt)
    assert proxy.status()["mode"] == "plain"


def test_an_undo_that_cannot_be_built_stops_no_other(attempt: Attempt, run: str, proxy: ProxyControl) -> None:
    """A line from before names no action, and a fault that the plan does not have; another one has no fields."""
    write_attempt(attempt, run, [CUT])
    with Journal(attempt.conductor_journal) as journal:
        journal.write("undo_registered", **as_line(UndoSpec("cut", "heal the proxy"), 0))
        journal.write("undo_registered", fault=7, undo="SIGCONT to it")
        journal.write("undo_registered", fault=8, undo="thaw it", action="pause")
    with pytest.raises(InfrastructureError, match="^healing: thaw it: KeyError: .*; SIGCONT to it: IndexError: "):
        heal(attempt)
    assert proxy.status()["mode"] == "plain"
