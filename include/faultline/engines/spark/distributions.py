"""Registered Spark builds in addition to the installed one: other versions, vendor builds, snapshots.

`<home>/spark-builds.json` lists them by name. Each has its own master and workers, because workers start executors from
their own Spark. The jars of a build are hashed before each use, so that a name always stands for the same software.
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
# Oldest version with the current format of logs, checkpoints and REST.
MIN_VERSION = (4, 0)
PORTS = (
    "spark_master",
    "spark_master_ui",
    *(f"spark_worker_{number}{part}" for number in range(1, WORKERS + 1) for part in ("", "_ui")),
)


@dataclass(frozen=True)
class Distribution:
    """Registered Spark build.

    `ports`: ports of its master and workers, with the names of the installed Spark's. `java_home`: None for the default
    Java. `python`: Python of driver and workers. `has_connector`: whether its jars include the Kafka connector;
    otherwise Faultline's is used, which requires the same version. `sha256`: hash of its jars.
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
        """Folders of its own PySpark."""
        folder = self.spark_home / "python"
        if not folder.is_dir():
            return [self.spark_home.parent]  # a wheel, which is the package itself
        return [folder, *sorted((folder / "lib").glob("py4j-*.zip"))]

    def endpoints(self, usual: Endpoints) -> Endpoints:
        """Return the endpoints of an experiment on this build."""
        return replace(
            usual,
            engine=f"spark://{usual.here}:{self.ports['spark_master']}",
            engine_ui=f"http://{usual.here}:{self.ports['spark_master_ui']}",
        )

    def service(self, name: str) -> str:
        """Return the unique name of one of its services, such as spark-worker-1."""
        return f"{name}@{self.name}"

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # `asdict` cannot copy read-only mappings
        java = None if self.java_home is None else str(self.java_home)
        values = {**values, "spark_home": str(self.spark_home), "java_home": java}
        return {**values, "conf": dict(self.conf), "ports": dict(self.ports)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Distribution:
        """Build it from the values of `as_mapping`.

        Raises ValueError, TypeError or KeyError for other values.
        """
        java = values.get("java_home")
        for name, kind in (("name", str), ("version", str), ("sha256", str), ("python", str), ("conf", dict)):
            if not isinstance(values[name], kind):
                raise ValueError(f"{name}: got {values[name]!r}")
        if not all(isinstance(values["ports"][name], int) for name in PORTS):
            raise ValueError("ports: expected numbers")
        return cls(**{**values, "spark_home": Path(values["spark_home"]), "java_home": Path(java) if java else None})


def distributions(settings: Settings) -> dict[str, Distribution]:
    """Return the registered builds by name.

    Raises ConfigError if the file cannot be read.
    """
    file = settings.home / FILE
    if not file.exists():
        return {}
    try:
        listed = json.loads(file.read_text())
        return {str(name): Distribution.from_mapping(one) for name, one in sorted(listed.items())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{file}: not a list of Spark builds ({why}); fix: delete it, and add the builds again"
        ) from None


def readable_distributions(settings: Settings) -> dict[str, Distribution]:
    """Return the registered builds by name; none if the file cannot be read.

    The error is not raised, because experiments on the installed Spark need no registered build. `doctor` and
    experiments that name a build report it.
    """
    try:
        return distributions(settings)
    except ConfigError:
        return {}


def distribution(settings: Settings, name: str | None) -> Distribution | None:
    """Return the build that an experiment names; None for the installed one.

    Raises ConfigError if it is not registered.
    """
    if name is None:
        return None
    known = distributions(settings)
    if name not in known:
        raise ConfigError(f"spark_build: unknown build {name!r}{suggest(name, [*known, INSTALLED])}")
    return known[name]


def require_unchanged(one: Distribution) -> None:
    """Raise ConfigError if the build is missing or its jars have changed."""
    if not one.spark_home.is_dir():
        raise ConfigError(
            f"spark_build: {one.name} is missing at {one.spark_home}; fix: restore the folder or remove the build"
        )
    if jars_hash(one.spark_home) != one.sha256:
        raise ConfigError(
            f"spark_build: jars in {one.spark_home} have changed since {one.name} was registered; "
            "fix: add it under another name"
        )


def inspect_distribution(
    settings: Settings, name: str, spark_home: Path, java_home: Path | None, conf: Mapping[str, str], installed: str
) -> Distribution:
    """Return a build to register, with its own ports. `installed`: the version of the installed Spark.

    Raises ConfigError, naming the option and the fix, if it cannot run.
    """
    if not NAME.fullmatch(name) or name == INSTALLED:
        raise ConfigError(f"NAME: got {name!r}; expected at most 31 lower-case letters, digits and -")
    home = spark_home.absolute()
    version = version_of(home)
    if java_home is not None and not os.access(java_home / "bin" / "java", os.X_OK):
        raise ConfigError(f"--java: got {java_home}; expected a Java installation with bin/java")
    own = any((home / "jars").glob(f"{CONNECTOR}_{SCALA}-*.jar"))
    if not own and version != installed:
        raise ConfigError(
            f"--spark-home: Kafka connector of Spark {version} missing in {home / 'jars'}; fix: add "
            f"{CONNECTOR}_{SCALA}-{version}.jar, spark-token-provider-kafka-0-10, kafka-clients and commons-pool2"
        )
    if not (home / "python" / "pyspark").is_dir() and home.name != "pyspark":
        raise ConfigError(f"--spark-home: got {home}; expected a distribution with python/pyspark")
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
    """Return the version of a Spark distribution.

    Raises ConfigError if it is not one or not supported.
    """
    found = [match for jar in (home / "jars").glob("spark-core_*.jar") if (match := _CORE.fullmatch(jar.name))]
    if not found or not (home / "bin" / "spark-submit").is_file():
        raise ConfigError(f"--spark-home: got {home}; expected bin/spark-submit and jars/spark-core_*.jar")
    scala, version = found[0].groups()
    if scala != SCALA:
        raise ConfigError(f"--spark-home: got a build for Scala {scala}; expected Scala {SCALA}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MIN_VERSION:
        raise ConfigError(f"--spark-home: got Spark {version}; expected {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer")
    return version


def jars_hash(home: Path) -> str:
    """Return the SHA-256 of all jars, by name and content."""
    return list_hash(sorted((home / "jars").glob("*.jar")))


def register(settings: Settings, one: Distribution) -> None:
    """Register a build; replace an earlier one with the same name."""
    settings.home.mkdir(parents=True, exist_ok=True)
    listed = {name: known.as_mapping() for name, known in distributions(settings).items()}
    write_json(settings.home / FILE, {**listed, one.name: one.as_mapping()})


def assign_ports(settings: Settings, ports: Mapping[str, Mapping[str, int]]) -> None:
    """Assign other ports to builds, by name."""
    listed = {name: one.as_mapping() for name, one in distributions(settings).items()}
    changed = {name: {**listed[name], "ports": dict(own)} for name, own in ports.items()}
    write_json(settings.home / FILE, {**listed, **changed})


def unregister(settings: Settings, name: str) -> Distribution:
    """Remove a build from the list and return it.

    Raises ConfigError if it is not registered.
    """
    known = distributions(settings)
    if name not in known:
        raise ConfigError(f"NAME: unknown build {name!r}{suggest(name, known)}")
    write_json(settings.home / FILE, {key: one.as_mapping() for key, one in known.items() if key != name})
    return known[name]


def read_conf(file: Path) -> dict[str, str]:
    """Return the settings of a spark-defaults.conf file.

    Raises ConfigError with the line number.
    """
    found = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--conf: read of {file} failed: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1)
        if not rest or not rest[0]:
            raise ConfigError(f"--conf: {file}, line {number}: missing value of {name}")
        found[name] = rest[0]
    return found


def _python(home: Path) -> str:
    """Return the Python of the virtual environment that contains the wheel, else the running one."""
    for folder in home.parents:
        if (folder / "pyvenv.cfg").is_file():
            return str(folder / "bin" / "python")
    return sys.executable
