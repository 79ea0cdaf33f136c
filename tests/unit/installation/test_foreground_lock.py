"""Who holds the services in the foreground: one process, Airflow stays away from it, and `down` ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.installation.supervision import down, up
from faultline.installation.users import (
    ENVIRONMENT,
    FILE,
    OWNER,
    foreground_of,
    keep_environment,
    only_foreground,
    owner_of,
    take_environment,
)
from faultline.system.errors import ConfigError
from faultline.system.files import write_json
from faultline.system.settings import INSTANCE, Settings
from faultline.system.waiting import wait_until
from tests.support.installation import within


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path, tmp_path / "results")


@pytest.fixture
def holder(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    with within(settings, "only_foreground(settings)") as process:
        yield process


def test_there_is_one_holder_and_it_is_known(settings: Settings) -> None:
    assert foreground_of(settings) is None
    with only_foreground(settings):
        with pytest.raises(ConfigError, match="another process holds the services"), only_foreground(settings):
            pass
        known = foreground_of(settings)
        assert known is not None and known.pid == os.getpid()
    assert foreground_of(settings) is None
    with only_foreground(settings):
        pass


def test_whoever_has_the_number_of_a_dead_holder_is_none(settings: Settings) -> None:
    with only_foreground(settings):
        told = json.loads((settings.home / FILE).read_text())
    for change in ({"start_ticks": told["start_ticks"] - 1}, {"boot": "another"}, {"pid": None}, {"who": 1}):
        (settings.home / FILE).write_text(json.dumps({**told, **change}))
        assert foreground_of(settings) is None, change
    (settings.home / FILE).write_text(json.dumps(told)[:-9])
    assert foreground_of(settings) is None


def test_airflow_does_not_come_up_beside_a_holder(settings: Settings, holder: subprocess.Popen[str]) -> None:
    before = {path.name for path in settings.home.iterdir()}
    with pytest.raises(ConfigError, match=rf"process {holder.pid} holds the services"):
        up(settings, Path("/nowhere/java"), Path("/nowhere"))
    assert {path.name for path in settings.home.iterdir()} == before | {"up.lock"}


def test_down_ends_the_holder_and_not_the_one_that_calls_it(settings: Settings, holder: subprocess.Popen[str]) -> None:
    said: list[str] = []
    down(settings, said.append)
    wait_until(lambda: holder.poll() is not None, timeout_s=120, what="the end of the holder")
    assert said == ["stopping `up --foreground`"]
    assert holder.returncode in (-signal.SIGTERM, 0)  # 0: `down` itself waited for its child
    with only_foreground(settings):
        down(settings, said.append)
    assert len(said) == 1


def test_airflow_does_not_come_up_beside_an_experiment_of_an_external_one(settings: Settings) -> None:
    attempt = Attempt(settings.attempts / "20261126T010000Z-abcdef")
    (attempt.folder / OWNER).parent.mkdir(parents=True)
    told = {"attempt": attempt.id, "home": str(settings.home), "environment": {"host": socket.gethostname()}}
    write_json(attempt.folder / "attempt.json", told)
    write_json(settings.home / INSTANCE, {"instance": "i"})
    write_json(attempt.folder / OWNER, {"place": "/dags", "prefix": "theirs_", "instance": "i"})
    assert owner_of(attempt, settings) == ("/dags", "theirs_")
    with pytest.raises(ConfigError, match=f"{attempt.id}, an experiment of an external Airflow, goes on"):
        up(settings, Path("/nowhere/java"), Path("/nowhere"))
    write_json(settings.home / INSTANCE, {"instance": "of the next start"})
    assert owner_of(attempt, settings) is None
    write_json(settings.home / INSTANCE, {"instance": "i"})
    write_json(attempt.closed, {"ended": [], "topics": []})
    assert owner_of(attempt, settings) is None


def test_steps_of_an_external_airflow_get_the_environment_of_the_services(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"FAULTLINE_MACHINE": "m", "FAULTLINE_PASS": "TOKEN", "TOKEN": "of mine"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        keep_environment(settings)
    assert stat.S_IMODE((settings.home / ENVIRONMENT).stat().st_mode) == 0o600
    for name in told:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")
    take_environment(settings)
    assert {name: os.environ[name] for name in told} == told
