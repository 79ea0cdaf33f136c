"""Asks this installation's Airflow for Connections, and takes in what they say of a target."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from faultline.base.environment import clean_environment
from faultline.base.errors import InfrastructureError
from faultline.base.settings import Settings, check_folders
from faultline.base.target import Target
from faultline.cluster.airflow_home import airflow_environment, choose_database, write_airflow_home
from faultline.cluster.daemon import Supervisor
from faultline.cluster.targets.logins import write_target
from faultline.cluster.targets.said import Said

ANSWER_S = 300.0


def ask(
    settings: Settings, ids: Sequence[str], make: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[str], dict[str, Said | None]]:
    """The ids of Connections that were missing and are made as `make` says, and what those of `ids` say, None for one
    that there is not. Raises InfrastructureError when Airflow does not answer."""
    check_folders(settings)
    if not (settings.airflow_home / "airflow.cfg").exists():
        write_airflow_home(settings, choose_database(settings, running=Supervisor(settings).running()))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "faultline.orchestration.targets.process"],
            input=json.dumps({"ids": list(ids), "make": make or {}}),
            env=clean_environment(airflow_environment(settings)),
            cwd=settings.root,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        raise InfrastructureError("airflow: its Connections cannot be read; look at ./faultline doctor") from None
    said = {name: None if one is None else Said(**one) for name, one in answer["said"].items()}
    return list(answer["made"]), said


def take_in(settings: Settings, target: Target) -> None:
    """Writes what the target's Connections say to where whoever measures looks. Raises ConfigError naming what is
    missing or wrong."""
    _, said = ask(settings, target.connections)
    for conn_id, one in said.items():
        if one is None:
            raise target.missing(conn_id)
    write_target(settings, target, {conn_id: one for conn_id, one in said.items() if one is not None})
