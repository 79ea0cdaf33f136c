"""`install` and `uninstall`: a folder of DAGs in an external Airflow, its pool and its Connections; nothing else."""

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
# The longest answer of another `airflow` command.
COMMAND_TIMEOUT_S = 180
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class AirflowCli:
    """Its pools, Connections and DAGs. `command`: the path of its `airflow`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def pools(self) -> set[str]:
        return {str(one["pool"]) for one in self._list("pools", "list")}

    def connections(self) -> set[str]:
        return {str(one["conn_id"]) for one in self._list("connections", "list")}

    def dags(self) -> set[str]:
        """Ids of those that it has read."""
        return {str(one["dag_id"]) for one in self._list("dags", "list", "--columns", "dag_id")}

    def active_runs(self, dag: str) -> list[str]:
        """Ids of the runs of a DAG, which it has read, that go on."""
        return [str(one["run_id"]) for one in self._list("dags", "list-runs", dag, "--state", "running")]

    def add_pool(self, name: str) -> None:
        self._run("pools", "set", name, "1", "Faultline measures one experiment at a time")

    def add_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds Connections; one that is there already stays as it is."""
        self._import(wanted)

    def replace_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
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

    def _list(self, *words: str) -> list[dict[str, Any]]:
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
                [self.command, *words], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
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


@dataclass(frozen=True)
class ExternalInstall:
    """What is installed: the folder of DAGs of the other Airflow, the prefix of all names, the queue of the tasks."""

    into: Path
    prefix: str
    queue: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"--prefix {self.prefix}: a letter, then letters, digits, _ . - only, such as faultline_")
        if not _QUEUE.fullmatch(self.queue):
            raise ConfigError(f"--queue {self.queue}: letters, digits and _ . - only, such as faultline")
        if not self.into.is_dir():
            raise ConfigError(
                f"--into {self.into}: is no folder; give the folder of DAGs of that Airflow, as "
                "`airflow config get-value core dags_folder` says it"
            )

    @property
    def folder(self) -> Path:
        """The one folder that is made, named after the prefix, so that two of them can be guests in one Airflow."""
        return self.into / (self.prefix.rstrip("_.-") or self.prefix)

    @property
    def pool(self) -> str:
        return f"{self.prefix}conductor"

    def receipt(self) -> dict[str, Any] | None:
        """What an `install` has noted; None where there is nothing of it.

        Raises ConfigError for a folder that is somebody else's, or of another prefix.
        """
        if not self.folder.exists():
            return None
        try:
            found = dict(json.loads((self.folder / INSTALLATION_FILE).read_text()))
            if found["prefix"] == self.prefix and isinstance(found["made"], dict):
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise ConfigError(f"{self.folder}: is there, and not by install --prefix {self.prefix}; choose another prefix")


def install(
    guest: ExternalInstall,
    airflow: AirflowCli,
    settings: Settings,
    connections: Mapping[str, Mapping[str, Any]],
    dags: list[dict[str, Any]],
    say: Progress,
    *,
    dry_run: bool = False,
) -> None:
    """Writes the folder, and makes the pool and those of the `connections`, by id without prefix, that are missing.

    What was there before stays as it is, and is not noted as made: `uninstall` leaves it. A second call writes the
    folder anew, and the Connections that the first one made: ports and passwords may have changed. Raises ConfigError
    before anything is written, for names that are taken.
    """
    before = guest.receipt()
    made: dict[str, Any] = dict(before["made"]) if before else {"pool": False, "connections": []}
    _reject_taken_names(guest, airflow, [one["dag"] for one in dags], known=before)
    there, pools = airflow.connections(), airflow.pools()
    wanted = {f"{guest.prefix}{name}": dict(one) for name, one in connections.items()}
    missing = {name: one for name, one in wanted.items() if name not in there}
    stale = {name: one for name, one in wanted.items() if name in there and name in made["connections"]}
    for name in sorted(missing):
        say(f"Connection {name}: made")
    for name in sorted(stale):
        say(f"Connection {name}: was made by install, and is written anew")
    for name in sorted(wanted.keys() - missing.keys() - stale.keys()):
        say(f"Connection {name}: is there, and stays as it is")
    new_pool = guest.pool not in pools
    say(f"pool {guest.pool}: {'made, with 1 slot' if new_pool else 'is there, and stays as it is'}")
    for file in (INSTALLATION_FILE, DAG_FILE):
        say(f"{guest.folder / file}: written")
    if dry_run:
        say("nothing was done: --dry-run")
        return
    made["connections"] = sorted({*(one for one in made["connections"] if one in there), *missing})
    made["pool"] = new_pool or bool(made["pool"])
    source = Path(__file__).with_name("proxy_dags.py").read_text()
    made["files"] = {DAG_FILE: _digest(source)}
    place = {
        "prefix": guest.prefix, "queue": guest.queue, "pool": guest.pool, "home": str(settings.home),
        "results": str(settings.results), "command": str(settings.root / "faultline"),
        "host": socket.gethostname(), "made": made, "dags": dags,
    }  # fmt: skip
    # First what is to be undone, last what Airflow reads: whatever fails between them, `uninstall` puts right.
    guest.folder.mkdir(exist_ok=True)
    write_atomic(guest.folder / INSTALLATION_FILE, json.dumps(place, indent=1))
    if missing:
        airflow.add_connections(missing)
    if stale:
        airflow.replace_connections(stale)
    if new_pool:
        airflow.add_pool(guest.pool)
    write_atomic(guest.folder / DAG_FILE, source)


def uninstall(guest: ExternalInstall, airflow: AirflowCli, say: Progress, *, dry_run: bool = False) -> None:
    """Removes what `install` made and noted: DAGs with their runs, pool, Connections, folder. Records stay.

    Raises ConfigError where nothing is installed, and while one of its runs goes on, before anything is removed;
    InfrastructureError naming what could not be removed, at which it stops: a second call goes on.
    """
    receipt = guest.receipt()
    if receipt is None:
        raise ConfigError(f"{guest.folder}: there is none; give --into and --prefix as at install")
    file = guest.folder / DAG_FILE
    if file.exists() and _digest(file.read_text()) != receipt["made"]["files"][DAG_FILE]:
        raise ConfigError(f"{file}: was changed since it was installed; move it away, and uninstall again")
    made, known = receipt["made"], airflow.dags()
    there, pools = airflow.connections(), airflow.pools()
    ours = [f"{guest.prefix}{one['dag']}" for one in receipt["dags"]]
    steps: list[tuple[str, Callable[[], None]]] = [(f"{file}: removed", lambda: file.unlink(missing_ok=True))]
    steps += [(f"DAG {one}: removed with its runs", _deferred(airflow.delete_dag, one)) for one in ours if one in known]
    steps += [
        (f"Connection {one}: removed", _deferred(airflow.delete_connection, one))
        for one in made["connections"]
        if one in there
    ]
    if made["pool"] and guest.pool in pools:
        steps.append((f"pool {guest.pool}: removed", _deferred(airflow.delete_pool, guest.pool)))
    _reject_active_runs(airflow, [name for name in ours if name in known])
    if dry_run:
        for text, _ in steps:
            say(text)
        say(f"{guest.folder}: removed")
        say("nothing was done: --dry-run")
        return
    for text, step in steps:
        try:
            step()
        except FaultlineError as error:
            raise InfrastructureError(f"uninstall: {error}; uninstall again when that is mended") from None
        say(text)
    # A DAG processor that was reading the file while it was removed stores its DAGs once more.
    for one in sorted(set(ours) & airflow.dags()):
        airflow.delete_dag(one)
    _remove_folder(guest.folder, say)


def _reject_active_runs(airflow: AirflowCli, dags: list[str]) -> None:
    for one in dags:
        if runs := airflow.active_runs(one):
            raise ConfigError(
                f"DAG {one}: its run {runs[0]} goes on; let it end, or mark it failed, and uninstall again"
            )


def _reject_taken_names(
    guest: ExternalInstall, airflow: AirflowCli, names: list[str], *, known: Mapping[str, Any] | None
) -> None:
    if known is None and (taken := sorted({f"{guest.prefix}{name}" for name in names} & airflow.dags())):
        raise ConfigError(f"--prefix {guest.prefix}: that Airflow has a DAG {taken[0]} already; choose another prefix")
    if not os.access(guest.into, os.W_OK | os.X_OK):
        raise ConfigError(f"--into {guest.into}: cannot be written; run this as a user who may")


def _remove_folder(folder: Path, say: Progress) -> None:
    (folder / INSTALLATION_FILE).unlink(missing_ok=True)
    # Which Airflow leaves when it has read the DAGs.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    try:
        folder.rmdir()
    except OSError:
        say(f"{folder}: holds more than was installed, and stays")
        return
    say(f"{folder}: removed")


def _deferred(action: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: action(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
