"""Distributions of Spark beside the installed one: another version, a vendor's build, a snapshot of one's own.

`<home>/spark-builds.json` lists them by name. Each runs its workloads on a master and workers of its own, since workers
start executors from the Spark that they belong to. A distribution is held against the hash of its jars each time that
it is asked for: what was measured under a name stays what that name stands for.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from faultline.experiment.attempt import write_json
from faultline.experiment.common_parameters import INSTALLED
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.hashes import list_hash
from faultline.system.settings import WORKERS, Settings, free_port
from faultline.system.text import suggest

FILE = "spark-builds.json"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")
SCALA = "2.13"
CONNECTOR = "spark-sql-kafka-0-10"
# The oldest version whose logs, checkpoints and REST are read as today's are.
MIN_VERSION = (4, 0)
PORTS = (
    "spark_master",
    "spark_master_ui",
    *(f"spark_worker_{number}{part}" for number in range(1, WORKERS + 1) for part in ("", "_ui")),
)


@dataclass(frozen=True)
class Distribution:
    """One of them. `ports`: of its master and workers, by the names that the installed Spark's have.

    `java_home`: None for the Java of everything else. `python`: of driver and workers. `has_connector`: whether its
    jars hold the connector to Kafka; else Faultline's are used, which must be of its version. `sha256`: of its jars.
    """

    name: str
    spark_home: Path
    version: str
    sha256: str
    python: str
    has_connector: bool
    ports: Mapping[str, int]
    java_home: Path | None = None
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def spark_submit(self) -> Path:
        return self.spark_home / "bin" / "spark-submit"

    @property
    def python_path(self) -> list[Path]:
        """Where its own PySpark lies."""
        folder = self.spark_home / "python"
        if not folder.is_dir():
            return [self.spark_home.parent]  # a wheel, which is the package itself
        return [folder, *sorted((folder / "lib").glob("py4j-*.zip"))]

    def endpoints(self, usual: Endpoints) -> Endpoints:
        """Those of an experiment on it."""
        return replace(
            usual,
            engine=f"spark://{usual.here}:{self.ports['spark_master']}",
            engine_ui=f"http://{usual.here}:{self.ports['spark_master_ui']}",
        )

    def service(self, name: str) -> str:
        """The name of one of its services, such as spark-worker-1, among all."""
        return f"{name}@{self.name}"

    def as_mapping(self) -> dict[str, Any]:
        """JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # `asdict` cannot copy what is read-only
        java = None if self.java_home is None else str(self.java_home)
        made = {**values, "spark_home": str(self.spark_home), "java_home": java}
        return {**made, "conf": dict(self.conf), "ports": dict(self.ports)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Distribution:
        """What `as_mapping` gave. Raises ValueError, TypeError or KeyError for anything else."""
        java = values.get("java_home")
        for name, kind in (("name", str), ("version", str), ("sha256", str), ("python", str), ("conf", dict)):
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} is {values[name]!r}")
        if not all(isinstance(values["ports"][name], int) for name in PORTS):
            raise ValueError("ports are not all numbers")
        return cls(**{**values, "spark_home": Path(values["spark_home"]), "java_home": Path(java) if java else None})


def distributions(settings: Settings) -> dict[str, Distribution]:
    """Those that are registered, by name. Raises ConfigError for a file that cannot be read."""
    file = settings.home / FILE
    if not file.exists():
        return {}
    try:
        listed = json.loads(file.read_text())
        return {str(name): Distribution.from_mapping(one) for name, one in sorted(listed.items())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{file}: is no list of Spark builds ({why}); delete it, and add them anew") from None


def readable_distributions(settings: Settings) -> dict[str, Distribution]:
    """The same; none where the list cannot be read. What runs on the installed Spark needs none of them, and whoever
    names one is told, as `doctor` tells everybody."""
    try:
        return distributions(settings)
    except ConfigError:
        return {}


def distribution(settings: Settings, name: str | None) -> Distribution | None:
    """The one that an experiment names, None for the installed. Raises ConfigError for one that is not registered."""
    if name is None:
        return None
    known = distributions(settings)
    if name not in known:
        raise ConfigError(f"spark_build: no Spark build is called {name!r}{suggest(name, [*known, INSTALLED])}")
    return known[name]


def require_unchanged(one: Distribution) -> None:
    """Raises ConfigError when it is gone, or is no longer what was registered."""
    if not one.spark_home.is_dir():
        raise ConfigError(f"spark_build: {one.name} is gone from {one.spark_home}; bring it back, or remove the build")
    if jars_hash(one.spark_home) != one.sha256:
        raise ConfigError(
            f"spark_build: {one.spark_home} is not what was registered as {one.name}: its jars have changed; add it "
            "under another name"
        )


def inspect_distribution(
    settings: Settings, name: str, spark_home: Path, java_home: Path | None, conf: Mapping[str, str], installed: str
) -> Distribution:
    """A distribution as it is to be registered, with ports of its own. `installed`: the version that is there anyway.

    Raises ConfigError, naming the option and the remedy, for what cannot be run.
    """
    if not NAME.fullmatch(name) or name == INSTALLED:
        raise ConfigError(f"NAME: {name!r} is no name of a build; use small letters, digits and -, at most 31")
    home = spark_home.absolute()
    version = version_of(home)
    if java_home is not None and not os.access(java_home / "bin" / "java", os.X_OK):
        raise ConfigError(f"--java: {java_home} has no bin/java; name the folder of a Java")
    own = any((home / "jars").glob(f"{CONNECTOR}_{SCALA}-*.jar"))
    if not own and version != installed:
        raise ConfigError(
            f"--spark-home: Spark {version} needs its own connector to Kafka, and {home / 'jars'} has none; put "
            f"{CONNECTOR}_{SCALA}-{version}.jar there, with spark-token-provider-kafka-0-10, kafka-clients and "
            "commons-pool2"
        )
    if not (home / "python" / "pyspark").is_dir() and home.name != "pyspark":
        raise ConfigError(f"--spark-home: {home} has no python/pyspark; name a distribution with Python")
    known = distributions(settings)
    ports = known[name].ports if name in known else {key: free_port() for key in PORTS}
    return Distribution(
        name,
        home,
        version,
        jars_hash(home),
        _python(home),
        own,
        MappingProxyType(dict(ports)),
        None if java_home is None else java_home.absolute(),
        MappingProxyType(dict(conf)),
    )


def version_of(home: Path) -> str:
    """The version of a distribution. Raises ConfigError for what is none, or cannot be measured."""
    found = [match for jar in (home / "jars").glob("spark-core_*.jar") if (match := _CORE.fullmatch(jar.name))]
    if not found or not (home / "bin" / "spark-submit").is_file():
        raise ConfigError(f"--spark-home: {home} is no Spark: it lacks bin/spark-submit or jars/spark-core_…jar")
    scala, version = found[0].groups()
    if scala != SCALA:
        raise ConfigError(f"--spark-home: {home} is built for Scala {scala}; name a build for {SCALA}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MIN_VERSION:
        raise ConfigError(
            f"--spark-home: Spark {version} is older than {MIN_VERSION[0]}.{MIN_VERSION[1]}; name a newer one"
        )
    return version


def jars_hash(home: Path) -> str:
    """SHA-256 of all jars, by name and content."""
    return list_hash(sorted((home / "jars").glob("*.jar")))


def register(settings: Settings, one: Distribution) -> None:
    """Registers it, in place of an earlier one of the name."""
    settings.home.mkdir(parents=True, exist_ok=True)
    listed = {name: known.as_mapping() for name, known in distributions(settings).items()}
    write_json(settings.home / FILE, {**listed, one.name: one.as_mapping()})


def assign_ports(settings: Settings, ports: Mapping[str, Mapping[str, int]]) -> None:
    """Gives builds other ports, by their names."""
    listed = {name: one.as_mapping() for name, one in distributions(settings).items()}
    changed = {name: {**listed[name], "ports": dict(own)} for name, own in ports.items()}
    write_json(settings.home / FILE, {**listed, **changed})


def unregister(settings: Settings, name: str) -> Distribution:
    """Takes it off the list; returns what it was. Raises ConfigError for one that is not there."""
    known = distributions(settings)
    if name not in known:
        raise ConfigError(f"NAME: no Spark build is called {name!r}{suggest(name, known)}")
    write_json(settings.home / FILE, {key: one.as_mapping() for key, one in known.items() if key != name})
    return known[name]


def read_conf(file: Path) -> dict[str, str]:
    """Settings as a spark-defaults.conf has them: a name and a value on each line. Raises ConfigError with the line."""
    found = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--conf: {file} cannot be read ({error})") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1)
        if not rest or not rest[0]:
            raise ConfigError(f"--conf: {file}, line {number}: {name} has no value; give one")
        found[name] = rest[0]
    return found


def _python(home: Path) -> str:
    """The Python of the environment that a wheel was installed into; else the one that runs everything here."""
    for folder in home.parents:
        if (folder / "pyvenv.cfg").is_file():
            return str(folder / "bin" / "python")
    return sys.executable
