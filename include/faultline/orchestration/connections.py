"""Connections of this installation's Airflow: queries, and import of targets (external clusters)."""

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
    """Reply to a query of Connections.

    `specs`: by id, None for a missing Connection. `created`, `removed`: ids. `differences`: differing keys by id; if
    any, nothing is created.
    """

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
    """Remove the Connections `remove`, create those of `make` that are missing, and return those with these `ids`.

    Only Connections that an earlier `make` created are removed. Raises InfrastructureError if the query fails.
    """
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
        raise InfrastructureError("airflow: reading Connections failed; fix: see ./faultline doctor") from None
    specs = {name: None if one is None else ConnectionSpec(**one) for name, one in answer["specs"].items()}
    return ConnectionReply(specs, answer["made"], answer["removed"], answer["differing"])


def check_targets(settings: Settings, names: Iterable[str]) -> None:
    """Check the targets' Connections without contacting clusters or writing files, for a dry run.

    Raises ConfigError for the first missing or wrong value.
    """
    for name in names:
        if (one := find_target(settings, name)) is not None:
            check_spec(one, _specs_of(settings, one))


def active_experiment(settings: Settings) -> str | None:
    """Return the running experiment that a preflight check would disturb, as text; None if there is none.

    It may belong to this installation or to another one on this machine.
    """
    if (holder := MachineLock(settings.machine).holder()) is not None:
        return holder.text
    if supervisor_pid(settings) is None:
        # If no services run, an open attempt is orphaned: its owner has died.
        return None
    return next((one.id for one in open_attempts(settings.attempts, settings.home) if one.over is None), None)


def preflight_targets(settings: Settings, names: Iterable[str], progress: Progress) -> None:
    """Run the preflight checks of targets before experiments on them are requested.

    Errors are reported once and leave no record. Raises the first error.
    """
    if active_experiment(settings) is not None:
        # A requested experiment waits for the running one and then does the preflight checks itself.
        return check_targets(settings, names)
    for name in names:
        if (one := find_target(settings, name)) is not None:
            import_target(settings, one)
            require_preflight(settings, one, progress)


def preflight_available_targets(settings: Settings, names: Iterable[str]) -> None:
    """Run the preflight checks before a sweep is planned; its cells retry unreachable targets."""
    for name in names:
        try:
            preflight_targets(settings, [name], print)
        except InfrastructureError as error:
            print(f"target {name}: {error} (rechecked by each experiment)")


def import_target(settings: Settings, one: Target) -> None:
    """Store the target's Connections as files for the experiments.

    Raises ConfigError naming a missing or wrong value.
    """
    write_target(settings, one, _specs_of(settings, one))


def _specs_of(settings: Settings, one: Target) -> dict[str, ConnectionSpec]:
    """Return the target's Connections.

    Raises ConfigError naming a missing Connection.
    """
    found = {}
    for conn_id, spec in query_connections(settings, one.connections).specs.items():
        if spec is None:
            raise one.missing_connection(conn_id)
        found[conn_id] = spec
    return found
