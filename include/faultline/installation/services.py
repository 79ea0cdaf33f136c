"""The embedded services: their commands and readiness.

Every service is the real program: a Kafka broker in KRaft mode, a Spark standalone master with two workers, the
persistent Spark session, and Airflow's API server, scheduler, DAG processor and triggerer.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from faultline.engines.spark.distributions import readable_distributions
from faultline.installation.airflow import airflow_services
from faultline.installation.hosts.layout import find_program, host_folder
from faultline.installation.hosts.namespace_host import init_pid
from faultline.installation.hosts.ssh import CONFIG, PORT
from faultline.installation.kafka import kafka_service
from faultline.installation.spark import (
    session_service,
    spark_services,
)
from faultline.installation.supervisord import Service
from faultline.system.endpoints import Host
from faultline.system.settings import Settings


def data_services(settings: Settings, java: Path, instance: str) -> list[Service]:
    """Return namespace hosts, Kafka, and masters and workers of the installed Spark and other registered builds.

    `instance`: the mark that identifies this installation's processes.
    """
    # A removed build does not prevent the start; its use is refused later.
    present = [build for build in readable_distributions(settings).values() if build.spark_home.is_dir()]
    builds = [service for build in present for service in spark_services(settings, instance, build)]
    own = [kafka_service(settings, java, instance), *spark_services(settings, instance)]
    return [*host_services(settings), *own, *builds]


def control_services(settings: Settings) -> list[Service]:
    """Return the services that run the experiments: Airflow and the persistent Spark session."""
    return [*airflow_services(settings), session_service(settings)]


# ---- Services of each namespace host: its process and its SSH server ----

PROBE_S = 0.5


def host_services(settings: Settings) -> list[Service]:
    """Return the services of all namespace hosts; empty if everything runs on this machine itself."""
    return [
        one
        for host in settings.placement.hosts
        for one in (_namespace_service(settings, host), _sshd_service(settings, host))
    ]


def _namespace_service(settings: Settings, host: Host) -> Service:
    command = [sys.executable, "-P", "-m", "faultline.installation.hosts.namespace_host", "keep", host.name]
    # Priority 1, so that the services on the host stop before the host.
    return Service(f"host-{host.name}", command, lambda: init_pid(settings, host.name) is not None, priority=1)


def _sshd_service(settings: Settings, host: Host) -> Service:
    command = [str(find_program("sshd")), "-D", "-e", "-f", str(host_folder(settings, host.name) / CONFIG)]
    return Service(f"sshd-{host.name}", command, lambda: _is_ssh_ready(host), host=host.name)


def _is_ssh_ready(host: Host) -> bool:
    """Return whether the host's SSH server answers."""
    try:
        with socket.create_connection((host.address, PORT), PROBE_S) as connection:
            connection.settimeout(PROBE_S)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
