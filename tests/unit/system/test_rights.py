"""Who may run an installation, and who may see what it makes."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from faultline.cli import main as cli
from faultline.system import environment as rights
from faultline.system.environment import (
    REFUSE_ROOT,
    SHARED,
    as_caller,
    be_private,
    files_mask,
    let_nobody_write,
    meet_root,
)
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings, check_folders


@pytest.mark.parametrize(("user", "refuses", "lines"), [(0, "", 1), (0, "1", None), (1000, "", 0), (1000, "1", 0)])
def test_root_is_told_once_and_refused_only_where_a_setting_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int, refuses: str, lines: int | None
) -> None:
    monkeypatch.setattr(rights.os, "geteuid", lambda: user)
    monkeypatch.setenv(REFUSE_ROOT, refuses)
    meet_root.cache_clear()
    for _ in range(2):
        if lines is None:
            with pytest.raises(ConfigError, match=f"^{REFUSE_ROOT}: "):
                meet_root()
        else:
            meet_root()
    meet_root.cache_clear()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", lines or 0)


@pytest.mark.parametrize(
    "command", [["demo"], ["up"], ["run", "word_count"], ["sweep", "recovery"], ["test", "static"]]
)
def test_a_setting_refuses_root_before_anything_is_started(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights.os, "geteuid", lambda: 0)
    monkeypatch.setenv(REFUSE_ROOT, "1")
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("faultline.cli.testing.development.add_packages", lambda *_: pytest.fail("it went on"))
    meet_root.cache_clear()
    monkeypatch.setattr(sys, "argv", ["faultline", *command])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize(("shared", "mode"), [("", 0o700), ("1", 0o750)])
def test_folders_are_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str, mode: int) -> None:
    monkeypatch.setenv(SHARED, shared)
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    for folder in (settings.home, settings.results):
        folder.mkdir(mode=0o755)
    check_folders(settings, need_mb=0)
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700, "whatever is shared"
    assert stat.S_IMODE(settings.results.stat().st_mode) == mode
    assert files_mask() == 0o777 & ~mode & 0o077


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    settings.results.mkdir()
    settings.results.chmod(mode)
    with pytest.raises(ConfigError, match=f"^FAULTLINE_RESULTS: others can write .* chmod go-w {settings.results}$"):
        check_folders(settings, need_mb=0)
    assert stat.S_IMODE(settings.results.stat().st_mode) == mode, "its owner decides"


@pytest.mark.parametrize("name", ["records", "attempts"])
def test_shared_results_that_the_group_can_write_below_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    below = settings.results / name
    below.mkdir(parents=True)
    below.chmod(0o775)
    settings.results.chmod(0o700)
    monkeypatch.delenv(SHARED, raising=False)
    check_folders(settings, need_mb=0)  # nobody comes to it
    monkeypatch.setenv(SHARED, "1")
    with pytest.raises(ConfigError, match=f"^FAULTLINE_RESULTS: others can write .* chmod go-w {below}$"):
        check_folders(settings, need_mb=0)
    below.chmod(0o755)
    check_folders(settings, need_mb=0)
    assert stat.S_IMODE(below.stat().st_mode) == 0o750


def test_what_is_for_others_to_read_gets_the_callers_rights(tmp_path: Path) -> None:
    os.umask(0o027)
    be_private()
    (tmp_path / "own").touch()
    with as_caller():
        (tmp_path / "report").touch()
    (tmp_path / "after").touch()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "report": 0o640, "after": 0o600}


@pytest.mark.parametrize(("umask", "left"), [(0o000, 0o022), (0o002, 0o022), (0o077, 0o077), (0o027, 0o027)])
def test_no_command_makes_what_others_can_change(umask: int, left: int) -> None:
    os.umask(umask)
    let_nobody_write()
    assert os.umask(0o022) == left
