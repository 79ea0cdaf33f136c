"""On which hosts the embedded services run: all on this machine, or some on hosts of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from faultline.system.errors import ConfigError

HOST = "127.0.0.1"
FILE = "hosts.json"
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
    def spread(self) -> bool:
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


HERE = Placement()


def read_placement(home: Path) -> Placement:
    """What the last `up` chose. Raises ConfigError for a file that cannot be read."""
    file = home / FILE
    try:
        return Placement.from_mapping(json.loads(file.read_text()))
    except FileNotFoundError:
        return HERE
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file}: not a list of hosts ({error}); run ./faultline down, delete it, and `up` writes it anew"
        ) from None
