"""What the Connections of a target say, and what is refused of it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from faultline.engines.spark.hdfs import SCHEME
from faultline.system.errors import ConfigError

# Where the documentation of librdkafka has a file, a Connection can also hold its content.
FILES = {"ssl.ca.location": "ssl.ca.pem", "ssl.certificate.location": "ssl.certificate.pem",
          "ssl.key.location": "ssl.key.pem"}  # fmt: skip
_MASTER = re.compile(r"spark://([A-Za-z0-9._-]+:\d+)(,[A-Za-z0-9._-]+:\d+)*")
_HDFS = re.compile(r"hdfs://([A-Za-z0-9._-]+):\d+(?:/[A-Za-z0-9._-]+)+")
_PAGE = re.compile(r"https?://[^\s/]+(?:/\S*)?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_WEB = re.compile(r"http://[A-Za-z0-9._-]+:\d+")
# Of a name node, where nothing else is said.
WEB_PORT = 9870
# Why a checkpoint cannot lie there.
_UNKNOWN = "only a checkpoint's own files tell when it was written"
_REFUSED = dict.fromkeys(("s3", "s3a", "s3n"), "its files' times are of whole seconds, which is too coarse")
# What follows from the Connection itself.
_GIVEN = ("spark.master", "spark.submit.deployMode", "spark.driver.host", "spark.driver.bindAddress")
_ENCRYPTED = "spark.network.crypto.enabled"
# Of the page that a standalone master has beside its port.
UI_PORT = 8080
CLIENT = "client"
# The type of a Connection whose host may be a whole address of a master.
OF_SPARK = "spark"


@dataclass(frozen=True)
class Said:
    """A Connection, whichever backend of Airflow holds it."""

    id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def differs(self, other: Said) -> list[str]:
        """The keys, without their values, of which the other says something else."""
        # A Connection that comes as an address has "" where others have nothing.
        of_text = ("conn_type", "host", "port", "login", "password")
        keys = [key for key in of_text if (getattr(self, key) or None) != (getattr(other, key) or None)]
        extra = sorted({*self.extra, *other.extra})
        return keys + [f"extra: {key}" for key in extra if self.extra.get(key) != other.extra.get(key)]

    def refuse(self, why: object) -> ConfigError:
        """An error that names the Connection."""
        return ConfigError(f"Connection {self.id}: {why}")


@dataclass(frozen=True)
class SparkSaid:
    """`ui`: the master's page, empty where it has none of the standalone kind. `secret`: that every process of the
    cluster shares, empty where none is asked for. `conf`: settings that the cluster asks for. `here`: the address at
    which executors reach this machine."""

    master: str
    ui: str
    secret: str
    conf: Mapping[str, str]
    here: str

    @property
    def standalone(self) -> bool:
        return self.master.startswith("spark://")


def digest(said: Mapping[str, Said]) -> str:
    """Tells whether any of them was changed since."""
    content = {name: {**asdict(one), "extra": dict(one.extra)} for name, one in said.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def kafka_of(said: Said) -> dict[str, str]:
    """librdkafka's settings as texts, files of certificates as their content. Raises ConfigError naming the key."""
    found = {str(key): str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in said.extra.items()}  # fmt: skip
    if not found.get("bootstrap.servers"):
        near = "".join(f" in place of {key}" for key in get_close_matches("bootstrap.servers", found, 1))
        raise said.refuse(f"extra: bootstrap.servers: missing; give HOST:PORT of a broker{near}")
    for server in found["bootstrap.servers"].split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise said.refuse(f"extra: bootstrap.servers: {server!r} is no HOST:PORT; mend it")
    for key, inline in FILES.items():
        if (file := found.pop(key, None)) is None:
            continue
        if inline in found:
            raise said.refuse(f"extra: {key}: is given as {inline}, too; give one of both")
        try:
            found[inline] = Path(file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "holds no PEM"
            raise said.refuse(f"extra: {key}: {file}: {why}; name a file in PEM form, or give {inline}") from None
    return found


def route_to(host: str) -> str | None:
    """The address of this machine by which a host is reached; None for a host that has no address. Sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def spark_of(said: Said, route: Callable[[str], str | None] = route_to) -> SparkSaid:
    """Raises ConfigError naming the key. `route`: tells the address of this machine by which a host is reached."""
    master = _master(said)
    extra = said.extra
    if extra.get("deploy-mode", CLIENT) != CLIENT:
        raise said.refuse(f"extra: deploy-mode: {extra['deploy-mode']} cannot run a Python program here; use client")
    standalone = _MASTER.fullmatch(master)
    if standalone is None and master != "yarn" and not master.startswith("k8s://"):
        raise said.refuse(f"host: {master} is no master; give spark://HOST:PORT, yarn or k8s://ADDRESS")
    secret = said.password or ""
    if not secret.isprintable() or secret != secret.strip():
        raise said.refuse("password: holds a line break, or a space at an end; choose another secret")
    conf = _conf(said, secret)
    first = standalone.group(1).rpartition(":")[0] if standalone else ""
    ui = str(extra.get("ui") or (f"http://{first}:{UI_PORT}" if first else "")).rstrip("/")
    if ui and not _PAGE.fullmatch(ui):
        raise said.refuse(f"extra: ui: {ui!r} is no address of a page; give http://HOST:PORT")
    return SparkSaid(master, ui, secret, conf, _here(said, first, route))


def _conf(said: Said, secret: str) -> dict[str, str]:
    """Settings that the cluster asks for, but for those that follow from the Connection."""
    conf = said.extra.get("conf", {})
    if not isinstance(conf, dict) or not all(str(name).startswith("spark.") for name in conf):
        raise said.refuse('extra: conf: is no object of settings, such as {"spark.network.crypto.enabled": "true"}')
    found = {str(name): str(value) for name, value in conf.items()}
    for name in found:
        if name.startswith("spark.authenticate"):
            raise said.refuse(f"extra: conf: {name} follows from the secret, the Connection's password; leave it out")
        if name in _GIVEN:
            raise said.refuse(f"extra: conf: {name} follows from the Connection; leave it out")
    if not secret and found.get(_ENCRYPTED, "").lower() == "true":
        raise said.refuse(f"password: missing, and conf has {_ENCRYPTED}, which takes a secret; give the cluster's")
    return found


def _here(said: Said, first: str, route: Callable[[str], str | None]) -> str:
    """The address of this machine for executors. `first`: the first host of the masters, empty where none is named."""
    given = said.extra.get("driver-host")
    if given and not _HOST.fullmatch(str(given)):
        raise said.refuse(f"extra: driver-host: {given!r} is no host; give its name or address")
    here = given or (route(first) if first else None)
    if not here and first:
        raise said.refuse(f"host: {first} has no address that is known here; mend the name, or look at /etc/hosts")
    if not here:
        raise said.refuse("extra: driver-host: missing; give the address at which executors reach this machine")
    return str(here)


def _master(said: Said) -> str:
    """As the Spark provider puts it together."""
    host = said.host or ""
    whole = said.conn_type == OF_SPARK and host and ("://" in host or not said.port)
    master = host if whole else f"{said.conn_type}://{host}"
    return f"{master}:{said.port}" if said.port else master


def storage_of(said: Said) -> tuple[str, str]:
    """The folder that all hosts share, and where WebHDFS answers for it if it lies in HDFS. Raises ConfigError naming
    the key."""
    path = str(said.extra.get("path") or said.host or "")
    if path.startswith(SCHEME):
        return _in_hdfs(said, path.rstrip("/"))
    if "://" in path and not path.startswith("file://"):
        kind = path.partition("://")[0]
        raise said.refuse(f"extra: path: {kind} is refused: {_REFUSED.get(kind, _UNKNOWN)}; give a folder, or hdfs://")
    path = path.removeprefix("file://")
    if not path.startswith("/") or path == "/":
        raise said.refuse(
            f"extra: path: {path!r} is no path of a folder; give one that begins with / and that all hosts share"
        )
    return path.rstrip("/"), ""


def _in_hdfs(said: Said, path: str) -> tuple[str, str]:
    match = _HDFS.fullmatch(path)
    if match is None:
        raise said.refuse(f"extra: path: {path!r} is no folder in HDFS; give hdfs://HOST:PORT/PATH")
    web = str(said.extra.get("web") or f"http://{match.group(1)}:{WEB_PORT}").rstrip("/")
    if not _WEB.fullmatch(web):
        raise said.refuse(f"extra: web: {web!r} is no address of WebHDFS; give http://HOST:PORT")
    return path, web


def host_of(said: Said) -> dict[str, Any]:
    """A host that is reached over SSH, as `ssh_hosts.json` has them, or with its key itself as `private_key`."""
    kept = {key: said.extra[key] for key in ("key_file", "known_hosts", "python", "private_key") if key in said.extra}
    return {"host": said.host or "", "port": said.port or 22, "user": said.login or "", **kept}
