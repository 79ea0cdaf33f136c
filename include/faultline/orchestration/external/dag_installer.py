"""`install` and `uninstall`: DAG folder, pool and Connections of Faultline in an external Airflow."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.files import write_atomic, write_private
from faultline.system.settings import Settings
from faultline.system.text import Progress

DAG_FILE, INSTALLATION_FILE = "faultline_dags.py", "faultline.json"
# Timeout of one `airflow` command.
COMMAND_TIMEOUT_S = 180
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class AirflowCli:
    """Command line of an external Airflow: pools, Connections and DAGs.

    `command`: path of its `airflow`.
    """

    def __init__(self, command: str) -> None:
        self.command = command

    def pools(self) -> set[str]:
        return {str(one["pool"]) for one in self._list("pools", "list")}

    def connections(self) -> set[str]:
        return {str(one["conn_id"]) for one in self._list("connections", "list")}

    def dags(self) -> set[str]:
        """Return the ids of the parsed DAGs."""
        return {str(one["dag_id"]) for one in self._list("dags", "list", "--columns", "dag_id")}

    def active_runs(self, dag: str) -> list[str]:
        """Return the ids of the running runs of a parsed DAG."""
        return [str(one["run_id"]) for one in self._list("dags", "list-runs", dag, "--state", "running")]

    def add_pool(self, name: str) -> None:
        self._run("pools", "set", name, "1", "Faultline measures one experiment at a time")

    def add_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Add missing Connections; existing ones stay unchanged."""
        self._import(wanted)

    def replace_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Overwrite existing Connections."""
        self._import(wanted, "--overwrite")

    def delete_pool(self, name: str) -> None:
        self._run("pools", "delete", name)

    def delete_connection(self, name: str) -> None:
        self._run("connections", "delete", name)

    def delete_dag(self, name: str) -> None:
        """Delete a DAG and its runs from the database."""
        self._run("dags", "delete", "--yes", name)

    def _import(self, wanted: Mapping[str, Mapping[str, Any]], *how: str) -> None:
        # Secrets are passed in a file, because all users can read command lines.
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "connections.json"
            write_private(file, json.dumps(wanted))
            self._run("connections", "import", str(file), *how)

    def _list(self, *arguments: str) -> list[dict[str, Any]]:
        text = self._run(*arguments, "--output", "json")
        lines = text.splitlines()
        # Airflow may print warnings before the JSON.
        for number, line in enumerate(lines):
            if line.startswith("["):
                with contextlib.suppress(ValueError):
                    return list(json.loads("\n".join(lines[number:])))
        if "No data found" in text:
            return []
        raise InfrastructureError(f"{self.command} {' '.join(arguments)}: expected JSON; got {text.strip()[-200:]}")

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self.command, *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise ConfigError(
                f"--airflow {self.command}: not found; fix: give the path of the external `airflow`"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{self.command} {' '.join(arguments[:2])}: {error}") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise InfrastructureError(
                f"{self.command} {' '.join(arguments[:2])}: {last}; fix: set that Airflow's AIRFLOW_HOME and start "
                "its database"
            )
        return done.stdout


@dataclass(frozen=True)
class ExternalInstall:
    """Installation in an external Airflow: its DAG folder, the prefix of all names, the queue of the tasks."""

    into: Path
    prefix: str
    queue: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(
                f"--prefix {self.prefix}: expected a letter, then letters, digits, _ . - (such as faultline_)"
            )
        if not _QUEUE.fullmatch(self.queue):
            raise ConfigError(f"--queue {self.queue}: expected letters, digits, _ . - (such as faultline)")
        if not self.into.is_dir():
            raise ConfigError(
                f"--into {self.into}: expected the DAG folder of the external Airflow; see "
                "`airflow config get-value core dags_folder`"
            )

    @property
    def folder(self) -> Path:
        """Created folder, named after the prefix, so that one Airflow can have several installations."""
        return self.into / (self.prefix.rstrip("_.-") or self.prefix)

    @property
    def pool(self) -> str:
        return f"{self.prefix}conductor"

    def receipt(self) -> dict[str, Any] | None:
        """Return the stored installation; None if there is none.

        Raises ConfigError for a folder of another program or prefix.
        """
        if not self.folder.exists():
            return None
        try:
            found = dict(json.loads((self.folder / INSTALLATION_FILE).read_text()))
            if found["prefix"] == self.prefix and isinstance(found["made"], dict):
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise ConfigError(
            f"{self.folder}: exists, but not from install --prefix {self.prefix}; fix: choose another prefix"
        )


def install(
    target: ExternalInstall,
    airflow: AirflowCli,
    settings: Settings,
    connections: Mapping[str, Mapping[str, Any]],
    dags: list[dict[str, Any]],
    progress: Progress,
    *,
    dry_run: bool = False,
) -> None:
    """Write the DAG folder; create the pool and those of `connections` (by id without prefix) that are missing.

    Pools and Connections that exist already are neither changed nor recorded, and `uninstall` leaves them. A second
    call rewrites the folder and the Connections that the first one created, because ports and passwords may have
    changed. Raises ConfigError for taken names before anything is written.
    """
    before = target.receipt()
    created: dict[str, Any] = dict(before["made"]) if before else {"pool": False, "connections": []}
    _reject_taken_names(target, airflow, [one["dag"] for one in dags], known=before)
    existing, pools = airflow.connections(), airflow.pools()
    wanted = {f"{target.prefix}{name}": dict(one) for name, one in connections.items()}
    missing = {name: one for name, one in wanted.items() if name not in existing}
    stale = {name: one for name, one in wanted.items() if name in existing and name in created["connections"]}
    for name in sorted(missing):
        progress(f"Connection {name}: created")
    for name in sorted(stale):
        progress(f"Connection {name}: updated")
    for name in sorted(wanted.keys() - missing.keys() - stale.keys()):
        progress(f"Connection {name}: exists, unchanged")
    new_pool = target.pool not in pools
    progress(f"pool {target.pool}: {'created with 1 slot' if new_pool else 'exists, unchanged'}")
    for file in (INSTALLATION_FILE, DAG_FILE):
        progress(f"{target.folder / file}: written")
    if dry_run:
        progress("dry run: no changes made")
        return
    created["connections"] = sorted({*(one for one in created["connections"] if one in existing), *missing})
    created["pool"] = new_pool or bool(created["pool"])
    source = Path(__file__).with_name("proxy_dags.py").read_text()
    created["files"] = {DAG_FILE: _digest(source)}
    receipt = {
        "prefix": target.prefix, "queue": target.queue, "pool": target.pool, "home": str(settings.home),
        "results": str(settings.results), "command": str(settings.root / "faultline"),
        "host": socket.gethostname(), "made": created, "dags": dags,
    }  # fmt: skip
    # Write the receipt first and the DAG file last, so that `uninstall` can revert a partial installation.
    target.folder.mkdir(exist_ok=True)
    write_atomic(target.folder / INSTALLATION_FILE, json.dumps(receipt, indent=1))
    if missing:
        airflow.add_connections(missing)
    if stale:
        airflow.replace_connections(stale)
    if new_pool:
        airflow.add_pool(target.pool)
    write_atomic(target.folder / DAG_FILE, source)


def uninstall(target: ExternalInstall, airflow: AirflowCli, progress: Progress, *, dry_run: bool = False) -> None:
    """Remove what `install` created: DAGs with their runs, pool, Connections and folder. Records stay.

    Raises ConfigError before any change if nothing is installed or a run is active. Raises InfrastructureError naming
    the object whose removal failed; a second call resumes.
    """
    receipt = target.receipt()
    if receipt is None:
        raise ConfigError(f"{target.folder}: not found; fix: give --into and --prefix as for install")
    file = target.folder / DAG_FILE
    if file.exists() and _digest(file.read_text()) != receipt["made"]["files"][DAG_FILE]:
        raise ConfigError(f"{file}: changed since install; fix: move it away, and uninstall again")
    created, known = receipt["made"], airflow.dags()
    existing, pools = airflow.connections(), airflow.pools()
    own_dags = [f"{target.prefix}{one['dag']}" for one in receipt["dags"]]
    steps: list[tuple[str, Callable[[], None]]] = [(f"{file}: removed", lambda: file.unlink(missing_ok=True))]
    steps += [
        (f"DAG {one}: removed with its runs", _deferred(airflow.delete_dag, one)) for one in own_dags if one in known
    ]
    steps += [
        (f"Connection {one}: removed", _deferred(airflow.delete_connection, one))
        for one in created["connections"]
        if one in existing
    ]
    if created["pool"] and target.pool in pools:
        steps.append((f"pool {target.pool}: removed", _deferred(airflow.delete_pool, target.pool)))
    _reject_active_runs(airflow, [name for name in own_dags if name in known])
    if dry_run:
        for text, _ in steps:
            progress(text)
        progress(f"{target.folder}: removed")
        progress("dry run: no changes made")
        return
    for text, step in steps:
        try:
            step()
        except FaultlineError as error:
            raise InfrastructureError(f"uninstall: {error}; fix: correct that, and uninstall again") from None
        progress(text)
    # A DAG processor that was parsing the removed file may store its DAGs again.
    for one in sorted(set(own_dags) & airflow.dags()):
        airflow.delete_dag(one)
    _remove_folder(target.folder, progress)


def _reject_active_runs(airflow: AirflowCli, dags: list[str]) -> None:
    for one in dags:
        if runs := airflow.active_runs(one):
            raise ConfigError(
                f"DAG {one}: run {runs[0]} is active; fix: wait for it or mark it failed, then uninstall again"
            )


def _reject_taken_names(
    target: ExternalInstall, airflow: AirflowCli, names: list[str], *, known: Mapping[str, Any] | None
) -> None:
    if known is None and (taken := sorted({f"{target.prefix}{name}" for name in names} & airflow.dags())):
        raise ConfigError(
            f"--prefix {target.prefix}: DAG {taken[0]} exists in the external Airflow; fix: choose another prefix"
        )
    if not os.access(target.into, os.W_OK | os.X_OK):
        raise ConfigError(f"--into {target.into}: not writable; fix: run this as a user with write access")


def _remove_folder(folder: Path, progress: Progress) -> None:
    (folder / INSTALLATION_FILE).unlink(missing_ok=True)
    # Created by Airflow when it parses the DAGs.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    try:
        folder.rmdir()
    except OSError:
        progress(f"{folder}: kept, because it has other files")
        return
    progress(f"{folder}: removed")


def _deferred(action: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: action(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
