"""Installed Flink: jars of the wheel `apache-flink-libraries`, and four jars from Maven.

`./faultline engine add flink` installs it. The wheel contains only jars, so it fits every Python version; it is
unpacked and never on `sys.path`.
"""

from __future__ import annotations

import hashlib
import os
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
        """Raise ConfigError, naming the command that installs it, if Flink is missing or of another lock."""
        if not self.is_installed():
            raise ConfigError(f"engine: got flink, which is not installed; fix: {ADD_COMMAND}")

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
