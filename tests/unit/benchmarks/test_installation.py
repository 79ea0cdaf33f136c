"""The installation of a destructive benchmark and its services belong to one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from benchmarks import installation
from benchmarks.installation import exclusive, own_home, own_services
from benchmarks.power_loss.disk import own_disk
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings

REFUSED = "in use by another call"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Installations with stopped services."""
    ended: list[Path] = []
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv(installation.DATABASE, "of another")
    monkeypatch.setattr(installation, "load_settings", lambda: Settings(ROOT, tmp_path / "home", tmp_path / "results"))
    monkeypatch.setattr(installation, "bring_up", lambda say, settings: settings)
    monkeypatch.setattr(installation, "await_dags", lambda *_: None)
    monkeypatch.setattr(installation, "AirflowApi", lambda _: None)
    monkeypatch.setattr(installation, "down", lambda settings, *_: ended.append(settings.home))
    return ended


@pytest.mark.parametrize("own", [partial(own_services, progress=print), own_home])
def test_a_second_call_is_refused_in_a_line_and_ends_nothing(
    own: Callable[[str], AbstractContextManager[Settings]], ended: list[Path]
) -> None:
    with own("crash"):
        with pytest.raises(ConfigError, match=rf"crash: {REFUSED}") as raised, own("crash"):
            pass
        assert "\n" not in str(raised.value) and ended == []
        with own("sweep"):
            pass
    assert len(ended) == 2
    with own("crash"):
        pass


def test_a_place_that_was_refused_leaves_the_database_as_it_was(ended: list[Path]) -> None:
    with exclusive(installation.home_of("crash")):
        with pytest.raises(ConfigError, match=REFUSED), own_services("crash", print):
            pass
        assert os.environ[installation.DATABASE] == "of another"


def test_a_disk_is_mounted_by_one_call_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("benchmarks.power_loss.disk.os.geteuid", lambda: 0)
    monkeypatch.setattr("benchmarks.power_loss.disk._unshare_mounts", lambda: None)
    monkeypatch.setattr("benchmarks.power_loss.disk._run_program", lambda program, *_: done.append(program))
    with exclusive(tmp_path / "disk.img"), pytest.raises(ConfigError, match=REFUSED), own_disk(tmp_path / "disk", 32):
        pass
    assert done == []
