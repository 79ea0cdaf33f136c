"""An external Airflow in use: its tasks are killed, a sweep is measured, and Faultline is removed from it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.installation import MATRIX, form
from faultline.installation.supervisord import Supervisor
from faultline.orchestration.external.dag_installer import INSTALLATION_FILE
from faultline.records.store import Store
from faultline.system.process_ledger import end_processes
from faultline.system.socket_owner import fetch_json
from faultline.system.waiting import wait_until
from tests.component.test_external_airflow import COMMAND, ExternalAirflow
from tests.support.installation import BUSY_MACHINE_REASONS, Installation, free_ports
from tests.support.postgresql import Cluster
from tests.support.processes import words_of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]

HOLD = ("--no-airflow", "--foreground")
SWEEP_ONLY = ("repetitions", "max_measurements")
# Titles of a LocalExecutor worker and of its child processes.
WORKER = "airflow worker -- "
MEASURING = "SELECT state FROM task_instance WHERE dag_id = 'ext_experiment' AND task_id = 'inject_fault'"
ENDED = {"success", "failed"}


@pytest.fixture
def external(tmp_path: Path, cluster: Cluster) -> Iterator[ExternalAirflow]:
    """External Airflow with PostgreSQL and two schedulers, each with a LocalExecutor, that has run a foreign DAG."""
    made = ExternalAirflow(tmp_path / "external", cluster.address.replace("postgresql://", "postgresql+psycopg2://"))
    (port,) = free_ports(1)
    made.environment |= {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    }
    running = made.running
    with (tmp_path / "external.log").open("w") as log:
        for words in (["standalone"], ["scheduler", "--skip-serve-logs"]):
            running.append(
                subprocess.Popen(
                    [COMMAND, *words], env=made.environment, stdout=log, stderr=log, start_new_session=True
                )
            )
    try:
        # A task that starts earlier waits some seconds and fails.
        health = f"http://127.0.0.1:{port}/api/v2/monitor/health"
        wait_until(lambda: fetch_json(health), timeout_s=120, every_s=0.5, what="external Airflow: API server")
        made.call("dags", "unpause", "foreign_dag")
        made.call("dags", "trigger", "foreign_dag")
        wait_until(
            lambda: made.rows("SELECT state FROM dag_run WHERE dag_id = 'foreign_dag'") == [("success",)],
            timeout_s=120,
            every_s=0.5,
            what="external Airflow: end of the foreign run",
            alive=lambda: (
                (tmp_path / "external.log").read_text()[-2000:] if any(one.poll() for one in running) else None
            ),
        )
        yield made
        assert [one.poll() for one in running] == [None, None], "both schedulers ran all the while"
    finally:
        made.database.dispose()
        for process in running:
            first = psutil.Process(process.pid)
            end_processes([*first.children(recursive=True), first])
            process.wait(120)


@pytest.fixture
def worker_daemon(installation: Installation) -> Iterator[subprocess.Popen[str]]:
    with (installation.home / "conductor.log").open("w") as log:
        process = subprocess.Popen(
            [*installation.command("up"), *HOLD],
            env=installation.environment,
            cwd=installation.home,
            stdout=log,
            stderr=log,
            text=True,
        )
    log_file = installation.home / "conductor.log"
    try:
        wait_until(
            lambda: "services: ready" in log_file.read_text(),
            timeout_s=180,
            every_s=0.5,
            what="the services",
            alive=lambda: None if process.poll() is None else log_file.read_text()[-2000:],
        )
        yield process
    finally:
        process.terminate()
        process.wait(120)


def use_this_python(place: Path, command: Path) -> None:
    """Use this Python, because `./faultline` would create an environment first."""
    path = os.pathsep.join(filter(None, sys.path))
    command.write_text(f"#!/bin/sh\nexport PYTHONPATH='{path}'\nexec '{sys.executable}' -P -m faultline \"$@\"\n")
    command.chmod(0o700)
    place.write_text(json.dumps({**json.loads(place.read_text()), "command": str(command)}))


def kill_the_task(external: ExternalAirflow) -> None:
    """Kill the process of the task that waits for the fault, as the OOM killer may."""

    def ended() -> str | None:
        (state,) = external.rows("SELECT state FROM dag_run WHERE dag_id = 'ext_experiment'")
        return f"the run: {state[0]}" if state[0] in ENDED else None

    wait_until(
        lambda: external.rows(MEASURING) == [("running",)],
        timeout_s=300,
        every_s=0.2,
        what="inject_fault",
        alive=ended,
    )
    tasks = []
    for process in (below for one in external.running for below in psutil.Process(one.pid).children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            above = process.parent()
            if above and all(" ".join(words_of(one.pid)).startswith(WORKER) for one in (process, above)):
                tasks.append(process)
    assert tasks, "an external task runs"
    for process in tasks:
        os.kill(process.pid, signal.SIGKILL)


def test_an_experiment_in_an_external_airflow_survives_a_killed_task(
    external: ExternalAirflow, installation: Installation, worker_daemon: subprocess.Popen[str]
) -> None:
    before = external.state()
    installation.given.update({key: value for key, value in external.environment.items() if key.startswith("AIRFLOW")})
    where = ("--into", str(external.dags), "--prefix", "ext_", "--airflow", COMMAND)
    dry = installation.run("airflow", "install", *where, "--dry-run")
    assert dry.returncode == 0 and "dry run" in dry.stderr, dry.stderr
    assert external.state() == before
    done = installation.run("airflow", "install", *where)
    assert done.returncode == 0, done.stderr
    use_this_python(external.dags / "ext" / INSTALLATION_FILE, installation.home / "faultline")
    # The DAG processor adds them; a second writer, such as `dags reserialize`, would collide with it.
    added = "SELECT 1 FROM serialized_dag WHERE dag_id = 'ext_experiment'"
    wait_until(lambda: external.rows(added), timeout_s=180, every_s=0.5, what="external Airflow: the installed DAGs")

    conf = {key: value for key, value in form("ext", [100.0], 1).items() if key not in SWEEP_ONLY}
    external.call("dags", "trigger", "ext_experiment", "--conf", json.dumps({**conf, "rate": 100.0}))
    kill_the_task(external)
    state = "SELECT state FROM dag_run WHERE dag_id = 'ext_experiment'"
    wait_until(lambda: external.rows(state)[0][0] in ENDED, timeout_s=400, every_s=0.5, what="the end of the run")
    (record,) = Store(installation.results).query()
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record.reasons), record.reasons
    tries = "SELECT try_number FROM task_instance WHERE dag_id = 'ext_experiment' AND task_id = 'inject_fault'"
    assert external.rows(tries)[0][0] > 1, "the task that was killed came back"

    external.call("dags", "trigger", f"ext_{MATRIX}", "--conf", json.dumps(form("external", [100.0, 200.0], 1)))
    state = f"SELECT state FROM dag_run WHERE dag_id = 'ext_{MATRIX}'"
    wait_until(lambda: external.rows(state)[0][0] in ENDED, timeout_s=600, every_s=0.5, what="the end of the sweep")
    swept = [one for one in Store(installation.results).query() if one.series == "external"]
    assert {one.config["rate"] for one in swept} == {100.0, 200.0}
    for one in swept:
        assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in one.reasons), one.reasons

    done = installation.run("airflow", "uninstall", *where)
    assert done.returncode == 0, done.stderr
    assert external.state() == before
    worker_daemon.terminate()
    assert worker_daemon.wait(120) == 0
    assert not Supervisor(installation.settings).is_running()


def test_a_second_foreground_process_is_refused(
    installation: Installation, worker_daemon: subprocess.Popen[str]
) -> None:
    done = installation.run("up", *HOLD)
    assert done.returncode == 2 and "another process holds the services" in done.stderr
    assert worker_daemon.poll() is None


def test_services_of_a_killed_foreground_process_are_reused(
    installation: Installation, worker_daemon: subprocess.Popen[str]
) -> None:
    worker_daemon.kill()
    worker_daemon.wait(120)
    with (installation.home / "second.log").open("w") as log:
        second = subprocess.Popen(
            [*installation.command("up"), *HOLD],
            env=installation.environment,
            cwd=installation.home,
            stderr=log,
        )
    try:
        log = installation.home / "second.log"
        wait_until(lambda: "services: ready" in log.read_text(), timeout_s=120, every_s=0.5, what="the next one")
    finally:
        second.terminate()
        second.wait(120)
    assert not [one for one in installation.home.glob("*.sock")]
