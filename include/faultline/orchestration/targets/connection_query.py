"""Connections of a target, from Airflow's secrets backend or database."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

from faultline.installation.targets.connection_specs import ConnectionSpec, check_spec
from faultline.installation.targets.credential_files import write_target
from faultline.installation.targets.preflight import require_preflight
from faultline.orchestration.connections import active_experiment
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.target_registry import Target, find_target


def store_target(settings: Settings, one: Target) -> None:
    """Store the Connections of a target as files, within a task.

    Raises ConfigError naming the Connection.
    """
    write_target(settings, one, task_connections(one))


def store_and_preflight(settings: Settings, name: str) -> None:
    """Store the Connections of a target and run its preflight checks, within a task.

    Does nothing for the embedded services. Raises ConfigError or InfrastructureError for the first error.
    """
    if (one := find_target(settings, name)) is not None:
        store_target(settings, one)
        require_preflight(settings, one, print)


def preflight_in_task(settings: Settings, names: Iterable[str]) -> None:
    """Run the preflight checks of a sweep's targets before its cells, within a task.

    Errors are reported once and leave no record. During an experiment only the Connections are checked. Raises
    ConfigError; the cells retry unreachable targets.
    """
    for name in names:
        one = find_target(settings, name)
        if one is None:
            continue
        try:
            if active_experiment(settings) is None:
                store_and_preflight(settings, name)
            else:
                check_spec(one, task_connections(one))
        except InfrastructureError as error:
            print(f"target {name}: {error} (rechecked by each experiment)")


def task_connections(one: Target) -> dict[str, ConnectionSpec]:
    """Return a target's Connections, within a task.

    Raises ConfigError naming a missing Connection.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    found = {}
    for conn_id in one.connections:
        try:
            found[conn_id] = spec_of(BaseHook.get_connection(conn_id))
        except AirflowException:
            raise one.missing_connection(conn_id) from None
    return found


def stored_connections(ids: Iterable[str]) -> dict[str, ConnectionSpec | None]:
    """Return Connections outside a task, in a process of this installation's Airflow; None for a missing one."""
    from airflow.exceptions import AirflowNotFoundException
    from airflow.models.connection import Connection

    found: dict[str, ConnectionSpec | None] = {}
    for conn_id in ids:
        try:
            found[conn_id] = spec_of(Connection.get_connection_from_secrets(conn_id))
        except AirflowNotFoundException:
            found[conn_id] = None
    return found


# Description that identifies Connections of `target add`, even if they were edited since.
CREATED_BY = "Made by ./faultline target add"


def create_missing(wanted: dict[str, dict[str, Any]]) -> tuple[list[str], dict[str, list[str]]]:
    """Create the `wanted` Connections (Airflow's keyword arguments, by id) that exist nowhere; return their ids.

    Existing ones stay unchanged. If one differs from its wanted values, none is created, and its differing keys are
    returned by id.
    """
    from airflow.models.connection import Connection
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import inspect

    with create_session() as session:
        is_empty = not inspect(session.get_bind()).has_table(Connection.__tablename__)
    if is_empty:
        initdb()
    known = stored_connections(wanted)
    new = {conn_id: Connection(conn_id=conn_id, description=CREATED_BY, **wanted[conn_id]) for conn_id in wanted}
    differences = {
        conn_id: keys
        for conn_id, existing in known.items()
        if existing is not None and (keys := existing.differing_keys(spec_of(new[conn_id])))
    }
    created = [conn_id for conn_id in wanted if known[conn_id] is None and not differences]
    with create_session() as session:
        session.add_all([new[conn_id] for conn_id in created])
    return created, differences


def remove_created(ids: Iterable[str]) -> list[str]:
    """Remove those of these Connections that `create_missing` created; return their ids."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import inspect, select

    with create_session() as session:
        if not inspect(session.get_bind()).has_table(Connection.__tablename__):
            return []
        query = select(Connection).where(Connection.conn_id.in_(list(ids)), Connection.description == CREATED_BY)
        found = list(session.scalars(query))
        for one in found:
            session.delete(one)
        return sorted(one.conn_id for one in found)


def spec_of(connection: Any) -> ConnectionSpec:
    """Return an Airflow Connection as a `ConnectionSpec`."""
    return ConnectionSpec(
        connection.conn_id, connection.conn_type or "", connection.host, connection.port, connection.login,
        connection.password, dict(connection.extra_dejson),
    )  # fmt: skip


def main() -> None:
    """Reply to a query of the command line, which does not import Airflow.

    Reads {"ids": […], "make": {…}, "remove": […]} from standard input. `make`: Connections to create if missing.
    `remove`: ids to remove first, if `make` created them. Writes {"made": ids, "removed": ids, "differing": {id: keys},
    "specs": {id: Connection or null}} to standard output, which must be a pipe, because Connections hold secrets.
    """
    query = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # Airflow prints messages when it is imported
        removed = remove_created(query["remove"]) if query["remove"] else []
        created, differences = create_missing(query["make"]) if query["make"] else ([], {})
        specs = stored_connections(query["ids"])
    answer = {name: None if one is None else {**asdict(one), "extra": dict(one.extra)} for name, one in specs.items()}
    print(json.dumps({"made": created, "removed": removed, "differing": differences, "specs": answer}))


if __name__ == "__main__":
    main()
