"""Airflow for DAG tests, with its home in a temporary folder that is set before the import."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

# Importing Airflow reads its configuration, so this cannot wait for a fixture.
_HOME = tempfile.TemporaryDirectory(prefix="faultline-dags-")
os.environ["AIRFLOW_HOME"] = _HOME.name
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{_HOME.name}/airflow.db"
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE"] = "False"


@pytest.fixture(scope="session")
def bag() -> Any:
    """All DAG files of the project, parsed by Airflow."""
    from airflow.dag_processing.dagbag import DagBag

    from faultline.system.settings import ROOT

    return DagBag(str(ROOT / "dags"))


@pytest.fixture
def as_nightly_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tasks of nightly DAGs in a scheduled run with these form values."""
    from faultline.orchestration import matrix_dag
    from faultline.orchestration.nightly import dag_factory
    from tests.unit.nightly_records import date_of, scheduled

    def begin(dag: Any, number: int, params: dict[str, Any] | None = None) -> None:
        date = datetime.fromisoformat(date_of(number))
        context = {"params": params or dag.params.dump(), "dag": dag, "run_id": f"scheduled__{date.isoformat()}"}
        context |= {"logical_date": date, "dag_run": scheduled(date)}
        for module in (dag_factory, matrix_dag):
            monkeypatch.setattr(module, "get_current_context", lambda: context)

    return begin


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes written for runs."""
    written: list[Any] = []
    monkeypatch.setattr("faultline.orchestration.airflow_api.write_note", lambda *expected: written.append(expected))
    return written


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[Any]) -> Any:
    """Settings of the tasks: an empty results folder, and the project's programs."""
    from faultline.orchestration import matrix_dag
    from faultline.orchestration.nightly import dag_factory, nightly_plan
    from faultline.system.settings import ROOT, Settings

    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    for module in (dag_factory, nightly_plan, matrix_dag):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    return settings
