"""Nightly runs on a real Airflow, started as the results page describes."""

from __future__ import annotations

from faultline.cli.sweep_runner import await_dags
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration.airflow_api import AirflowApi


def switch_on(api: AirflowApi) -> None:
    """Unpause the nightly DAG; an overdue run then starts, but is rejected."""
    await_dags(api, NIGHTLY, unpaused=False)
    api._call("PATCH", f"/api/v2/dags/{NIGHTLY}?update_mask=is_paused", {"is_paused": False})
    await_dags(api, NIGHTLY)
