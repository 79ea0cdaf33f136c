"""Airflow for the DAG tests: its own home in a temporary folder, set before Airflow is imported."""

from __future__ import annotations

import os
import tempfile
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
