"""The embedded services: they start, restart when killed, and leave nothing behind."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from faultline.installation.kafka import kafka_ready
from faultline.installation.spark import is_worker_registered, master_state
from faultline.installation.supervision import marked_processes
from faultline.installation.supervisord import Supervisor
from faultline.system.settings import port_is_free
from faultline.system.waiting import wait_until
from tests.support.installation import Installation

pytestmark = pytest.mark.timeout(900)


@pytest.mark.thorough
def test_services_without_airflow_restart_and_end(installation: Installation) -> None:
    assert installation.run("up", "--no-airflow").returncode == 0
    services = set(Supervisor(installation.settings).pids())
    assert services == {"kafka", "spark-master", "spark-worker-1", "spark-worker-2"}
    examined = installation.run("doctor")
    assert examined.returncode == 0, examined.stdout
    assert "kafka: running" in examined.stdout and "UI" not in examined.stdout, "Airflow was left out"
    check_restarts(installation)
    check_end(installation)


@pytest.mark.last
def test_services_restart_when_killed_and_down_leaves_nothing_even_after_a_crash(
    shared_installation: Installation,
) -> None:
    """Independent of earlier tests."""
    assert shared_installation.run("up").returncode == 0
    check_restarts(shared_installation)
    check_end(shared_installation)


def check_restarts(installation: Installation) -> None:
    """Check that a second `up` changes nothing, and that killed services restart."""
    settings = installation.settings
    supervisor = Supervisor(settings)
    first = supervisor.pids()
    again = installation.run("up", "--no-airflow")
    assert again.returncode == 0 and supervisor.pids() == first, "up is idempotent"
    for name in ("kafka", "spark-worker-1"):
        os.kill(first[name], signal.SIGKILL)
    for name in ("kafka", "spark-worker-1"):
        wait_until(
            lambda name=name: supervisor.pids().get(name, first[name]) != first[name],  # type: ignore[misc]
            timeout_s=120,
            what=f"{name}: its restart",
        )
    wait_until(
        lambda: kafka_ready(settings.endpoints.kafka, settings.secrets), timeout_s=120, what="kafka: ready again"
    )
    wait_until(
        lambda: is_worker_registered(settings.endpoints, settings.ports, 1),
        timeout_s=120,
        what="worker 1: registered again",
    )
    assert master_state(settings) is not None


def check_end(installation: Installation) -> None:
    """Check that `down` ends the orphaned services of a killed supervisord."""
    settings = installation.settings
    daemon = psutil.Process(Supervisor(settings).call("supervisor.getPID"))
    daemon.kill()
    daemon.wait(120)
    orphans = marked_processes(settings)
    assert len(orphans) >= 4
    assert installation.run("down").returncode == 0
    assert not [process for process in orphans if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert all(port_is_free(port) for port in settings.ports.values())
    assert not settings.supervisor_socket.exists()
    assert installation.run("down").returncode == 0, "down is idempotent"


def test_a_busy_port_is_replaced_unless_it_was_asked_for(installation: Installation) -> None:
    import socket

    from faultline.system.errors import ConfigError
    from faultline.system.settings import choose_ports

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_ports({"kafka": port})["kafka"] > port
        with pytest.raises(ConfigError, match=f"kafka={port}: busy"):
            choose_ports({"kafka": port}, frozenset({"kafka"}))
        refused = installation.run("up", "--no-airflow", "--port", f"kafka={port}")
    assert refused.returncode == 2
    problems = [line for line in refused.stderr.splitlines() if "running as root" not in line]
    assert len(problems) == 1 and f"kafka={port}: busy" in problems[0]
    assert not Supervisor(installation.settings).is_running()
