"""Airflow's folder: whom its secrets are for."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from faultline.installation import airflow as airflow_home
from faultline.installation.airflow import DATABASE, choose_database, login_words, password, write_airflow_home
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_its_secrets_are_for_their_owner_only(umask: int, tmp_path: Path) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    before = os.umask(umask)
    try:
        home = write_airflow_home(settings, "postgresql://user:word@127.0.0.1:1/name")
        first = {path.name: path.read_bytes() for path in home.iterdir()}
        write_airflow_home(settings, "postgresql://user:word@127.0.0.1:1/name")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert len(modes) >= 3 and set(modes.values()) == {0o600}, modes
    assert first == {path.name: path.read_bytes() for path in home.iterdir()}, "made once, and kept"


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    keys = write_airflow_home(settings) / "secrets.json"
    keys.chmod(0o640)
    with pytest.raises(ConfigError, match=f"others may not see it; chmod 0600 {keys}$"):
        write_airflow_home(settings)


def test_the_password_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    with pytest.raises(ConfigError, match="./faultline up makes it"):
        password(settings)
    write_airflow_home(settings)
    known = password(settings)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert login_words(settings, Terminal()) == f"user admin, password {known}"
    assert login_words(settings, io.StringIO()) == "user admin, ./faultline password shows the password"


def test_the_database_of_before_is_kept_until_another_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut nobody says it again."""
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    asked: list[str] = []
    monkeypatch.setattr(airflow_home, "require_database", asked.append)
    monkeypatch.delenv(DATABASE, raising=False)
    assert choose_database(settings, running=False) is None, "SQLite, at first"
    monkeypatch.setenv(DATABASE, "postgresql://user:wo%25rd@127.0.0.1:1/name")
    address = "postgresql+psycopg2://user:wo%25rd@127.0.0.1:1/name"
    assert choose_database(settings, running=False) == address
    write_airflow_home(settings, address)
    monkeypatch.delenv(DATABASE)
    assert choose_database(settings, running=True) == address and asked == [address]
    assert choose_database(settings, running=False) == address and asked == [address] * 2, "it has to answer"
    monkeypatch.setenv(DATABASE, "")
    with pytest.raises(ConfigError, match="runs on another database"):
        choose_database(settings, running=True)
    assert choose_database(settings, running=False) is None, "said by an empty name"


def test_a_damaged_configuration_does_not_lose_the_database_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    monkeypatch.delenv(DATABASE, raising=False)
    (write_airflow_home(settings) / "airflow.cfg").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"airflow\.cfg: is damaged"):
        choose_database(settings, running=False)
