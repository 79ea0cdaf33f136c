"""The next scheduler ends the orphaned processes of a killed one, and no others; with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from faultline.installation.start import TITLE, orphaned_tasks
from faultline.installation.supervision import marked_processes
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, decoy, only_root

# A process titled `sys.argv[1]` with a child, like a worker that runs a task.
WORKER = "import os, setproctitle, subprocess, sys; setproctitle.setproctitle(sys.argv[1]); print('up', flush=True); "
CHILD = "subprocess.run(['sleep', '100'])"
Start = Callable[..., psutil.Process]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    made.home.mkdir()
    (made.home / "instance.json").write_text(json.dumps({"instance": "mine", "results": str(made.results)}))
    return made


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(title: str, mark: str = "mine", program: str = WORKER + CHILD) -> psutil.Process:
        environment = {**os.environ, INSTANCE_MARK: mark, "SPT_NOENV": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", program, title], env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return psutil.Process(process.pid)

    yield begin
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate(timeout=120)


def test_workers_and_their_children_are_found(settings: Settings, start: Start) -> None:
    busy = start(f"{TITLE}01a200a6-840b-709c-ae27-d598021bf22d")
    idle = start(f"{TITLE}LocalExecutor: <idle>")
    foreign = start(f"{TITLE}LocalExecutor: <idle>", mark="another")
    triggerer = start("airflow triggerer")
    wait_until(lambda: all(one.children() for one in (busy, idle)), timeout_s=120, what="their children")

    found = {process.pid for process in orphaned_tasks(settings, ["airflow", "scheduler"])}
    assert found == {one.pid for parent in (busy, idle) for one in (parent, *parent.children())}
    assert not {foreign.pid, triggerer.pid} & found


def test_a_worker_with_the_schedulers_command_line_is_found(settings: Settings, start: Start) -> None:
    program = "import time; print('up', flush=True); time.sleep(900)"
    worker = start("--skip-serve-logs", program=program)
    assert [process.pid for process in orphaned_tasks(settings, ["--skip-serve-logs"])] == [worker.pid]
    assert orphaned_tasks(settings, ["scheduler", "--skip-serve-logs"]) == []


def test_the_next_scheduler_keeps_the_pid(settings: Settings, start: Start) -> None:
    """supervisord knows the pid; the old workers end before the scheduler starts."""
    worker = start(f"{TITLE}LocalExecutor: <idle>")
    environment = {**os.environ, "FAULTLINE_HOME": str(settings.home), "FAULTLINE_RESULTS": str(settings.results)}
    command = [sys.executable, "-P", "-m", "faultline.installation.start", "scheduler", "sh", "-c", "echo $$"]
    done = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    output, _ = done.communicate(timeout=60)
    *words, pid = output.splitlines()
    assert int(pid) == done.pid
    assert words and words[0].startswith("scheduler: ended ")
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@only_root
def test_another_users_process_with_the_tag_is_ignored(tmp_path: Path) -> None:
    """Any user who learns the tag can set it in an environment."""
    settings = Settings(tmp_path, tmp_path, tmp_path)
    (tmp_path / "instance.json").write_text(json.dumps({"instance": "0123456789abcdef"}))
    marked = {INSTANCE_MARK: "0123456789abcdef"}
    with decoy(environment=marked, user=OTHER_UID), decoy(environment=marked) as ours:
        assert [process.pid for process in marked_processes(settings)] == [ours.pid]
