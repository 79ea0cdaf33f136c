"""What `up` says of programs that do not answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.installation import kafka as kafka
from faultline.installation import supervision
from faultline.installation.kafka import prepare_kafka
from faultline.installation.supervision import _start_daemon, down, provision_airflow, up
from faultline.installation.users import FILE, conductor_of, only_conductor, using
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_private
from faultline.system.settings import ROOT, Settings
from faultline.system.waiting import wait_until


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


@contextmanager
def within(settings: Settings, use: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is in `using` or `only_conductor` of the installation."""
    program = (
        "import sys, time; from pathlib import Path; from faultline.system.settings import Settings\n"
        "from faultline.installation.users import only_conductor, using\n"
        f"settings = Settings(*map(Path, sys.argv[1:]))\nwith {use}: print('in', flush=True); time.sleep(900)\n"
    )
    command = [sys.executable, "-c", program, *map(str, (settings.root, settings.home, settings.results))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        try:
            yield process
        finally:
            process.kill()


def test_down_ends_a_run_that_has_no_attempt_yet(settings: Settings) -> None:
    said: list[str] = []
    with within(settings, "using(settings, run=True)") as run:
        assert [process.pid for process in supervision._owners(settings)] == [run.pid]
        down(settings, said.append)
        run.wait(120)
    assert said == ["stopping what is measured without Airflow"] and supervision._owners(settings) == []
    with using(settings, run=True), using(settings):
        assert supervision._owners(settings) == [], "not the process that asks"


# ---- Who serves an Airflow of others ----


@pytest.fixture
def conductor(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    settings.home.mkdir()
    with within(settings, "only_conductor(settings)") as process:
        yield process


def test_there_is_one_conductor_and_it_is_known(settings: Settings) -> None:
    settings.home.mkdir()
    assert conductor_of(settings) is None
    with only_conductor(settings):
        with pytest.raises(ConfigError, match="a conductor serves there already"), only_conductor(settings):
            pass
        known = conductor_of(settings)
        assert known is not None and known.pid == os.getpid()
    assert conductor_of(settings) is None
    with only_conductor(settings):
        pass


def test_whoever_has_the_number_of_a_dead_conductor_is_none(settings: Settings) -> None:
    settings.home.mkdir()
    with only_conductor(settings):
        told = json.loads((settings.home / FILE).read_text())
    for change in ({"start_ticks": told["start_ticks"] - 1}, {"boot": "another"}, {"pid": None}, {"who": 1}):
        (settings.home / FILE).write_text(json.dumps({**told, **change}))
        assert conductor_of(settings) is None, change
    (settings.home / FILE).write_text(json.dumps(told)[:-9])
    assert conductor_of(settings) is None


def test_airflow_does_not_come_up_beside_a_conductor(settings: Settings, conductor: subprocess.Popen[str]) -> None:
    before = {path.name for path in settings.home.iterdir()}
    with pytest.raises(ConfigError, match=rf"conductor of another Airflow serves here \(process {conductor.pid}\)"):
        up(settings, Path("/nowhere/java"), Path("/nowhere"))
    assert {path.name for path in settings.home.iterdir()} == before | {"up.lock"}


def test_down_ends_the_conductor_and_not_the_one_that_calls_it(
    settings: Settings, conductor: subprocess.Popen[str]
) -> None:
    said: list[str] = []
    down(settings, said.append)
    wait_until(lambda: conductor.poll() is not None, timeout_s=120, what="the end of the conductor")
    assert said == ["stopping the conductor"]
    assert conductor.returncode in (-signal.SIGTERM, 0)  # 0: `down` itself waited for its child
    with only_conductor(settings):
        down(settings, said.append)
    assert len(said) == 1
