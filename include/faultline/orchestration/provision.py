"""Preparation of Airflow's metadata database: migrations and Connections of this installation.

`./faultline up` runs it as a separate program, because importing Airflow takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from faultline.installation.airflow import configured_database, connections
from faultline.system.settings import Settings, load_settings


def provision(settings: Settings) -> None:
    """Migrate the database and set the Connections to `connections(settings)`. Idempotent."""
    wanted = connections(settings)
    stamp = settings.airflow_home / "provisioned.json"
    digest = _digest(wanted, settings)
    # Only the embedded database may be skipped: an external one may have been replaced at the same address.
    if stamp.exists() and stamp.read_text() == digest and configured_database(settings) is None:
        return
    from airflow.models.connection import Connection
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    initdb()  # creates or migrates the database
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
