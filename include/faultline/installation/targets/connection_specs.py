"""Content of the Airflow Connections of a target (an external cluster), and its validation."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from faultline.engines.spark.hdfs import SCHEME
from faultline.installation.targets.java_kafka import JavaKafka, translate
from faultline.system.errors import ConfigError
from faultline.system.ssh_hosts import check_ssh_host
from faultline.system.target_registry import Target

# librdkafka settings with a file, and those with its content.
FILES = {"ssl.ca.location": "ssl.ca.pem", "ssl.certificate.location": "ssl.certificate.pem",
          "ssl.key.location": "ssl.key.pem"}  # fmt: skip
_MASTER = re.compile(r"spark://([A-Za-z0-9._-]+:\d+)(,[A-Za-z0-9._-]+:\d+)*")
_HDFS = re.compile(r"hdfs://([A-Za-z0-9._-]+):\d+(?:/[A-Za-z0-9._-]+)+")
# Default ports of a name node's and a standalone master's page.
WEB_PORT, UI_PORT = 9870, 8080
# Reasons why storage is unsuitable for checkpoints.
_UNKNOWN = "commit times are read from checkpoint files"
_REFUSED = dict.fromkeys(("s3", "s3a", "s3n"), "its file times have a resolution of only one second")
# Settings derived from the Connection.
_DERIVED = ("spark.master", "spark.submit.deployMode", "spark.driver.host", "spark.driver.bindAddress")
_ENCRYPTED = "spark.network.crypto.enabled"
# Connection type whose host may be a complete master address.
SPARK_TYPE = "spark"


@dataclass(frozen=True)
class ConnectionSpec:
    """A Connection, independent of Airflow's secrets backend."""

    id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def differing_keys(self, other: ConnectionSpec) -> list[str]:
        """Return the keys, without values, whose values differ in `other`."""
        # A Connection given as a URI has "" instead of None.
        text_keys = ("conn_type", "host", "port", "login", "password")
        keys = [key for key in text_keys if (getattr(self, key) or None) != (getattr(other, key) or None)]
        extra = sorted({*self.extra, *other.extra})
        return keys + [f"extra: {key}" for key in extra if self.extra.get(key) != other.extra.get(key)]

    def refuse(self, why: object) -> ConfigError:
        """Return an error that names the Connection."""
        return ConfigError(f"Connection {self.id}: {why}")


def digest(specs: Mapping[str, ConnectionSpec]) -> str:
    """Return a hash of the Connections, to detect changes."""
    content = {name: {**asdict(one), "extra": dict(one.extra)} for name, one in specs.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_spec(target: Target, specs: Mapping[str, ConnectionSpec]) -> None:
    """Validate the given Connections of a target as far as possible without files or network.

    Raises ConfigError naming Connection and key.
    """
    # The master's name may not resolve yet, so the route is checked later.
    parsers: dict[str, Callable[[ConnectionSpec], object]] = {
        target.kafka: parse_login, target.storage: parse_storage,
        target.spark: partial(parse_spark, route=lambda host: host),
    }  # fmt: skip
    for conn_id, one in specs.items():
        if conn_id in parsers:
            parsers[conn_id](one)
        elif "private_key" not in one.extra:
            check_ssh_host(f"Connection {conn_id}", parse_host(one))


class _Extra(BaseModel):
    """Content of a Connection's extra field; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    @classmethod
    def from_spec(cls, spec: ConnectionSpec, **changes: object) -> Self:
        """Return the validated extra of a Connection, after `changes`. Raises ConfigError naming the key."""
        try:
            return cls.model_validate({**spec.extra, **changes})
        except ValidationError as error:
            first = error.errors()[0]
            why = first["ctx"]["error"] if first["type"] == "value_error" else f"{first['msg']}; fix: correct it"
            raise spec.refuse(f"extra: {first['loc'][0]}: {why}") from None


def _matches(pattern: str, expectation: str) -> AfterValidator:
    """Return a validator that accepts an empty text or one that matches `pattern`."""

    def check(value: str) -> str:
        if value and not re.fullmatch(pattern, value):
            raise ValueError(f"got {value!r}; {expectation}")
        return value

    return AfterValidator(check)


def _without_slash(value: str) -> str:
    return value.rstrip("/")


# ---- Kafka ----


def parse_kafka(spec: ConnectionSpec) -> dict[str, str]:
    """Return librdkafka's settings, with certificate files as content. Raises ConfigError naming the key."""
    found = {str(key): str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in spec.extra.items()}  # fmt: skip
    if not found.get("bootstrap.servers"):
        near = "".join(f" (not {key})" for key in get_close_matches("bootstrap.servers", found, 1))
        raise spec.refuse(f"extra: bootstrap.servers: missing; expected HOST:PORT of a broker{near}")
    for server in found["bootstrap.servers"].split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise spec.refuse(f"extra: bootstrap.servers: got {server!r}; expected HOST:PORT")
    for key, inline in FILES.items():
        if (file := found.pop(key, None)) is None:
            continue
        if inline in found:
            raise spec.refuse(f"extra: {key}: conflicts with {inline}; expected only one")
        try:
            found[inline] = Path(file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not PEM"
            raise spec.refuse(f"extra: {key}: got {file} ({why}); expected a PEM file, or {inline}") from None
    return found


def parse_login(spec: ConnectionSpec) -> tuple[str, dict[str, str], JavaKafka]:
    """Return the broker's address, and the login for librdkafka and Java. Raises ConfigError naming the key."""
    login = parse_kafka(spec)
    bootstrap = login.pop("bootstrap.servers")
    try:
        return bootstrap, login, translate(login)
    except ConfigError as error:
        raise spec.refuse(f"extra: {error}") from None


# ---- Spark ----


def _check_setting(name: str) -> str:
    if not name.startswith("spark."):
        raise ValueError(f"got {name}; expected a Spark setting such as {_ENCRYPTED}")
    if name.startswith("spark.authenticate"):
        raise ValueError(f"{name} is derived from the Connection's password; fix: remove it")
    if name in _DERIVED:
        raise ValueError(f"{name} is derived from the Connection; fix: remove it")
    return name


class _SparkExtra(_Extra):
    # Python drivers need client mode.
    deploy_mode: Literal["client"] = Field("client", alias="deploy-mode")
    ui: Annotated[
        str,
        AfterValidator(_without_slash),
        _matches(r"https?://[^\s/]+(?:/\S*)?", "expected http://HOST:PORT"),
    ] = ""
    conf: dict[Annotated[str, AfterValidator(_check_setting)], str] = Field(default_factory=dict)
    driver_host: Annotated[str, _matches(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "expected a host name or address")] = (
        Field("", alias="driver-host")
    )


@dataclass(frozen=True)
class SparkConnectionSpec:
    """Content of a Spark Connection.

    `ui`: the standalone master's page, else empty. `secret`: shared by all processes of the cluster, empty without
    authentication. `conf`: settings that the cluster requires. `here`: the address at which executors reach this
    machine.
    """

    master: str
    ui: str
    secret: str
    conf: Mapping[str, str]
    here: str


def parse_spark(spec: ConnectionSpec, route: Callable[[str], str | None] | None = None) -> SparkConnectionSpec:
    """Return the Spark Connection's content. Raises ConfigError naming the key. `route`: replacement of `route_to`."""
    master, extra, secret = _master(spec), _SparkExtra.from_spec(spec), spec.password or ""
    standalone = _MASTER.fullmatch(master)
    if standalone is None and master != "yarn" and not master.startswith("k8s://"):
        raise spec.refuse(f"host: got {master}; expected spark://HOST:PORT, yarn or k8s://ADDRESS")
    if not secret.isprintable() or secret != secret.strip():
        raise spec.refuse("password: contains a line break or outer space; expected another secret")
    if not secret and extra.conf.get(_ENCRYPTED, "").lower() == "true":
        raise spec.refuse(f"password: missing, required by {_ENCRYPTED} in conf; expected the cluster's secret")
    master_host = standalone.group(1).rpartition(":")[0] if standalone else ""
    here = extra.driver_host or ((route or route_to)(master_host) if master_host else "")
    if not here and master_host:
        raise spec.refuse(f"host: {master_host} does not resolve; fix: correct the name, or /etc/hosts")
    if not here:
        raise spec.refuse("extra: driver-host: missing; expected the address at which executors reach this machine")
    ui = extra.ui or (f"http://{master_host}:{UI_PORT}" if master_host else "")
    return SparkConnectionSpec(master, ui, secret, extra.conf, here)


def route_to(host: str) -> str | None:
    """Return the address of this machine on the route to a host; None for an unknown host. Sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _master(spec: ConnectionSpec) -> str:
    """Return the master's address as the Spark provider builds it."""
    host = spec.host or ""
    is_address = spec.conn_type == SPARK_TYPE and host and ("://" in host or not spec.port)
    master = host if is_address else f"{spec.conn_type}://{host}"
    return f"{master}:{spec.port}" if spec.port else master


# ---- Storage, and hosts ----


def _check_folder(path: str) -> str:
    kind, _, _ = path.partition("://")
    if path.startswith(SCHEME):
        if _HDFS.fullmatch(path.rstrip("/")) is None:
            raise ValueError(f"got {path!r}; expected hdfs://HOST:PORT/PATH")
    elif kind not in (path, "file"):
        raise ValueError(f"got {kind} ({_REFUSED.get(kind, _UNKNOWN)}); expected a folder, or hdfs://")
    elif not re.fullmatch("/.*[^/].*", path.removeprefix("file://")):
        raise ValueError(f"got {path!r}; expected an absolute folder that all hosts share")
    return path.removeprefix("file://").rstrip("/")


class _StorageExtra(_Extra):
    path: Annotated[str, AfterValidator(_check_folder)]
    web: Annotated[
        str,
        AfterValidator(_without_slash),
        _matches(r"http://[A-Za-z0-9._-]+:\d+", "expected http://HOST:PORT of WebHDFS"),
    ] = ""


def parse_storage(spec: ConnectionSpec) -> tuple[str, str]:
    """Return the shared folder, and its WebHDFS address if it is in HDFS. Raises ConfigError naming the key."""
    extra = _StorageExtra.from_spec(spec, path=str(spec.extra.get("path") or spec.host or ""))
    match = _HDFS.fullmatch(extra.path)
    return extra.path, "" if match is None else extra.web or f"http://{match.group(1)}:{WEB_PORT}"


def parse_host(spec: ConnectionSpec) -> dict[str, Any]:
    """Return an SSH host as in `ssh_hosts.json`, or with `private_key`, the key's text, instead of `key_file`."""
    extra = {key: spec.extra[key] for key in ("key_file", "known_hosts", "python", "private_key") if key in spec.extra}
    return {"host": spec.host or "", "port": spec.port or 22, "user": spec.login or "", **extra}
