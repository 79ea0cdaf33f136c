"""Targets: the services on which experiments run.

The target `embedded` is this installation's own services; all others are existing clusters. Such a target is defined by
a small file, `<home>/targets/NAME.json`, which names the Airflow Connections with its addresses and credentials. A
measurement writes the content of these Connections to the folder `<home>/targets/NAME`, readable only by this user:
credential files, as in `<home>/secrets`, and `endpoints.json`.
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
# Connection ids of the first target; later targets append `_NAME`.
KAFKA, SPARK, STORAGE = "faultline_kafka", "faultline_spark", "faultline_storage"
HOST = "faultline_host_{}"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Target:
    """Ids of a target's Connections.

    `hosts`: names of the SSH hosts, each with the Connection `faultline_host_NAME`.
    """

    name: str
    kafka: str = KAFKA
    spark: str = SPARK
    storage: str = STORAGE
    hosts: tuple[str, ...] = ()

    def host(self, name: str) -> str:
        """Return the id of a host's Connection."""
        return HOST.format(name)

    def missing_connection(self, conn_id: str) -> ConfigError:
        """Return the error for a missing Connection, with the way to create it."""
        option = {self.kafka: "--kafka FILE", self.spark: "--spark MASTER", self.storage: "--storage PATH"}.get(conn_id)
        remedy = f"`./faultline target add {self.name} {option}`, or Airflow's Connections page"
        if conn_id in map(self.host, self.hosts):
            remedy = (
                "add it with --host-file, or on Airflow's Connections page (type SSH: host, login, port; key_file or "
                "private_key, and known_hosts, in the extra)"
            )
        return ConfigError(f"Connection {conn_id}: missing; target {self.name} needs it; fix: {remedy}")

    @property
    def connections(self) -> tuple[str, ...]:
        """Ids of all Connections."""
        return self.kafka, self.spark, self.storage, *map(self.host, self.hosts)


def make_target(name: str, hosts: tuple[str, ...] = (), *, first: bool = True) -> Target:
    """Return a target with the default Connection names; those of a later target (not `first`) end with its name.

    Raises ConfigError for an invalid name.
    """
    if name == EMBEDDED:
        raise ConfigError(f"NAME: got {name}, the target of this installation's services; expected another name")
    if not NAME.fullmatch(name):
        raise ConfigError(f"NAME: got {name!r}; expected lowercase letters, digits and _, at most 31 characters")
    for one in hosts:
        if not HOST_NAME.fullmatch(one):
            raise ConfigError(f"--host: got {one!r}; expected lowercase letters, digits, _ and -, at most 31")
    kafka, spark, storage = (one if first else f"{one}_{name}" for one in (KAFKA, SPARK, STORAGE))
    return Target(name, kafka, spark, storage, hosts)


def load_targets(settings: Settings) -> dict[str, Target]:
    """Return the registered targets by name. Raises ConfigError for an unreadable file."""
    files = sorted(targets_folder(settings.home).glob("*.json"))
    return {file.stem: _read(file) for file in files}


def find_target(settings: Settings, name: str) -> Target | None:
    """Return the named target, None for the embedded one. Raises ConfigError if not registered."""
    if name == EMBEDDED:
        return None
    known = load_targets(settings)
    if name not in known:
        raise ConfigError(
            f"target: {name!r} is not registered{suggest(name, [EMBEDDED, *known])}; fix: `./faultline target add`"
        )
    return known[name]


def register(settings: Settings, one: Target) -> None:
    """Register a target, or replace the one with the same name."""
    make_private(targets_folder(settings.home))
    values = {key: value for key, value in asdict(one).items() if key != "name"}
    write_atomic(targets_folder(settings.home) / f"{one.name}.json", json.dumps(values))


def unregister(settings: Settings, one: Target) -> None:
    """Remove a target's file and folder. Raises InfrastructureError if something remains."""
    folder = target_folder(settings, one.name)
    try:
        if folder.is_dir():
            shutil.rmtree(folder)
        (targets_folder(settings.home) / f"{one.name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(f"{folder}: removal failed: {error.strerror}; fix: remove the target again") from None


def target_folder(settings: Settings, name: str) -> Path:
    """Return the folder of a target's credential files."""
    return targets_folder(settings.home) / name


def write_endpoints(settings: Settings, endpoints: Endpoints) -> None:
    """Write the addresses of a target next to its credential files."""
    write_atomic(target_folder(settings, endpoints.target) / ENDPOINTS, json.dumps(endpoints.as_mapping()))


def describe_addresses(settings: Settings, one: Target) -> str:
    """Return a target's addresses of the last check as text."""
    try:
        found = endpoints_at(settings, one.name)
    except ConfigError:
        return "not checked yet"
    hosts = f"  hosts {', '.join(found.hosts)}" if found.hosts else ""
    return f"{found.kafka}  {found.engine}  {found.storage}{hosts}"


def endpoints_at(settings: Settings, name: str) -> Endpoints:
    """Return a target's addresses of the last check. Raises ConfigError if it was never checked."""
    if find_target(settings, name) is None:
        return settings.endpoints
    file = target_folder(settings, name) / ENDPOINTS
    if not file.exists():
        raise ConfigError(f"target: {name} was not checked yet; fix: `./faultline target check {name}`")
    with reject_damaged(file, f"`./faultline target check {name}` rewrites it"):
        return Endpoints.from_mapping(json.loads(file.read_text()))


def _read(file: Path) -> Target:
    with reject_damaged(file, "delete it, and add the target again"):
        values: dict[str, Any] = json.loads(file.read_text())
        return Target(file.stem, **values)
