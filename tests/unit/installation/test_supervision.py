"""What `up` says of programs that do not answer."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.installation import kafka as kafka
from faultline.installation import supervision
from faultline.installation.kafka import prepare_kafka
from faultline.installation.supervision import _start_daemon, down, provision_airflow
from faultline.installation.users import using
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_private
from faultline.system.settings import ROOT, Settings
from tests.support.installation import within


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (
            lambda given: _start_daemon(given, Path("java"), Path("/")),
            r"supervisord: its start: not within \d+ s",
        ),
        (lambda given: provision_airflow(given, print), r"airflow: its database: not within \d+ s; see"),
        (lambda given: prepare_kafka(given, Path("java")), r"kafka: formatting its storage: not within \d+ s; see how"),
    ],
    ids=["supervisord", "database", "storage"],
)
def test_a_program_that_does_not_answer_is_a_line(
    start: Callable[[Settings], None], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    given = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    given.home.mkdir()
    write_private(given.home / "instance.json", '{"instance": "0"}')
    monkeypatch.setattr(supervision, "data_services", lambda *_: [])
    monkeypatch.setattr(supervision, "airflow_environment", lambda _: {})
    monkeypatch.setattr(kafka, "kafka_classpath", lambda _: "")
    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(InfrastructureError) as raised:
        start(given)
    assert re.match(line, str(raised.value)) and "\n" not in str(raised.value)
    assert not (given.secrets / "format.arguments").exists(), "it has passwords"


def test_whoever_performs_the_steps_of_an_open_attempt_is_an_owner(settings: Settings) -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
    try:
        started = psutil.Process(sleeping.pid).create_time()
        owners = [
            {"pid": sleeping.pid, "create_time": started},
            {"pid": sleeping.pid, "create_time": started - 100},  # another process that had this pid
            {"pid": os.getpid(), "create_time": psutil.Process().create_time()},
            None,
        ]
        for number, owner in enumerate(owners):
            attempt = Attempt(settings.attempts / f"20261121T06150{number}Z-00000{number}")
            attempt.folder.mkdir(parents=True)
            told = {"attempt": attempt.id, "home": str(settings.home), "environment": {"host": socket.gethostname()}}
            write_json(attempt.folder / "attempt.json", {**told, "owner": owner})
        assert [process.pid for process in supervision._owners(settings)] == [sleeping.pid]
        Attempt(settings.attempts / "20261121T061500Z-000000").closed.touch()
        assert supervision._owners(settings) == []
    finally:
        sleeping.kill()
        sleeping.wait()


def test_down_ends_a_run_that_has_no_attempt_yet(settings: Settings) -> None:
    said: list[str] = []
    with within(settings, "using(settings, run=True)") as run:
        assert [process.pid for process in supervision._owners(settings)] == [run.pid]
        down(settings, said.append)
        run.wait(120)
    assert said == ["stopping what is measured without Airflow"] and supervision._owners(settings) == []
    with using(settings, run=True), using(settings):
        assert supervision._owners(settings) == [], "not the process that asks"
