"""Options of `target add` as Connections, validated without contacting the cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from faultline.installation.targets.connection_specs import FILES, ConnectionSpec, check_spec
from faultline.system.errors import ConfigError
from faultline.system.secrets import require_private
from faultline.system.ssh_hosts import SSH_KEYS, check_ssh_host
from faultline.system.target_registry import Target
from faultline.system.text import require_keys

# Keys of --spark-file; the secret becomes the Connection's password.
_SECRET, _EXTRA = "secret", ("ui", "conf", "driver-host")
_HOST_KEYS = (*SSH_KEYS, "port", "python")

# The keyword arguments of an Airflow Connection, by its id.
Connections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TargetOptions:
    """Options of `target add`; an option is None if omitted, because its Connection already exists."""

    kafka: Path | None = None
    spark: str | None = None
    spark_file: Path | None = None
    storage: str | None = None
    storage_web: str | None = None
    hosts: Path | None = None

    @cached_property
    def listed_hosts(self) -> dict[str, dict[str, Any]]:
        """Hosts of the host file, by name. Raises ConfigError naming host and key."""
        if self.hosts is None:
            return {}
        option = "--host-file"
        listed = _object(self.hosts, option)
        for name, host in listed.items():
            if isinstance(host, dict):
                require_keys(f"{option}: {name}.", host, _HOST_KEYS)
        return {name: check_ssh_host(f"{option}: {name}", host) for name, host in listed.items()}

    def connections(self, target: Target) -> Connections:
        """Return the Connections that the options describe. Raises ConfigError naming option, key and fix."""
        found = {**self._kafka(target), **self._spark(target), **self._storage(target)}
        for name, host in self.listed_hosts.items():
            extra = {key: _absolute(host[key]) for key in ("key_file", "known_hosts")} | {"python": host["python"]}
            found[target.host(name)] = {
                "conn_type": "ssh", "host": host["host"], "port": host["port"], "login": host["user"],
                "extra": json.dumps(extra),
            }  # fmt: skip
        options = {target.kafka: "--kafka", target.spark: "--spark", target.storage: "--storage"}
        for conn_id, values in found.items():
            try:
                check_spec(target, {conn_id: spec_of(conn_id, values)})
            except ConfigError as error:
                why = str(error).removeprefix(f"Connection {conn_id}: ").removeprefix("extra: ")
                raise ConfigError(f"{options.get(conn_id, '--host-file')}: {why}") from None
        return found

    def _kafka(self, target: Target) -> Connections:
        if self.kafka is None:
            return {}
        login = _object(self.kafka, "--kafka")
        login |= {key: _absolute(login[key]) for key in FILES if key in login}
        values = {"conn_type": "kafka", "extra": json.dumps(login)}
        return {target.kafka: values}

    def _spark(self, target: Target) -> Connections:
        given = {} if self.spark_file is None else _object(self.spark_file, "--spark-file")
        require_keys("--spark-file: ", given, (_SECRET, *_EXTRA))
        if self.spark is None:
            if self.spark_file is not None:
                raise ConfigError("--spark-file: requires --spark")
            return {}
        if _SECRET in given and (not isinstance(given[_SECRET], str) or not given[_SECRET]):
            raise ConfigError("--spark-file: secret: expected a non-empty text, or no key")
        extra = {key: given[key] for key in _EXTRA if key in given}
        values = {"conn_type": "spark", "host": self.spark, "extra": json.dumps(extra)}
        if given.get(_SECRET):
            values["password"] = given[_SECRET]
        return {target.spark: values}

    def _storage(self, target: Target) -> Connections:
        if self.storage is None:
            if self.storage_web is not None:
                raise ConfigError("--storage-web: requires --storage")
            return {}
        extra = {"path": self.storage} if self.storage_web is None else {"path": self.storage, "web": self.storage_web}
        return {target.storage: {"conn_type": "fs", "extra": json.dumps(extra)}}


def spec_of(conn_id: str, values: Mapping[str, Any]) -> ConnectionSpec:
    """Return the spec of a Connection with these keyword arguments."""
    return ConnectionSpec(
        conn_id, values["conn_type"], values.get("host"), values.get("port"), values.get("login"),
        values.get("password"), json.loads(values.get("extra") or "{}"),
    )  # fmt: skip


def _absolute(path: object) -> str:
    """Return the absolute path, since experiments run in other folders."""
    return str(Path(str(path)).absolute())


def _object(file: Path, option: str) -> dict[str, Any]:
    """Return the JSON object of a private file, which may contain passwords."""
    try:
        value = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{option}: got {file} ({error.strerror}); expected a JSON file") from None
    except ValueError as error:
        raise ConfigError(f"{option}: got {file} ({error}); expected JSON") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: got {file}; expected a JSON object")
    try:
        require_private(file)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    return value
