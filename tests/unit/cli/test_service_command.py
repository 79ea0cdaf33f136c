"""The unit that brings the services up after a reboot."""

from __future__ import annotations

import configparser
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from faultline.cli.service_command import UNIT, install, remove, write_unit
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings


def settings(folder: Path) -> Settings:
    return Settings(ROOT, folder / "home", folder / "results")


def test_the_unit_runs_this_installation_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "0 2 * * *")
    monkeypatch.setenv("FAULTLINE_DATABASE", "postgresql://a:secret@b/c")
    monkeypatch.setenv("FAULTLINE_PASS", "TOKEN, OTHER")
    monkeypatch.setenv("FAULTLINE_TOPOLOGY_DATABASE", "postgresql://a:b@c/d")
    monkeypatch.setenv("TOKEN", "of mine")
    path = tmp_path / "systemd" / "user" / UNIT
    write_unit(settings(tmp_path), path)
    write_unit(settings(tmp_path), path)  # twice is once
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(path)
    service = unit["Service"]
    assert service["WorkingDirectory"] == str(ROOT)
    assert (service["ExecStart"], service["ExecStop"]) == ("/bin/sh ./faultline up", "/bin/sh ./faultline down")
    assert service["Type"] == "oneshot" and service["RemainAfterExit"] == "yes"
    text = path.read_text()
    assert (
        f'Environment="FAULTLINE_HOME={tmp_path}/home"' in text
        and 'Environment="FAULTLINE_NIGHTLY_SCHEDULE=0 2' in text
    )
    assert 'Environment="FAULTLINE_PASS=TOKEN, OTHER"' in text and 'Environment="TOKEN=of mine"' in text
    assert 'Environment="FAULTLINE_TOPOLOGY_DATABASE=postgresql://a:b@c/d"' in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in text and [one.name for one in path.parent.iterdir()] == [UNIT]


def test_a_dry_run_prints_the_unit_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_PASS", "TOKEN")
    monkeypatch.setenv("TOKEN", "of mine")
    install(conductor=True, dry_run=True)
    told = capsys.readouterr()
    assert "ExecStart=/bin/sh ./faultline up --no-airflow --foreground\n" in told.out and 'TOKEN=…"' in told.out
    assert "of mine" not in told.out and "nothing was done" in told.err
    assert not (tmp_path / "config").exists()


def test_another_installations_unit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "systemd" / "user" / UNIT
    write_unit(settings(tmp_path / "other"), path)
    before = path.read_text()
    with pytest.raises(ConfigError, match="is of another installation"):
        write_unit(settings(tmp_path), path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError, match="is of another installation"):
        remove()
    assert path.read_text() == before
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "other" / "home"))
    remove()
    assert not path.exists()
    with pytest.raises(ConfigError, match="there is none"):
        remove()


def test_a_unit_that_is_enabled_is_not_removed_and_it_says_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    path = tmp_path / "systemd" / "user" / UNIT
    write_unit(settings(tmp_path), path)
    link = path.parent / "default.target.wants" / UNIT
    link.parent.mkdir()
    link.symlink_to(path)
    with pytest.raises(ConfigError, match=f"first: systemctl --user disable --now {UNIT}$"):
        remove()
    assert path.exists()
    link.unlink()
    remove()
    assert not path.exists()
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="is enabled"):
        remove()


@pytest.mark.parametrize("name", ['quoted"', "two\nlines", "per%cent"])
def test_a_path_that_no_unit_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a unit"):
        write_unit(settings(tmp_path / name), tmp_path / UNIT)
    assert not (tmp_path / UNIT).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_a_path_with_spaces_and_dollars_is_one_that_systemd_reads(tmp_path: Path) -> None:
    root = tmp_path / "two words $HOME"
    root.mkdir()
    (root / "faultline").touch()
    write_unit(Settings(root, root / "home", root / "results"), tmp_path / UNIT)
    told = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert UNIT not in told.stderr, told.stderr


def test_values_are_handed_on_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_PASS", "TOKEN")
    monkeypatch.setenv("TOKEN", '{"a": "100 %\\"}')
    write_unit(settings(tmp_path), tmp_path / UNIT)
    assert r'Environment="TOKEN={\"a\": \"100 %%\\\"}"' in (tmp_path / UNIT).read_text()
    monkeypatch.setenv("TOKEN", "a\nb")
    with pytest.raises(ConfigError, match="TOKEN: holds a line break"):
        write_unit(settings(tmp_path), tmp_path / UNIT)
