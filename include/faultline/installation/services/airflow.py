"""Airflow's API server, scheduler, DAG processor and triggerer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from faultline.installation.services.service import Service
from faultline.system.environment import passed_on
from faultline.system.settings import HOST, Settings
from faultline.system.sockets import fetch_json


def airflow_services(settings: Settings) -> list[Service]:
    """Airflow's four components, from this environment's own `airflow` command."""
    airflow = str(Path(sys.executable).with_name("airflow"))

    def component(name: str) -> Callable[[], bool]:
        return lambda: airflow_health(settings).get(name) == "healthy"

    api_command = ["api-server", "--host", HOST, "--port", str(settings.ports["airflow"]), "--workers", "1"]
    return [
        Service(
            "airflow-api-server",
            [airflow, *api_command],
            lambda: bool(airflow_health(settings)),
            stop_signal="INT",
            background=True,
        ),
        # The tasks' logs are read from disk, so the log servers, which bind to every address, stay off.
        Service(
            "airflow-scheduler",
            [
                sys.executable,
                "-P",
                "-m",
                "faultline.installation.scheduler_start",
                airflow,
                "scheduler",
                "--skip-serve-logs",
            ],
            component("scheduler"),
            environment=passed_on(),
            background=True,
        ),
        Service("airflow-dag-processor", [airflow, "dag-processor"], component("dag_processor"), background=True),
        Service(
            "airflow-triggerer",
            [airflow, "triggerer", "--skip-serve-logs"],
            component("triggerer"),
            background=True,
        ),
    ]


def airflow_health(settings: Settings) -> dict[str, str]:
    """Status by component as the API server reports it; empty when it does not answer."""
    answer = fetch_json(f"{settings.endpoints.airflow}/api/v2/monitor/health") or {}
    return {
        name: str(part.get("status"))
        for name, part in answer.items()
        if isinstance(part, dict) and part.get("status") is not None
    }
