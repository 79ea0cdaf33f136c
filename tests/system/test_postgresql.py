"""Airflow on a real PostgreSQL, embedded and as the containers start it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from benchmarks.installation import form
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.cell import EXPERIMENT
from faultline.installation.airflow import DATABASE, PASSWORD, configured_database, password
from faultline.installation.container_entrypoint import services
from faultline.installation.java import find_java
from faultline.installation.supervision import marked_processes
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.store import Store
from faultline.system.process_ledger import end_processes
from faultline.system.settings import instance
from faultline.system.waiting import wait_until
from tests.support.installation import BUSY_MACHINE_REASONS, Installation
from tests.support.postgresql import Cluster

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

SWEEP_ONLY = ("repetitions", "max_measurements")


def test_up_uses_the_database_and_what_runs_keeps_it(installation: Installation, cluster: Cluster) -> None:
    installation.given[DATABASE] = cluster.address
    done = installation.run("up")
    assert done.returncode == 0, done.stderr
    await_dags(AirflowApi(installation.settings), "experiment")
    assert cluster.query("SELECT count(*) FROM dag WHERE dag_id = 'experiment'") == "1"
    assert not (installation.home / "airflow" / "airflow.db").exists()
    del installation.given[DATABASE]
    assert installation.run("up").returncode == 0
    assert configured_database(installation.settings) is not None
    installation.given[DATABASE] = cluster.address + "2"
    refused = installation.run("up")
    assert refused.returncode == 2 and "Airflow runs on another database" in refused.stderr


@pytest.fixture
def serve(installation: Installation) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start services as their containers do; all are stopped at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "faultline.installation.container_entrypoint", name]
        with (installation.home / f"{name}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    command,
                    env=installation.environment,
                    cwd=installation.home,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield begin
    end_processes(marked_processes(installation.settings))
    for process in started:
        process.wait(120)


def test_an_experiment_runs_on_services_that_were_started_one_by_one_as_in_containers(
    installation: Installation, cluster: Cluster, serve: Callable[[str], subprocess.Popen[str]]
) -> None:
    installation.given[DATABASE] = cluster.address
    installation.given[PASSWORD] = "given"
    assert serve("prepare").wait(120) == 0, (installation.home / "prepare.log").read_text()
    settings = installation.settings
    mark = instance(settings)
    assert serve("prepare").wait(120) == 0 and instance(settings) == mark, "a second time changes no mark"
    # Only that container gets the database address and the password.
    del installation.given[DATABASE]
    del installation.given[PASSWORD]
    assert password(settings) == "given" and configured_database(settings) is not None

    for one in services(settings, find_java(settings.home / "java.json")).values():
        process = serve(one.name)
        wait_until(
            one.ready,
            timeout_s=180,
            every_s=0.5,
            what=f"{one.name}: ready",
            alive=lambda process=process, name=one.name: (  # type: ignore[misc]
                None if process.poll() is None else (installation.home / f"{name}.log").read_text()[-2000:]
            ),
        )
    api = AirflowApi(settings)
    await_dags(api, EXPERIMENT)
    conf = {key: value for key, value in form("test", [100.0], 1).items() if key not in SWEEP_ONLY}
    run_id = api.trigger(EXPERIMENT, {**conf, "rate": 100.0})
    wait_until(lambda: api.run_state(EXPERIMENT, run_id) in FINISHED, timeout_s=300, every_s=0.5, what="the run's end")
    (record,) = Store(settings.results).query()
    assert record.status == "valid" or all(one.split(":")[0] in BUSY_MACHINE_REASONS for one in record.reasons)
    assert cluster.query("SELECT count(*) FROM dag_run WHERE dag_id = 'experiment'") == "1"


def test_a_database_that_cannot_hold_every_text_is_refused(installation: Installation, cluster: Cluster) -> None:
    cluster.query("CREATE DATABASE narrow ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    installation.given[DATABASE] = cluster.address.replace("/postgres", "/narrow")
    done = installation.run("up")
    assert done.returncode == 2 and "encoding SQL_ASCII" in done.stderr
