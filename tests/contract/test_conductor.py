"""The fault scheduler with real processes and the real clock: victims, times, and undo after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault.identity import EXECUTOR
from fault.procfs import read_process
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.attempt_processes import last_line
from faultline.lifecycle.ending.undo_replay import replay_undos
from faultline.system.journal import read_journal
from faultline.system.waiting import wait_until
from tests.support.attempts import prepared

PROGRAM = "import time; print('up', flush=True); time.sleep(900)"
# Injects a fault on an executor of the attempt, with a fake broker.
CONDUCTOR = """
import json, sys
from pathlib import Path
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.lifecycle import fault_scheduler
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.system.journal import Journal

class Offsets:
    def read(self, timeout_s):
        return {"0": 1}

folder, attempt, fault, duration_s = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])
fault_scheduler.MISSED_WINDOW_S = 60.0  # a busy machine delays the injection
planned = FaultPlan((Fault(**fault),)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
given = SchedulerInput(attempt, planned, duration_s=duration_s, bootstrap="", input_topic="in")
with Journal(folder / "conductor.jsonl") as journal:
    made = fault_scheduler.FaultScheduler(given, folder, injector=Injector(), offsets=Offsets(), progress=None)
    sys.exit(made.run(journal))
"""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    folder = tmp_path / f"20261121T061500Z-{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    return prepared(folder, {"fault": "executor", "fault_action": "pause"})


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, **how: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen([sys.executable, *words], env=environment, **how))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def executor(start: Start, attempt: str, number: int = 0) -> subprocess.Popen[bytes]:
    marks = (f"-Dfaultline.run={attempt}", EXECUTOR.main, "--executor-id", str(number))
    process = start("-c", PROGRAM, *marks, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


def conduct(start: Start, attempt: Attempt, window_s: float, **fault: Any) -> subprocess.Popen[bytes]:
    asked = json.dumps({"victim": "executor", **fault})
    words = (str(attempt.folder), attempt.id, asked, str(window_s))
    return start("-c", CONDUCTOR, *words, stderr=subprocess.PIPE)


def await_event(attempt: Attempt, event: str) -> dict[str, Any]:
    """Wait for the fault scheduler's journal line with this event."""
    path = attempt.conductor_journal
    return wait_until(lambda: last_line(path, event=event), timeout_s=120, every_s=0.01, what=f"{path}: {event}")


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    live = read_process(process.pid)
    return live is not None and live.is_stopped


def test_kill_hits_one_executor_on_time(
    attempt: Attempt, start: Start, record_property: Callable[[str, object], None]
) -> None:
    processes = {process.pid: process for process in (executor(start, attempt.id, number) for number in (0, 1))}
    decoy = executor(start, "20261121T061500Z-000000")
    assert conduct(start, attempt, 0.6, action="kill", at_s=0.4).wait(120) == 0
    gate, delivered = await_event(attempt, "gate"), await_event(attempt, "delivered")
    assert processes.pop(delivered["victim"]).wait(120) == -signal.SIGKILL
    assert [process.poll() for process in (*processes.values(), decoy)] == [None, None]
    assert delivered["planned_mono_ns"] == gate["t0_mono_ns"] + round(0.4e9)
    error_ms = (delivered["mono_ns"] - delivered["planned_mono_ns"]) / 1e6
    record_property("timing_error_ms", error_ms)
    print(f"timing error of the signal: {error_ms:.3f} ms")
    assert error_ms >= 0
    assert await_event(attempt, "settled")["outcome"] == "effective"


def test_a_pause_ends_after_its_duration(attempt: Attempt, start: Start) -> None:
    process = executor(start, attempt.id)
    assert conduct(start, attempt, 2.2, action="pause", at_s=1.5, duration_s=0.3).wait(120) == 0
    assert await_event(attempt, "settled")["outcome"] == "effective"
    assert await_event(attempt, "undone")["mono_ns"] - await_event(attempt, "delivered")["mono_ns"] > 0.25e9
    assert process.poll() is None and not is_stopped(process)


def test_scheduler_stopped_in_a_pause_undoes_it_and_reports(attempt: Attempt, start: Start) -> None:
    process = executor(start, attempt.id)
    conductor = conduct(start, attempt, 90.0, action="pause", at_s=0.1, duration_s=60)
    await_event(attempt, "settled")
    conductor.terminate()
    _, errors = conductor.communicate(timeout=120)
    assert conductor.returncode == 1
    assert errors
    assert read_journal(attempt.conductor_journal)[-1]["event"] == "failed"
    assert process.poll() is None and not is_stopped(process)


def test_pause_of_a_killed_scheduler_is_undone_from_its_journal(attempt: Attempt, start: Start) -> None:
    process = executor(start, attempt.id)
    conductor = conduct(start, attempt, 90.0, action="pause", at_s=0.1, duration_s=60)
    await_event(attempt, "settled")
    conductor.kill()
    conductor.wait()
    assert is_stopped(process)
    assert replay_undos(attempt) == [f"SIGCONT to executor 0 (pid {process.pid}, run {attempt.id})"]
    assert not is_stopped(process)
    assert replay_undos(attempt) == []
