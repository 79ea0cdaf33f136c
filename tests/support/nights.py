"""Nights on a real Airflow, as the page on them has one begin."""

from __future__ import annotations

from faultline.cli.sweep_runner import await_dags
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration.airflow_api import AirflowApi


def switch_on(api: AirflowApi) -> None:
    """What the page on nights has one do; a night that was due long ago begins then, and refuses itself."""
    await_dags(api, NIGHTLY, unpaused=False)
    api._call("PATCH", f"/api/v2/dags/{NIGHTLY}?update_mask=is_paused", {"is_paused": False})
    await_dags(api, NIGHTLY)
