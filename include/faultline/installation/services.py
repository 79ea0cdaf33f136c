"""The embedded services: what each one runs, and when it is ready.

Every service is the real program: a Kafka broker in KRaft mode, a Spark standalone master with
two workers, a Spark of one JVM that stays for short jobs, and Airflow's API server, scheduler, DAG processor and
triggerer.
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
    """Kafka, the Spark master and the workers, of the `up` that is known as `instance`; those of other builds of Spark
    that are registered, too."""
    # One that is gone keeps nothing else from starting; whoever asks for it is told.
    there = [own for own in readable_distributions(settings).values() if own.spark_home.is_dir()]
    builds = [one for own in there for one in spark_services(settings, instance, own)]
    own = [kafka_service(settings, java, instance), *spark_services(settings, instance)]
    return [*host_services(settings), *own, *builds]


def control_services(settings: Settings) -> list[Service]:
    """What runs the experiments: Airflow, and the Spark that it hands harvest and aggregate to."""
    return [*airflow_services(settings), session_service(settings)]


# ---- What each host needs to be one: somebody who keeps it, and its SSH server ----

PROBE_S = 0.5


def host_services(settings: Settings) -> list[Service]:
    """Those of all hosts; none when everything runs on this machine."""
    return [
        one
        for host in settings.placement.hosts
        for one in (_namespace_service(settings, host), _sshd_service(settings, host))
    ]


def _namespace_service(settings: Settings, host: Host) -> Service:
    command = [sys.executable, "-P", "-m", "faultline.installation.hosts.namespace_host", "keep", host.name]
    # What runs on it stops before it.
    return Service(f"host-{host.name}", command, lambda: init_pid(settings, host.name) is not None, priority=1)


def _sshd_service(settings: Settings, host: Host) -> Service:
    command = [str(find_program("sshd")), "-D", "-e", "-f", str(host_folder(settings, host.name) / CONFIG)]
    return Service(f"sshd-{host.name}", command, lambda: _is_ssh_ready(host), host=host.name)


def _is_ssh_ready(host: Host) -> bool:
    """Whether an SSH server greets there."""
    try:
        with socket.create_connection((host.address, PORT), PROBE_S) as connection:
            connection.settimeout(PROBE_S)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
