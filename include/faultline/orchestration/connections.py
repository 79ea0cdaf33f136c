"""Asks this installation's Airflow for Connections, and takes in what they say of a target."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faultline.experiment.attempt import open_attempts
from faultline.installation.airflow import airflow_environment, choose_database, write_airflow_home
from faultline.installation.service_users import supervisor_pid
from faultline.installation.supervisord import Supervisor
from faultline.installation.targets.connection_specs import ConnectionSpec, check_spec
from faultline.installation.targets.credential_files import write_target
from faultline.installation.targets.preflight import require_preflight
from faultline.system.child_environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.locks import MachineLock
from faultline.system.settings import Settings, check_folders
from faultline.system.target_registry import Target, find_target
from faultline.system.text import Progress

QUERY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ConnectionReply:
    """What Airflow's Connections say by id, None for one that there is not; the ids of those that were made and
    removed; the keys of those that say something else than was to be made, for which nothing is made."""

    specs: Mapping[str, ConnectionSpec | None]
    created: Sequence[str] = ()
    removed: Sequence[str] = ()
    differences: Mapping[str, Sequence[str]] = field(default_factory=dict)


def query_connections(
    settings: Settings,
    ids: Sequence[str],
    make: Mapping[str, Mapping[str, Any]] | None = None,
    remove: Sequence[str] = (),
) -> ConnectionReply:
    """Asks for Connections by their `ids`; makes those of `make` that are missing, and before removes those of `remove`
    that were made so. Raises InfrastructureError when Airflow does not answer."""
    check_folders(settings)
    if not (settings.airflow_home / "airflow.cfg").exists():
        write_airflow_home(settings, choose_database(settings, running=Supervisor(settings).is_running()))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "faultline.orchestration.targets.connection_query"],
            input=json.dumps({"ids": list(ids), "make": make or {}, "remove": list(remove)}),
            env=clean_environment(airflow_environment(settings)),
            cwd=settings.root,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        raise InfrastructureError("airflow: its Connections cannot be read; look at ./faultline doctor") from None
    said = {name: None if one is None else ConnectionSpec(**one) for name, one in answer["specs"].items()}
    return ConnectionReply(said, answer["made"], answer["removed"], answer["differing"])


def check_targets(settings: Settings, names: Iterable[str]) -> None:
    """Looks at what targets' Connections say, as far as that needs no cluster, and writes nothing: for a dry run.
    Raises ConfigError for the first thing that is missing or wrong."""
    for name in names:
        if (one := find_target(settings, name)) is not None:
            check_spec(one, _specs_of(settings, one))


def active_experiment(settings: Settings) -> str | None:
    """The experiment that a look would disturb, in words: one of this machine, or of this installation's."""
    if (holder := MachineLock(settings.machine).holder()) is not None:
        return holder.text
    if supervisor_pid(settings) is None:
        # What is open then was cut off.
        return None
    return next((one.id for one in open_attempts(settings.attempts, settings.home) if one.over is None), None)


def preflight_targets(settings: Settings, names: Iterable[str], say: Progress) -> None:
    """Looks at targets before experiments on them are asked for: what is wrong with one is told once then, and leaves
    no record. Raises the first thing that is wrong."""
    if active_experiment(settings) is not None:
        # The experiment looks when its turn has come.
        return check_targets(settings, names)
    for name in names:
        if (one := find_target(settings, name)) is not None:
            import_target(settings, one)
            require_preflight(settings, one, say)


def preflight_available_targets(settings: Settings, names: Iterable[str]) -> None:
    """The same before a sweep is planned: a target that does not answer is left to the cells, since it may by then."""
    for name in names:
        try:
            preflight_targets(settings, [name], print)
        except InfrastructureError as error:
            print(f"target {name}: {error}; each experiment looks again")


def import_target(settings: Settings, one: Target) -> None:
    """Writes what the target's Connections say to where whoever measures looks. Raises ConfigError naming what is
    missing or wrong."""
    write_target(settings, one, _specs_of(settings, one))


def _specs_of(settings: Settings, one: Target) -> dict[str, ConnectionSpec]:
    """Raises ConfigError naming a Connection that is missing."""
    found = {}
    for conn_id, said in query_connections(settings, one.connections).specs.items():
        if said is None:
            raise one.missing_connection(conn_id)
        found[conn_id] = said
    return found
