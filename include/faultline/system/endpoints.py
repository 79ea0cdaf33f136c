"""Addresses of the services that an experiment uses, and hosts of the embedded services."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from faultline.system.files import reject_damaged

HOST = "127.0.0.1"
HOSTS_FILE = "hosts.json"
# Name of the broker's host; every other host has a Spark worker.
BROKER = "kafka"
WORKER = "worker-{}"


@dataclass(frozen=True)
class Host:
    """One host: its name, its address in the cluster network, and its service."""

    name: str
    address: str
    service: str


@dataclass(frozen=True)
class Placement:
    """Hosts of the embedded services.

    `conductor`: the address of this machine, which runs everything without a host of its own. `bridge`: the network
    interface that joins the hosts, empty without hosts.
    """

    conductor: str = HOST
    bridge: str = ""
    hosts: tuple[Host, ...] = ()

    @classmethod
    def of(cls, count: int, subnet: str, bridge: str) -> Self:
        """Return `count` hosts in addition to this machine: the broker's and one per worker.

        `subnet`: the first three numbers of the addresses, such as 10.77.0.
        """
        names = [(BROKER, "kafka")]
        names += [(WORKER.format(number), f"spark-worker-{number}") for number in range(1, count)]
        hosts = (Host(name, f"{subnet}.{number}", service) for number, (name, service) in enumerate(names, 2))
        return cls(f"{subnet}.1", bridge, tuple(hosts))

    @property
    def is_spread(self) -> bool:
        """Whether a service runs on another host."""
        return bool(self.hosts)

    def host_of(self, service: str) -> Host | None:
        """Return the host of a service; None for this machine."""
        return next((one for one in self.hosts if one.service == service), None)

    def address(self, service: str) -> str:
        """Return the address of a service."""
        host = self.host_of(service)
        return self.conductor if host is None else host.address

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values, for a file."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the placement of `as_mapping`'s values."""
        return cls(values["conductor"], values["bridge"], tuple(Host(**one) for one in values["hosts"]))


LOCAL_PLACEMENT = Placement()


def read_placement(home: Path) -> Placement:
    """Return the placement of the last `up`. Raises ConfigError for an unreadable file."""
    file = home / HOSTS_FILE
    with reject_damaged(file, "`./faultline down`, delete it, then `up`"):
        return Placement.from_mapping(json.loads(file.read_text())) if file.exists() else LOCAL_PLACEMENT


# ---- Addresses of a target ----

# Name of the target that consists of this installation's own services.
EMBEDDED = "embedded"


@dataclass(frozen=True)
class Endpoints:
    """Addresses of one target.

    `kafka`: HOST:PORT of the broker. `kafka_detour`: address of the fault proxy between workload and broker;
    `kafka_detoured`: listener of the broker that advertises this address. `kafka_gate`, `kafka_gated`: the same for the
    Kafka auth proxy. `engine`: address to which workloads are submitted. `engine_ui`: http://HOST:PORT, empty for an
    engine without a web page. `airflow`: http://HOST:PORT. `hosts`: hosts reached over SSH, by name; empty if all
    services run on this machine. `here`: address at which these hosts reach this machine. `target`: name of the target.
    `logins`: folder of the credential files. `storage`: a folder shared by all hosts, or hdfs://HOST:PORT/PATH; empty
    if the hosts share all files. `storage_web`: WebHDFS address of `storage`, http://HOST:PORT.
    """

    kafka: str
    kafka_detoured: str
    kafka_detour: str
    engine: str
    engine_ui: str
    airflow: str
    kafka_gated: str = ""
    kafka_gate: str = ""
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    here: str = HOST
    target: str = EMBEDDED
    logins: str = ""
    storage: str = ""
    storage_web: str = ""

    @property
    def is_external(self) -> bool:
        """Whether the services do not belong to this installation."""
        return self.target != EMBEDDED

    @classmethod
    def embedded(cls, ports: Mapping[str, int], placement: Placement = LOCAL_PLACEMENT, logins: str = "") -> Self:
        """Return the endpoints of the embedded services for the ports and hosts of `up`.

        Both proxies and Airflow run on this machine; Airflow listens on loopback only.
        """
        broker, here = placement.address("kafka"), placement.conductor
        return cls(
            kafka=f"{broker}:{ports['kafka']}",
            kafka_detoured=f"{broker}:{ports['kafka_proxied']}",
            kafka_detour=f"{here}:{ports['kafka_proxy']}",
            kafka_gated=f"{broker}:{ports['kafka_gated']}",
            kafka_gate=f"{here}:{ports['kafka_gate']}",
            engine=f"spark://{here}:{ports['spark_master']}",
            engine_ui=f"http://{here}:{ports['spark_master_ui']}",
            airflow=f"http://{HOST}:{ports['airflow']}",
            here=here,
            logins=logins,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the endpoints of `as_mapping`'s values."""
        return cls(**values)

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values, for a file."""
        # Not `asdict`, which cannot copy a mapping that is read-only.
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"hosts": {name: dict(host) for name, host in self.hosts.items()}}
