"""An Airflow of others, through its own `airflow` command, run where and as its users run it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_private

LONGEST_S = 180


class OtherAirflow:
    """Its pools, Connections and DAGs. `command`: the path of its `airflow`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def pools(self) -> set[str]:
        return {str(one["pool"]) for one in self._listed("pools", "list")}

    def connections(self) -> set[str]:
        return {str(one["conn_id"]) for one in self._listed("connections", "list")}

    def dags(self) -> set[str]:
        """Ids of those that it has read."""
        return {str(one["dag_id"]) for one in self._listed("dags", "list", "--columns", "dag_id")}

    def running(self, dag: str) -> list[str]:
        """Ids of the runs of a DAG, which it has read, that go on."""
        return [str(one["run_id"]) for one in self._listed("dags", "list-runs", dag, "--state", "running")]

    def add_pool(self, name: str) -> None:
        self._run("pools", "set", name, "1", "Faultline measures one experiment at a time")

    def add_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds Connections; one that is there already stays as it is."""
        self._import(wanted)

    def renew_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes Connections in the place of those that are there."""
        self._import(wanted, "--overwrite")

    def delete_pool(self, name: str) -> None:
        self._run("pools", "delete", name)

    def delete_connection(self, name: str) -> None:
        self._run("connections", "delete", name)

    def delete_dag(self, name: str) -> None:
        """Removes what it keeps of a DAG and its runs."""
        self._run("dags", "delete", "--yes", name)

    def _import(self, wanted: Mapping[str, Mapping[str, Any]], *how: str) -> None:
        # By a file: everybody on the machine can read a command line.
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "connections.json"
            write_private(file, json.dumps(wanted))
            self._run("connections", "import", str(file), *how)

    def _listed(self, *words: str) -> list[dict[str, Any]]:
        text = self._run(*words, "--output", "json")
        lines = text.splitlines()
        # Airflow may warn on standard output before it answers.
        for number, line in enumerate(lines):
            if line.startswith("["):
                with contextlib.suppress(ValueError):
                    return list(json.loads("\n".join(lines[number:])))
        if "No data found" in text:
            return []
        raise InfrastructureError(f"{self.command} {' '.join(words)}: gave no JSON: {text.strip()[-200:]}")

    def _run(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [self.command, *words], capture_output=True, text=True, timeout=LONGEST_S, check=False
            )
        except FileNotFoundError:
            raise ConfigError(
                f"--airflow {self.command}: is not there; give the path of that Airflow's command"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{self.command} {' '.join(words[:2])}: {error}") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise InfrastructureError(
                f"{self.command} {' '.join(words[:2])}: {last}; it needs that Airflow's configuration (AIRFLOW_HOME) "
                "and its database"
            )
        return done.stdout
