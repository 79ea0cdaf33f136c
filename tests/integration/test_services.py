"""The embedded services: they start, restart when killed, and leave nothing behind."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from faultline.base.settings import port_is_free
from faultline.base.waiting import wait_until
from faultline.cluster.services import kafka_ready, master_state, worker_registered
from faultline.cluster.supervision import Supervisor, marked_processes
from tests.integration.installation import Installation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_services_restart_when_killed_and_down_leaves_nothing_even_after_a_crash(installation: Installation) -> None:
    assert installation.run("up", "--no-airflow").returncode == 0
    settings = installation.settings
    supervisor = Supervisor(settings)
    first = supervisor.pids()
    assert set(first) == {"kafka", "spark-master", "spark-worker-1", "spark-worker-2"}

    again = installation.run("up", "--no-airflow")
    assert again.returncode == 0 and supervisor.pids() == first, "up is idempotent"

    examined = installation.run("doctor")
    assert examined.returncode == 0, examined.stdout
    assert "kafka: running" in examined.stdout and "UI" not in examined.stdout, "Airflow was left out"

    for name in ("kafka", "spark-worker-1"):
        os.kill(first[name], signal.SIGKILL)
    for name in ("kafka", "spark-worker-1"):
        wait_until(
            lambda name=name: supervisor.pids().get(name, first[name]) != first[name],  # type: ignore[misc]
            timeout_s=120,
            what=f"{name}: its restart",
        )
    wait_until(lambda: kafka_ready(settings.endpoints.kafka), timeout_s=120, what="kafka: ready again")
    wait_until(lambda: worker_registered(settings, 1), timeout_s=120, what="worker 1: registered again")
    assert master_state(settings) is not None

    # The supervisor dies without a word; its services live on as orphans.
    daemon = psutil.Process(supervisor.call("supervisor.getPID"))
    daemon.kill()
    daemon.wait(10)
    orphans = marked_processes(settings)
    assert len(orphans) >= 4
    assert installation.run("down").returncode == 0
    assert not [process for process in orphans if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert all(port_is_free(port) for port in settings.ports.values())
    assert not settings.supervisor_socket.exists()
    assert installation.run("down").returncode == 0, "down is idempotent"


def test_a_busy_port_is_replaced_unless_it_was_asked_for(installation: Installation) -> None:
    import socket

    from faultline.base.errors import ConfigError
    from faultline.base.settings import choose_ports

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_ports({"kafka": port})["kafka"] > port
        with pytest.raises(ConfigError, match=f"kafka={port}: busy"):
            choose_ports({"kafka": port}, frozenset({"kafka"}))
        refused = installation.run("up", "--no-airflow", "--port", f"kafka={port}")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and f"kafka={port}: busy" in refused.stderr
    assert not Supervisor(installation.settings).running()
