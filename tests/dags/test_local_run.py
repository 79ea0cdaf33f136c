"""An experiment without a scheduler runs in the installation that it was asked in."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from faultline.system.endpoints import Endpoints
from faultline.system.placement import Placement
from faultline.system.settings import Settings
from faultline.orchestration.local_run import with_own_airflow


def test_only_its_airflow_is_another_one(tmp_path: Path) -> None:
    here = Settings(tmp_path, tmp_path / "home", tmp_path / "results", {"kafka": 1}, "another")
    target = Endpoints(
        kafka="k:1", kafka_detoured="", kafka_detour="", engine="spark://s:1", engine_ui="", airflow="", target="lab"
    )
    settings = replace(here, placement=Placement.of(3, "10.77.0", "faultl-x"), target=target)
    own = with_own_airflow(settings)
    assert all(getattr(own, field.name) == getattr(settings, field.name) for field in fields(Settings))
    assert own.airflow_home != settings.airflow_home
