"""Prepares Airflow's metadata database: migrations, and the Connections of this installation.

Run by `./faultline up` as a program of its own, because importing Airflow takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from faultline.system.errors import ConfigError
from faultline.system.kafka_login import kafka_client
from faultline.system.settings import Settings, check_ssh_host, load_settings, ssh_hosts
from faultline.installation.airflow_home import present_database
from faultline.orchestration.spark import spark_connections


def connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Airflow Connections by id, as keyword arguments of Airflow's `Connection`."""
    return {
        "kafka_default": {
            "conn_type": "kafka",
            "extra": json.dumps(kafka_client(settings.endpoints.kafka, secrets=settings.secrets)),
        },
        **spark_connections(settings),
        **{f"ssh_{name}": _ssh(host) for name, host in ssh_hosts(settings).items()},
    }


def _ssh(host: dict[str, Any]) -> dict[str, object]:
    """Only paths of keys are kept, never a key or a password."""
    extra = {key: host[key] for key in ("key_file", "known_hosts", "python", "disk") if key in host}
    return {
        "conn_type": "ssh",
        "host": host["host"],
        "login": host["user"],
        "port": int(host["port"]),
        "extra": json.dumps(extra),
    }


def remote_hosts(settings: Settings) -> dict[str, dict[str, Any]]:
    """The hosts of `ssh_hosts.json` as their Connections say; a Connection may be edited in the UI."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    found = {}
    for name in ssh_hosts(settings):
        try:
            connection = BaseHook.get_connection(f"ssh_{name}")
        except AirflowException:
            raise ConfigError(
                f"ssh_hosts.json: {name}: there is no Connection ssh_{name}; run ./faultline up"
            ) from None
        address = {"host": connection.host, "port": connection.port, "user": connection.login}
        found[name] = check_ssh_host(f"Connection ssh_{name}", {**address, **connection.extra_dejson})
    return found


def provision(settings: Settings) -> None:
    """Migrates the database and makes the Connections equal to `connections(settings)`; idempotent."""
    wanted = connections(settings)
    stamp = settings.airflow_home / "provisioned.json"
    digest = _digest(wanted, settings)
    # A database elsewhere may be another one at the same address.
    if stamp.exists() and stamp.read_text() == digest and present_database(settings) is None:
        return
    from airflow.models.connection import Connection
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    initdb()  # creates an empty database, migrates an older one
    with create_session() as session:
        for conn_id, arguments in wanted.items():
            session.execute(delete(Connection).where(Connection.conn_id == conn_id))
            session.add(Connection(conn_id=conn_id, **arguments))
    temporary = stamp.with_suffix(".tmp")
    temporary.write_text(digest)
    temporary.rename(stamp)


def _digest(wanted: dict[str, dict[str, object]], settings: Settings) -> str:
    from importlib.metadata import version

    database = Path(settings.airflow_home / "airflow.cfg").read_text()
    content = json.dumps([wanted, version("apache-airflow"), database], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


if __name__ == "__main__":
    provision(load_settings())
