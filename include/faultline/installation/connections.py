"""The Airflow Connections that an installation has: of its broker, its Spark, and the hosts that SSH reaches."""

from __future__ import annotations

import json
from typing import Any

from faultline.engines.spark.settings import LOCAL_MASTER
from faultline.system.kafka import kafka_client
from faultline.system.settings import Settings
from faultline.system.ssh_hosts import ssh_hosts


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


def spark_connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Connections by id: the cluster's master, and one JVM for short jobs."""
    common = {"conn_type": "spark", "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"})}
    return {
        "spark_default": {
            **common,
            "host": f"spark://{settings.placement.conductor}",
            "port": settings.ports["spark_master"],
        },
        "spark_local": {**common, "host": LOCAL_MASTER},
    }
