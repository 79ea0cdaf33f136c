"""Where an experiment reaches what it talks to, and on which hosts the embedded services run."""

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
# The host of the broker; every other one has a Spark worker.
BROKER = "kafka"
WORKER = "worker-{}"


@dataclass(frozen=True)
class Host:
    """One host: its name, the address at which all others reach it, and the service that runs there."""

    name: str
    address: str
    service: str


@dataclass(frozen=True)
class Placement:
    """`conductor`: the address of this machine, where everything runs that is on no other host. `bridge`: the network
    interface that joins them, empty where there are no others."""

    conductor: str = HOST
    bridge: str = ""
    hosts: tuple[Host, ...] = ()

    @classmethod
    def of(cls, count: int, subnet: str, bridge: str) -> Self:
        """`count` hosts beside this machine, the broker's and one for each worker. `subnet`: three numbers of an
        address, such as 10.77.0."""
        names = [(BROKER, "kafka")]
        names += [(WORKER.format(number), f"spark-worker-{number}") for number in range(1, count)]
        hosts = (Host(name, f"{subnet}.{number}", service) for number, (name, service) in enumerate(names, 2))
        return cls(f"{subnet}.1", bridge, tuple(hosts))

    @property
    def is_spread(self) -> bool:
        """Whether anything runs on another host."""
        return bool(self.hosts)

    def host_of(self, service: str) -> Host | None:
        """The host of a service; None for this machine."""
        return next((one for one in self.hosts if one.service == service), None)

    def address(self, service: str) -> str:
        """Where a service is reached."""
        host = self.host_of(service)
        return self.conductor if host is None else host.address

    def as_mapping(self) -> dict[str, Any]:
        """JSON values, for a file."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """What `as_mapping` gave."""
        return cls(values["conductor"], values["bridge"], tuple(Host(**one) for one in values["hosts"]))


LOCAL_PLACEMENT = Placement()


def read_placement(home: Path) -> Placement:
    """What the last `up` chose. Raises ConfigError for a file that cannot be read."""
    file = home / HOSTS_FILE
    with reject_damaged(file, "run ./faultline down, delete it, and `up` writes it anew"):
        return Placement.from_mapping(json.loads(file.read_text())) if file.exists() else LOCAL_PLACEMENT


# ---- Addresses of a target ----

# The target that an installation is for itself.
EMBEDDED = "embedded"


@dataclass(frozen=True)
class Endpoints:
    """Addresses of one target.

    `kafka`: the broker's, host:port; `kafka_detoured`: of its listener that advertises `kafka_detour`, which is where
    whatever stands between workload and broker listens; `kafka_gated` and `kafka_gate`: the same of the gate for what
    cannot log in. `engine`: what a workload is submitted to; `engine_ui` and
    `airflow`: http://host:port. `hosts`: the machines whose processes are reached over SSH, by name; none when all is
    on this one. `here`: the address at which all of them reach this one. `target`: its name. `logins`: the folder of
    what programs log in with there. `storage`: a folder that all hosts of the target share, or
    hdfs://HOST:PORT/PATH; empty where all of them share everything; `storage_web`: where WebHDFS answers for it,
    http://HOST:PORT. `engine_ui` is empty of an engine that has no page of its own.
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
        """Whether its services are not this installation's."""
        return self.target != EMBEDDED

    @classmethod
    def embedded(cls, ports: Mapping[str, int], placement: Placement = LOCAL_PLACEMENT, logins: str = "") -> Self:
        """Those of the embedded services, by the ports and hosts that `up` chose. What stands between workload and
        broker runs on this machine, and so does Airflow, which listens on loopback only."""
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
        """What `as_mapping` gave."""
        return cls(**values)

    def as_mapping(self) -> dict[str, Any]:
        """JSON values, for a file."""
        # Not `asdict`, which cannot copy a mapping that is read-only.
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"hosts": {name: dict(host) for name, host in self.hosts.items()}}
