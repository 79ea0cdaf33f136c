"""Who serves an Airflow of others: there is one, own services with Airflow stay away from it, and `down` ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.installation.supervision import down, up
from faultline.installation.users import FILE, conductor_of, only_conductor
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until

SERVES = """\
import sys, time
from pathlib import Path
from faultline.system.settings import Settings
from faultline.installation.users import only_conductor

home = Path(sys.argv[1])
with only_conductor(Settings(home, home, home)):
    print("serves", flush=True)
    time.sleep(900)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path, tmp_path / "results")


@pytest.fixture
def conductor(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVES, str(settings.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "serves\n"
        yield process
        process.kill()


def test_there_is_one_conductor_and_it_is_known(settings: Settings) -> None:
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
