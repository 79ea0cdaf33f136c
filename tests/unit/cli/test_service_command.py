"""The systemd unit of the services."""

from __future__ import annotations

import configparser
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from faultline.cli.service_command import UNIT, app, remove, write_unit
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings


def settings(folder: Path) -> Settings:
    return Settings(ROOT, folder / "home", folder / "results")


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the unit of this installation."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_JOB_ENV", "TOKEN")
    monkeypatch.setenv("TOKEN", "of mine")
    return tmp_path / "systemd" / "user" / UNIT


def test_the_unit_holds_commands_and_environment_of_the_installation(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "0 2 * * *")
    monkeypatch.setenv("FAULTLINE_DATABASE", "postgresql://a:secret@b/c")
    monkeypatch.setenv("FAULTLINE_NO_AUTH", "1")
    monkeypatch.setenv("FAULTLINE_UNKNOWN", "not of up")
    monkeypatch.setenv("FAULTLINE_JOB_ENV", "TOKEN, OTHER")
    monkeypatch.setenv("FAULTLINE_TOPOLOGY_DATABASE", "postgresql://a:b@c/d")
    for _ in range(2):
        write_unit(settings(tmp_path), unit)
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(unit)
    service = parsed["Service"]
    assert service["WorkingDirectory"] == str(ROOT)
    assert (service["ExecStart"], service["ExecStop"]) == ("/bin/sh ./faultline up", "/bin/sh ./faultline down")
    assert service["Type"] == "oneshot" and service["RemainAfterExit"] == "yes"
    text = unit.read_text()
    for line in (
        f"FAULTLINE_HOME={tmp_path}/home",
        "FAULTLINE_NIGHTLY_SCHEDULE=0 2 * * *",
        "FAULTLINE_JOB_ENV=TOKEN, OTHER",
        "TOKEN=of mine",
        "FAULTLINE_TOPOLOGY_DATABASE=postgresql://a:b@c/d",
        "FAULTLINE_DATABASE=postgresql://a:secret@b/c",
        "FAULTLINE_NO_AUTH=1",
    ):
        assert f'Environment="{line}"' in text
    assert stat.S_IMODE(unit.stat().st_mode) == 0o600
    assert "not of up" not in text and [one.name for one in unit.parent.iterdir()] == [UNIT]


def test_a_dry_run_prints_the_unit_and_writes_nothing(
    unit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAULTLINE_DATABASE", "postgresql://a:secret@b/c")
    app(["install", "--external-airflow", "--dry-run"], standalone_mode=False)
    output = capsys.readouterr()
    assert "ExecStart=/bin/sh ./faultline up --no-airflow --foreground\n" in output.out and 'TOKEN=…"' in output.out
    assert "of mine" not in output.out and "secret" not in output.out and "dry run" in output.err
    assert not unit.parent.exists()


def test_a_unit_of_another_installation_is_kept(unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unit(settings(tmp_path / "other"), unit)
    before = unit.read_text()
    for act in (lambda: write_unit(settings(tmp_path), unit), remove):
        with pytest.raises(ConfigError, match="belongs to another installation"):
            act()
    assert unit.read_text() == before
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "other" / "home"))
    remove()
    assert not unit.exists()
    with pytest.raises(ConfigError, match="no unit"):
        remove()


def test_an_enabled_unit_is_not_removed(unit: Path, tmp_path: Path) -> None:
    write_unit(settings(tmp_path), unit)
    link = unit.parent / "default.target.wants" / UNIT
    link.parent.mkdir()
    link.symlink_to(unit)
    with pytest.raises(ConfigError, match=f"fix: systemctl --user disable --now {UNIT}$"):
        remove()
    assert unit.exists()
    link.unlink()
    remove()
    assert not unit.exists()
    link.symlink_to(unit)
    with pytest.raises(ConfigError, match="enabled"):
        remove()


@pytest.mark.parametrize("name", ['quoted"', "two\nlines", "per%cent"])
def test_an_unrepresentable_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a path without"):
        write_unit(settings(tmp_path / name), tmp_path / UNIT)
    assert not (tmp_path / UNIT).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_paths_with_spaces_and_dollars(tmp_path: Path) -> None:
    root = tmp_path / "two words $HOME"
    root.mkdir()
    (root / "faultline").touch()
    write_unit(Settings(root, root / "home", root / "results"), tmp_path / UNIT)
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert UNIT not in verified.stderr, verified.stderr


def test_values_are_escaped(unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", '{"a": "100 %\\"}')
    write_unit(settings(tmp_path), unit)
    assert r'Environment="TOKEN={\"a\": \"100 %%\\\"}"' in unit.read_text()
    monkeypatch.setenv("TOKEN", "a\nb")
    with pytest.raises(ConfigError, match="^TOKEN: "):
        write_unit(settings(tmp_path), unit)
