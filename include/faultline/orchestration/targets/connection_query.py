"""The Connections of a target, from whichever secrets backend or database of Airflow holds them."""

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
    """Writes down what the Connections of a target say. Within a task. Raises ConfigError naming the Connection."""
    write_target(settings, one, task_connections(one))


def store_and_preflight(settings: Settings, name: str) -> None:
    """Takes in what the Connections of a target say, and looks at it; nothing for the embedded one.

    Within a task. Raises ConfigError or InfrastructureError for the first thing that is wrong.
    """
    if (one := find_target(settings, name)) is not None:
        store_target(settings, one)
        require_preflight(settings, one, print)


def preflight_in_task(settings: Settings, names: Iterable[str]) -> None:
    """Looks at the targets of a sweep before any of its cells is tried: what is wrong with one is told once then, and
    leaves no record. While an experiment is at work only at what their Connections say.

    Within a task. Raises ConfigError; one that does not answer is left to the cells, since it may by then.
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
            print(f"target {name}: {error}; each experiment looks again")


def task_connections(one: Target) -> dict[str, ConnectionSpec]:
    """Raises ConfigError naming the Connection that is missing."""
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
    """The same in a process of this installation's Airflow that is no task; None for a Connection that is missing."""
    from airflow.exceptions import AirflowNotFoundException
    from airflow.models.connection import Connection

    found: dict[str, ConnectionSpec | None] = {}
    for conn_id in ids:
        try:
            found[conn_id] = spec_of(Connection.get_connection_from_secrets(conn_id))
        except AirflowNotFoundException:
            found[conn_id] = None
    return found


# By which one that `target add` made is known, whatever else of it was edited since.
CREATED_BY = "Made by ./faultline target add"


def create_missing(wanted: dict[str, dict[str, Any]]) -> tuple[list[str], dict[str, list[str]]]:
    """Makes those of the `wanted` Connections (keyword arguments of Airflow's, by id) that are nowhere; returns their
    ids. One that is there stays as it is. Where one says something else than is wanted, none is made, and its keys are
    returned by its id."""
    from airflow.models.connection import Connection
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import inspect

    with create_session() as session:
        fresh = not inspect(session.get_bind()).has_table(Connection.__tablename__)
    if fresh:
        initdb()
    known = stored_connections(wanted)
    new = {conn_id: Connection(conn_id=conn_id, description=CREATED_BY, **wanted[conn_id]) for conn_id in wanted}
    differing = {
        conn_id: keys
        for conn_id, there in known.items()
        if there is not None and (keys := there.differing_keys(spec_of(new[conn_id])))
    }
    made = [conn_id for conn_id in wanted if known[conn_id] is None and not differing]
    with create_session() as session:
        session.add_all([new[conn_id] for conn_id in made])
    return made, differing


def remove_created(ids: Iterable[str]) -> list[str]:
    """Removes from Airflow's database those of these Connections that `create_missing` made; returns their ids."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import inspect, select

    with create_session() as session:
        if not inspect(session.get_bind()).has_table(Connection.__tablename__):
            return []
        ours = select(Connection).where(Connection.conn_id.in_(list(ids)), Connection.description == CREATED_BY)
        found = list(session.scalars(ours))
        for one in found:
            session.delete(one)
        return sorted(one.conn_id for one in found)


def spec_of(connection: Any) -> ConnectionSpec:
    """An Airflow Connection as a value of ours."""
    return ConnectionSpec(
        connection.conn_id, connection.conn_type or "", connection.host, connection.port, connection.login,
        connection.password, dict(connection.extra_dejson),
    )  # fmt: skip


def main() -> None:
    """Answers the command line, which is no part of Airflow, about Connections of this installation's Airflow.

    Reads {"ids": […], "make": {…}, "remove": […]}: `make` are Connections to make where they are missing, `remove` ids
    of those to remove before, where `make` once made them. The answer is JSON on standard output, which is a pipe,
    since Connections hold secrets: {"made": ids, "removed": ids, "differing": {id: keys}, "specs": {id: Connection, or
    null where there is none}}.
    """
    asked = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # whatever Airflow says as it starts
        removed = remove_created(asked["remove"]) if asked["remove"] else []
        made, differing = create_missing(asked["make"]) if asked["make"] else ([], {})
        said = stored_connections(asked["ids"])
    answer = {name: None if one is None else {**asdict(one), "extra": dict(one.extra)} for name, one in said.items()}
    print(json.dumps({"made": made, "removed": removed, "differing": differing, "specs": answer}))


if __name__ == "__main__":
    main()
