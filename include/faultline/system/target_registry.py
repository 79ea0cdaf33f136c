"""Targets: where experiments run. `embedded` is this installation's own services; others are clusters that exist.

A target is a small file, `<home>/targets/NAME.json`, which names the Connections that hold its addresses and logins.
Whoever measures writes what they say to the folder of that name, for this user's eyes only: a file for each program
that logs in, as those of the embedded services lie in `<home>/secrets`, and `endpoints.json`.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from faultline.system.endpoints import EMBEDDED, Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import reject_damaged, write_atomic
from faultline.system.secrets import make_private
from faultline.system.settings import ENDPOINTS, Settings, targets_folder
from faultline.system.text import suggest

NAME, HOST_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}"), re.compile(r"[a-z][a-z0-9_-]{0,30}")
# Of Connections: that of the first target, which others follow with `_NAME`.
KAFKA, SPARK, STORAGE = "faultline_kafka", "faultline_spark", "faultline_storage"
HOST = "faultline_host_{}"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Target:
    """The ids of a target's Connections. `hosts`: names of the hosts that are reached over SSH, each by the Connection
    `faultline_host_NAME`."""

    name: str
    kafka: str = KAFKA
    spark: str = SPARK
    storage: str = STORAGE
    hosts: tuple[str, ...] = ()

    def host(self, name: str) -> str:
        """The id of a host's Connection."""
        return HOST.format(name)

    def missing_connection(self, conn_id: str) -> ConfigError:
        """What is said where there is no Connection of this id, with who makes one."""
        option = {self.kafka: "--kafka FILE", self.spark: "--spark MASTER", self.storage: "--storage PATH"}.get(conn_id)
        remedy = f"./faultline target add {self.name} {option} makes it, or Airflow's page"
        if conn_id in map(self.host, self.hosts):
            remedy = (
                "add it by --host-file, or on Airflow's page (an SSH Connection: host, login, port; key_file or "
                "private_key, and known_hosts, in the extra)"
            )
        return ConfigError(f"Connection {conn_id}: missing, and the target {self.name} needs it; {remedy}")

    @property
    def connections(self) -> tuple[str, ...]:
        """All of them."""
        return self.kafka, self.spark, self.storage, *map(self.host, self.hosts)


def make_target(name: str, hosts: tuple[str, ...] = (), *, first: bool = True) -> Target:
    """A target with Connections of the usual names; of one that is not the `first` they end with its own.

    Raises ConfigError for what is no name.
    """
    if name == EMBEDDED:
        raise ConfigError(f"NAME: {name} is this installation's own services, and always there; take another name")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"NAME: {name!r} is no name of a target; use small letters, digits and _, at most 31 characters"
        )
    for one in hosts:
        if not HOST_NAME.fullmatch(one):
            raise ConfigError(f"--host: {one!r} is no name of a host; use small letters, digits, _ and -, at most 31")
    kafka, spark, storage = (one if first else f"{one}_{name}" for one in (KAFKA, SPARK, STORAGE))
    return Target(name, kafka, spark, storage, hosts)


def load_targets(settings: Settings) -> dict[str, Target]:
    """Those that are registered, by name. Raises ConfigError for a file that cannot be read."""
    files = sorted(targets_folder(settings.home).glob("*.json"))
    return {file.stem: _read(file) for file in files}


def find_target(settings: Settings, name: str) -> Target | None:
    """The one that an experiment names, None for the embedded. Raises ConfigError for one that is not registered."""
    if name == EMBEDDED:
        return None
    known = load_targets(settings)
    if name not in known:
        raise ConfigError(
            f"target: no target is called {name!r}{suggest(name, [EMBEDDED, *known])}; ./faultline target add makes one"
        )
    return known[name]


def register(settings: Settings, one: Target) -> None:
    """Registers it, in place of an earlier one of the name."""
    make_private(targets_folder(settings.home))
    values = {key: value for key, value in asdict(one).items() if key != "name"}
    write_atomic(targets_folder(settings.home) / f"{one.name}.json", json.dumps(values))


def unregister(settings: Settings, one: Target) -> None:
    """Removes what `register` wrote, and what its Connections said. Raises InfrastructureError when something stays."""
    folder = target_folder(settings, one.name)
    try:
        if folder.is_dir():
            shutil.rmtree(folder)
        (targets_folder(settings.home) / f"{one.name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(f"{folder}: cannot be removed ({error.strerror}); remove the target again") from None


def target_folder(settings: Settings, name: str) -> Path:
    """Where a target's logins lie."""
    return targets_folder(settings.home) / name


def write_endpoints(settings: Settings, endpoints: Endpoints) -> None:
    """Notes where a target is reached; what it is logged in with lies there already."""
    write_atomic(target_folder(settings, endpoints.target) / ENDPOINTS, json.dumps(endpoints.as_mapping()))


def describe_addresses(settings: Settings, one: Target) -> str:
    """Its addresses in a few words, as it was last looked at."""
    try:
        there = endpoints_at(settings, one.name)
    except ConfigError:
        return "not looked at yet"
    hosts = f"  hosts {', '.join(there.hosts)}" if there.hosts else ""
    return f"{there.kafka}  {there.engine}  {there.storage}{hosts}"


def endpoints_at(settings: Settings, name: str) -> Endpoints:
    """Where a target is reached, as it was last asked for. Raises ConfigError when nobody did yet."""
    if find_target(settings, name) is None:
        return settings.endpoints
    file = target_folder(settings, name) / ENDPOINTS
    if not file.exists():
        raise ConfigError(f"target: {name} was not looked at yet; ./faultline target check {name}")
    with reject_damaged(file, f"./faultline target check {name} writes it anew"):
        return Endpoints.from_mapping(json.loads(file.read_text()))


def _read(file: Path) -> Target:
    with reject_damaged(file, "delete it, and add the target anew"):
        values: dict[str, Any] = json.loads(file.read_text())
        return Target(file.stem, **values)
