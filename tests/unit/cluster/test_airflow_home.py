"""Airflow's folder: whom its secrets are for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from faultline.base.settings import ROOT, Settings
from faultline.cluster.airflow_home import write_airflow_home


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
