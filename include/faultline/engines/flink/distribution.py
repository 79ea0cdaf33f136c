"""Installed Flink: jars of the wheel `apache-flink-libraries`, and four jars from Maven.

`./faultline engine add flink` installs it. The wheel contains only jars, so it fits every Python version; it is
unpacked and never on `sys.path`.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faultline.system.errors import ConfigError

VERSION = "2.2.1"
# Workloads that have an SQL form.
WORKLOADS = ("word_count", "query")
# Locks in the root of the checkout: the wheel, and the jars.
LOCKS = ("requirements-flink.lock", "jars-flink.lock")
JAR_SET = "flink"
ADD_COMMAND = "./faultline engine add flink"


@dataclass(frozen=True)
class FlinkDistribution:
    """Flink in a state directory `home`, by the locks of the checkout `root`."""

    home: Path
    root: Path

    @property
    def folder(self) -> Path:
        """Unpacked wheel."""
        return self.home / "flink" / VERSION

    @property
    def stamp(self) -> Path:
        """Hash of the locks, written once everything is installed."""
        return self.folder / "made-of"

    @property
    def libraries(self) -> Path:
        return self.folder / "pyflink" / "lib"

    def identity(self) -> str:
        """Return the hash of the locks."""
        return hashlib.sha256(b"".join((self.root / name).read_bytes() for name in LOCKS)).hexdigest()

    def is_installed(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == self.identity()

    def require(self) -> None:
        """Raise ConfigError, naming the command that repairs it, if Flink is missing, of another lock or damaged."""
        if not self.is_installed():
            raise ConfigError(f"engine: got flink, which is not installed; fix: {ADD_COMMAND}")
        if damaged := [*self.damaged_packages(), *self.damaged_jars()]:
            raise ConfigError(f"engine: got flink with {damaged[0]}, which is missing or changed; fix: {ADD_COMMAND}")

    def damaged_packages(self) -> Iterator[Path]:
        """Yield the files of the wheel that are missing or of another size, by the wheel's own list."""
        for record in self.folder.glob("*.dist-info/RECORD"):
            with record.open(newline="") as lines:
                for name, _, size in csv.reader(lines):
                    path = self.folder / name
                    if size and not (path.is_file() and path.stat().st_size == int(size)):
                        yield path

    def damaged_jars(self) -> Iterator[Path]:
        """Yield the jars of the lock that are missing or have another hash (12 MB are read)."""
        for line in (self.root / LOCKS[1]).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                sha256, _, name, folder = line.split()
                path = self.home / "jars" / folder / name
                if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                    yield path

    def classpath(self) -> str:
        """Return the class path of every JVM: Flink's jars, then the Kafka connector and the SQL driver."""
        added = sorted((self.home / "jars" / JAR_SET).glob("*.jar"))
        return os.pathsep.join(map(str, [*sorted(self.libraries.glob("*.jar")), *added]))

    def environment(self) -> dict[str, str]:
        """Return the variables by which Flink finds its folders."""
        return {
            "FLINK_LIB_DIR": str(self.libraries),
            "FLINK_OPT_DIR": str(self.libraries.with_name("opt")),
            "FLINK_PLUGINS_DIR": str(self.libraries.with_name("plugins")),
        }
