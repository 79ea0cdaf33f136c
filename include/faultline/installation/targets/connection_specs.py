"""What the Connections of a target say, and what is refused of it."""

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

# Where the documentation of librdkafka has a file, a Connection can also hold its content.
FILES = {"ssl.ca.location": "ssl.ca.pem", "ssl.certificate.location": "ssl.certificate.pem",
          "ssl.key.location": "ssl.key.pem"}  # fmt: skip
_MASTER = re.compile(r"spark://([A-Za-z0-9._-]+:\d+)(,[A-Za-z0-9._-]+:\d+)*")
_HDFS = re.compile(r"hdfs://([A-Za-z0-9._-]+):\d+(?:/[A-Za-z0-9._-]+)+")
# Of a name node, and of the page that a standalone master has beside its port, where nothing else is spec.
WEB_PORT, UI_PORT = 9870, 8080
# Why a checkpoint cannot lie there.
_UNKNOWN = "only a checkpoint's own files tell when it was written"
_REFUSED = dict.fromkeys(("s3", "s3a", "s3n"), "its files' times are of whole seconds, which is too coarse")
# What follows from the Connection itself.
_DERIVED = ("spark.master", "spark.submit.deployMode", "spark.driver.host", "spark.driver.bindAddress")
_ENCRYPTED = "spark.network.crypto.enabled"
# The type of a Connection whose host may be a whole address of a master.
SPARK_TYPE = "spark"


@dataclass(frozen=True)
class ConnectionSpec:
    """A Connection, whichever backend of Airflow holds it."""

    id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def differing_keys(self, other: ConnectionSpec) -> list[str]:
        """The keys, without their values, of which the other says something else."""
        # A Connection that comes as an address has "" where others have nothing.
        text_keys = ("conn_type", "host", "port", "login", "password")
        keys = [key for key in text_keys if (getattr(self, key) or None) != (getattr(other, key) or None)]
        extra = sorted({*self.extra, *other.extra})
        return keys + [f"extra: {key}" for key in extra if self.extra.get(key) != other.extra.get(key)]

    def refuse(self, why: object) -> ConfigError:
        """An error that names the Connection."""
        return ConfigError(f"Connection {self.id}: {why}")


def digest(specs: Mapping[str, ConnectionSpec]) -> str:
    """Tells whether any of them was changed since."""
    content = {name: {**asdict(one), "extra": dict(one.extra)} for name, one in specs.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_spec(target: Target, specs: Mapping[str, ConnectionSpec]) -> None:
    """Looks at what those of its Connections say that are given, as far as that needs neither files of ours nor the
    network. Raises ConfigError naming Connection and key."""
    # Where the master's name leads to is asked when it is taken in: it may not be known here yet.
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
    """What a Connection says beyond host, port and login; other keys are nobody's business."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    @classmethod
    def of(cls, spec: ConnectionSpec, **more: object) -> Self:
        """Of a Connection. Raises ConfigError naming the key."""
        try:
            return cls.model_validate({**spec.extra, **more})
        except ValidationError as error:
            first = error.errors()[0]
            why = first["ctx"]["error"] if first["type"] == "value_error" else f"{first['msg']}; mend it"
            raise spec.refuse(f"extra: {first['loc'][0]}: {why}") from None


def _matches(pattern: str, why: str) -> AfterValidator:
    """Refuses a text of another form; an empty one is none."""

    def check(value: str) -> str:
        if value and not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} {why}")
        return value

    return AfterValidator(check)


def _without_slash(value: str) -> str:
    return value.rstrip("/")


# ---- Kafka ----


def parse_kafka(spec: ConnectionSpec) -> dict[str, str]:
    """librdkafka's settings as texts, files of certificates as their content. Raises ConfigError naming the key."""
    found = {str(key): str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in spec.extra.items()}  # fmt: skip
    if not found.get("bootstrap.servers"):
        near = "".join(f" in place of {key}" for key in get_close_matches("bootstrap.servers", found, 1))
        raise spec.refuse(f"extra: bootstrap.servers: missing; give HOST:PORT of a broker{near}")
    for server in found["bootstrap.servers"].split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise spec.refuse(f"extra: bootstrap.servers: {server!r} is no HOST:PORT; mend it")
    for key, inline in FILES.items():
        if (file := found.pop(key, None)) is None:
            continue
        if inline in found:
            raise spec.refuse(f"extra: {key}: is given as {inline}, too; give one of both")
        try:
            found[inline] = Path(file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "holds no PEM"
            raise spec.refuse(f"extra: {key}: {file}: {why}; name a file in PEM form, or give {inline}") from None
    return found


def parse_login(spec: ConnectionSpec) -> tuple[str, dict[str, str], JavaKafka]:
    """The broker's address, and how to log in there for librdkafka and for Java. Raises ConfigError naming the key."""
    login = parse_kafka(spec)
    bootstrap = login.pop("bootstrap.servers")
    try:
        return bootstrap, login, translate(login)
    except ConfigError as error:
        raise spec.refuse(f"extra: {error}") from None


# ---- Spark ----


def _check_setting(name: str) -> str:
    if not name.startswith("spark."):
        raise ValueError(f"{name} is no setting of Spark's; give names such as {_ENCRYPTED}")
    if name.startswith("spark.authenticate"):
        raise ValueError(f"{name} follows from the secret, the Connection's password; leave it out")
    if name in _DERIVED:
        raise ValueError(f"{name} follows from the Connection; leave it out")
    return name


class _SparkExtra(_Extra):
    # What is in Python runs where it is started.
    deploy_mode: Literal["client"] = Field("client", alias="deploy-mode")
    ui: Annotated[
        str,
        AfterValidator(_without_slash),
        _matches(r"https?://[^\s/]+(?:/\S*)?", "is no address of a page; give http://HOST:PORT"),
    ] = ""
    conf: dict[Annotated[str, AfterValidator(_check_setting)], str] = Field(default_factory=dict)
    driver_host: Annotated[
        str, _matches(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "is no host; give its name or address")
    ] = Field("", alias="driver-host")


@dataclass(frozen=True)
class SparkConnectionSpec:
    """`ui`: the master's page, empty where it has none of the standalone kind. `secret`: that every process of the
    cluster shares, empty where none is asked for. `conf`: settings that the cluster asks for. `here`: the address at
    which executors reach this machine."""

    master: str
    ui: str
    secret: str
    conf: Mapping[str, str]
    here: str


def parse_spark(spec: ConnectionSpec, route: Callable[[str], str | None] | None = None) -> SparkConnectionSpec:
    """Raises ConfigError naming the key. `route`: tells the address of this machine by which a host is reached."""
    master, extra, secret = _master(spec), _SparkExtra.of(spec), spec.password or ""
    standalone = _MASTER.fullmatch(master)
    if standalone is None and master != "yarn" and not master.startswith("k8s://"):
        raise spec.refuse(f"host: {master} is no master; give spark://HOST:PORT, yarn or k8s://ADDRESS")
    if not secret.isprintable() or secret != secret.strip():
        raise spec.refuse("password: holds a line break, or a space at an end; choose another secret")
    if not secret and extra.conf.get(_ENCRYPTED, "").lower() == "true":
        raise spec.refuse(f"password: missing, and conf has {_ENCRYPTED}, which takes a secret; give the cluster's")
    first = standalone.group(1).rpartition(":")[0] if standalone else ""
    here = extra.driver_host or ((route or route_to)(first) if first else "")
    if not here and first:
        raise spec.refuse(f"host: {first} has no address that is known here; mend the name, or look at /etc/hosts")
    if not here:
        raise spec.refuse("extra: driver-host: missing; give the address at which executors reach this machine")
    ui = extra.ui or (f"http://{first}:{UI_PORT}" if first else "")
    return SparkConnectionSpec(master, ui, secret, extra.conf, here)


def route_to(host: str) -> str | None:
    """The address of this machine by which a host is reached; None for a host that has no address. Sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _master(spec: ConnectionSpec) -> str:
    """As the Spark provider puts it together."""
    host = spec.host or ""
    whole = spec.conn_type == SPARK_TYPE and host and ("://" in host or not spec.port)
    master = host if whole else f"{spec.conn_type}://{host}"
    return f"{master}:{spec.port}" if spec.port else master


# ---- Storage, and hosts ----


def _check_folder(path: str) -> str:
    kind, _, _ = path.partition("://")
    if path.startswith(SCHEME):
        if _HDFS.fullmatch(path.rstrip("/")) is None:
            raise ValueError(f"{path!r} is no folder in HDFS; give hdfs://HOST:PORT/PATH")
    elif kind not in (path, "file"):
        raise ValueError(f"{kind} is refused: {_REFUSED.get(kind, _UNKNOWN)}; give a folder, or hdfs://")
    elif not re.fullmatch("/.*[^/].*", path.removeprefix("file://")):
        raise ValueError(f"{path!r} is no path of a folder; give one that begins with / and that all hosts share")
    return path.removeprefix("file://").rstrip("/")


class _StorageExtra(_Extra):
    path: Annotated[str, AfterValidator(_check_folder)]
    web: Annotated[
        str,
        AfterValidator(_without_slash),
        _matches(r"http://[A-Za-z0-9._-]+:\d+", "is no address of WebHDFS; give http://HOST:PORT"),
    ] = ""


def parse_storage(spec: ConnectionSpec) -> tuple[str, str]:
    """The folder that all hosts share, and where WebHDFS answers for it if it lies in HDFS. Raises ConfigError naming
    the key."""
    extra = _StorageExtra.of(spec, path=str(spec.extra.get("path") or spec.host or ""))
    match = _HDFS.fullmatch(extra.path)
    return extra.path, "" if match is None else extra.web or f"http://{match.group(1)}:{WEB_PORT}"


def parse_host(spec: ConnectionSpec) -> dict[str, Any]:
    """A host that is reached over SSH, as `ssh_hosts.json` has them, or with its key itself as `private_key`."""
    kept = {key: spec.extra[key] for key in ("key_file", "known_hosts", "python", "private_key") if key in spec.extra}
    return {"host": spec.host or "", "port": spec.port or 22, "user": spec.login or "", **kept}
