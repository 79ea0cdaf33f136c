"""Installation into a real external Airflow, and removal; no services."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from faultline.orchestration.external.dag_export import describe_dag, exported_dags
from faultline.orchestration.external.dag_installer import AirflowCli, ExternalInstall, install, uninstall
from faultline.system.settings import Settings
from tests.support.external_work import ATTEMPT, make_command

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

COMMAND = str(Path(sys.executable).with_name("airflow"))
FOREIGN_DAG = """\
from airflow.sdk import DAG, task

with DAG("foreign_dag", schedule=None):

    @task
    def work():
        return "done"

    work()
"""
CONNECTIONS = {
    "kafka_default": {"conn_type": "kafka", "extra": '{"bootstrap.servers": "127.0.0.1:1"}'},
    "spark_default": {"conn_type": "spark", "host": "spark://127.0.0.1", "port": 1},
    "spark_local": {"conn_type": "spark", "host": "local[2]"},
}


class ExternalAirflow:
    """Airflow with a foreign DAG, pool and Connection. `database`: default SQLite."""

    def __init__(self, home: Path, database: str = "") -> None:
        self.home, self.dags = home, home / "dags"
        # Running components, for tests that need them.
        self.running: list[subprocess.Popen[bytes]] = []
        self.dags.mkdir(parents=True)
        (self.dags / "foreign_dag.py").write_text(FOREIGN_DAG)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "FAULTLINE"))}
        database = database or f"sqlite:///{home / 'airflow.db'}"
        self.environment = {
            **clean, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # `standalone` starts the other components by name.
            "PATH": os.pathsep.join((str(Path(COMMAND).parent), clean["PATH"])),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        }  # fmt: skip
        self.database = create_engine(database)
        self.call("db", "migrate")
        self.call("pools", "set", "foreign_pool", "3", "external")
        self.call("connections", "add", "foreign_connection", "--conn-type", "http", "--conn-host", "there")
        # An existing Connection of the same name, with other values.
        self.call("connections", "add", "ext_spark_local", "--conn-type", "spark", "--conn-host", "local[7]")
        self.call("dags", "reserialize")

    def call(self, *words: str) -> str:
        done = subprocess.run(
            [COMMAND, *words], env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, query: str) -> list[Any]:
        with self.database.connect() as connection:
            return sorted(tuple(row) for row in connection.execute(text(query)))

    def state(self) -> Any:
        """Return the state that must not change."""
        files = {str(one): one.read_bytes() for one in self.dags.rglob("*.py")}
        return (
            files,
            self.rows("SELECT conn_id, conn_type, host, login, password, port, extra FROM connection"),
            self.rows("SELECT pool, slots, description FROM slot_pool"),
            self.rows("SELECT dag_id, is_paused, is_stale FROM dag"),
            self.rows("SELECT dag_id FROM serialized_dag"),
            self.rows("SELECT dag_id, run_id FROM dag_run"),
        )


@pytest.fixture
def external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExternalAirflow:
    made = ExternalAirflow(tmp_path / "external")
    for name in [one for one in os.environ if one.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    for name in (one for one in made.environment if one.startswith("AIRFLOW")):
        monkeypatch.setenv(name, made.environment[name])
    return made


@pytest.fixture
def installed(tmp_path: Path) -> Settings:
    """Installation whose steps only log their start."""
    settings = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    settings.home.mkdir()
    (settings.attempts / ATTEMPT).mkdir(parents=True)
    make_command(tmp_path)
    return settings


def test_install_and_uninstall_restore_an_external_airflow(external: ExternalAirflow, installed: Settings) -> None:
    before = external.state()
    target, airflow = ExternalInstall(external.dags, "ext_", "bench"), AirflowCli(COMMAND)
    dags = [describe_dag(one, list(CONNECTIONS)) for one in exported_dags()]
    lines: list[str] = []
    install(target, airflow, installed, CONNECTIONS, dags, lines.append)
    assert "Connection ext_spark_local: exists, unchanged" in lines

    external.call("dags", "reserialize")
    assert external.rows("SELECT filename FROM import_error") == []
    known = {one for (one,) in external.rows("SELECT dag_id FROM serialized_dag")}
    assert known == {"foreign_dag", *(f"ext_{one['dag']}" for one in dags)}
    assert airflow.dags() == known

    external.call("dags", "test", "ext_experiment")
    ((state,),) = external.rows("SELECT state FROM dag_run WHERE dag_id = 'ext_experiment'")
    assert state == "success"
    steps = [line.split() for line in (installed.home / "begun").read_text().splitlines()]
    assert [one[0] for one in steps][:1] == ["prepare"] and steps[-1] == ["teardown", "kafka_default,spark_default"]
    assert ["harvest", "spark_local"] in steps and ["judge"] in steps

    uninstall(target, airflow, lines.append)
    assert external.state() == before
