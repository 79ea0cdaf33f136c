"""Prepares Airflow's metadata database: migrations, and the Connections of this installation.

Run by `./faultline up` as a program of its own, because importing Airflow takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from faultline.settings import HOST, Settings, load_settings


def connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Airflow Connections by id, as keyword arguments of Airflow's `Connection`."""
    return {
        "kafka_default": {
            "conn_type": "kafka",
            "extra": json.dumps({"bootstrap.servers": settings.kafka_bootstrap}),
        },
        "spark_default": {
            "conn_type": "spark",
            "host": f"spark://{HOST}",
            "port": settings.ports["spark_master"],
            "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"}),
        },
        # The harvest is a short batch job; in one JVM it is done before executors would be up.
        "spark_local": {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"}),
        },
    }


def provision(settings: Settings) -> None:
    """Migrates the database and makes the Connections equal to `connections(settings)`; idempotent."""
    wanted = connections(settings)
    stamp = settings.airflow_home / "provisioned.json"
    digest = _digest(wanted, settings)
    if stamp.exists() and stamp.read_text() == digest:
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
