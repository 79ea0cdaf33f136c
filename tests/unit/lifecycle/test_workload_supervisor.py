"""The supervisor gives a driver time to end by itself, and not more than that."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.lifecycle import workload_supervisor
from faultline.lifecycle.workload_supervisor import WorkloadSupervisor
from faultline.system.journal import read_journal
from faultline.system.waiting import wait_until
from tests.support.attempts import run_in

# Ends some time after it was told to, as a driver does that has shutdown hooks.
PROGRAM = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(float(sys.argv[1]))
    pathlib.Path("hooks").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path("up").touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("takes_s", "grace_s", "hooks", "code"), [(1.3, 30.0, True, 0), (60.0, 0.3, False, -9)])
def test_a_driver_that_is_stopped_has_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, grace_s: float, hooks: bool, code: int
) -> None:
    monkeypatch.setattr(workload_supervisor, "TERM_GRACE_S", grace_s)
    command = [sys.executable, "-c", PROGRAM, str(takes_s)]
    supervisor = WorkloadSupervisor(
        run_in(tmp_path), {"command": command, "env": {}, "restart_delay_s": 0, "max_restarts": 5}
    )
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()
    wait_until((tmp_path / "up").exists, timeout_s=120, every_s=0.01, what="the program runs")
    began = time.monotonic()
    supervisor.stop()
    thread.join(120)
    assert (codes, (tmp_path / "hooks").exists()) == ([code], hooks)
    assert time.monotonic() - began >= min(takes_s, grace_s)
    lines = read_journal(Attempt(tmp_path).supervisor_journal)
    assert [line["event"] for line in lines] == ["start", "exit", "stop"]


def supervised(folder: Path, command: list[str], **more: object) -> list[str]:
    """The events of a supervisor that runs a command to its end."""
    specification = {"command": command, "env": {}, "restart_delay_s": 0, "max_restarts": 2, **more}
    WorkloadSupervisor(run_in(folder), specification).run()
    return [line["event"] for line in read_journal(Attempt(folder).supervisor_journal)]


def test_what_ends_before_the_gate_is_broken_and_not_started_again(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    assert supervised(tmp_path, failing) == ["start", "exit", "stop"]
    Attempt(tmp_path).gate.touch()
    Attempt(tmp_path).supervisor_journal.unlink()
    assert supervised(tmp_path, failing) == ["start", "exit", *["restart", "start", "exit"] * 2, "stop"]


def test_a_program_that_does_not_look_for_the_stop_file_is_ended_by_a_signal(tmp_path: Path) -> None:
    """And is no driver that died: it is not started again."""
    (tmp_path / "stop").touch()
    events = supervised(tmp_path, [sys.executable, "-c", PROGRAM, "0"], ends_itself=False)
    assert events == ["start", "exit", "stop"]
