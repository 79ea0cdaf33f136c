"""Detection of the Java for Kafka and Spark: version 17 or 21, with the vector module.

Standard library only: the bootstrap uses this module before packages are installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.system.errors import ConfigError

SUPPORTED = (17, 21)
# Spark's launch command names this module; a runtime without it exits before its first log line.
REQUIRED_MODULE = "jdk.incubator.vector"
# Seconds; a cold JVM on a busy machine takes one or two.
ANSWER_TIMEOUT_S = 30.0
# Java folders of packages. The last three are for macOS: Homebrew's versioned Java is not in PATH.
SEARCH_PATTERNS = (
    "/usr/lib/jvm/*",
    "/opt/homebrew/opt/openjdk@*",
    "/usr/local/opt/openjdk@*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True)
class Java:
    """Java runtime. `home`: JAVA_HOME of the programs started with it."""

    home: Path
    executable: Path
    version: str
    has_module: bool

    @property
    def major(self) -> int:
        """Major version: 17 for `17.0.15`, 8 for `1.8.0_392`, 0 if unreadable."""
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(match[1]) if match else 0

    @property
    def defect(self) -> str | None:
        """Reason why Faultline cannot use it, in a few words; None if usable."""
        if self.major not in SUPPORTED:
            return f"is Java {self.version}" if self.version else "fails with -version"
        if not self.has_module:
            return f"is Java {self.version} without the module {REQUIRED_MODULE}"
        return None


def find_java(
    cache: Path | None = None, *, environ: Mapping[str, str] | None = None, places: Iterable[str] = SEARCH_PATTERNS
) -> Java:
    """Return the first usable Java in JAVA_HOME, PATH and the usual folders, in this order.

    `cache`: a JSON file with earlier results by path and modification time, since a probe takes 0.3 s. Raises
    ConfigError naming what was found and the install command.
    """
    known = _read_cache(cache)
    rejected: list[str] = []
    for executable in _candidates(os.environ if environ is None else environ, places):
        java = _cached_java(executable, known) or _probe_and_cache(executable, known, cache)
        if java.defect is None:
            return java
        rejected.append(f"{executable} {java.defect}")
    found = "; ".join(rejected) if rejected else "none"
    raise ConfigError(
        f"java: found {found}; expected Java 17 or 21 with the module {REQUIRED_MODULE}; fix: {install_command()}"
    )


def probe_java(executable: Path) -> Java:
    """Run the program twice to read its version, home and modules. Never raises."""
    text = _output(executable, "-XshowSettings:properties", "-version")
    version = re.search(r'version "([^"]+)"', text)
    # /usr/bin/java of macOS is a stub, so the runtime reports its own home.
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    java = Java(
        home=Path(home[1].strip()) if home else executable.resolve().parent.parent,
        executable=executable,
        version=version[1] if version else "",
        has_module=False,
    )
    if java.major not in SUPPORTED:
        return java
    modules = _output(executable, "--list-modules")
    return Java(
        java.home, executable, java.version, bool(re.search(rf"^{re.escape(REQUIRED_MODULE)}\b", modules, re.MULTILINE))
    )


def install_command() -> str:
    """Return the command that installs a suitable Java on this system."""
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    if shutil.which("apt-get"):
        return as_root(f"apt-get install openjdk-{_debian_major()}-jre-headless")
    if shutil.which("dnf"):
        return as_root("dnf install java-21-openjdk-headless")
    if shutil.which("apk"):
        return as_root("apk add openjdk17-jre-headless")
    return "brew install openjdk@17"


def as_root(command: str) -> str:
    """Return the command, with sudo unless the user is root."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def _debian_major() -> int:
    """Return 17 if available or unknown, 21 if the package lists contain only that."""
    if not shutil.which("apt-cache"):
        return 17
    offered = [major for major in SUPPORTED if _output(Path("apt-cache"), "show", f"openjdk-{major}-jre-headless")]
    return 21 if offered == [21] else 17


def _candidates(environ: Mapping[str, str], places: Iterable[str]) -> Iterator[Path]:
    """Yield executable `java` programs in order of preference, each real file once."""
    seen: set[Path] = set()
    for executable in _search_paths(environ, places):
        # os.access first: is_file() raises in a folder that cannot be entered.
        if not (os.access(executable, os.X_OK) and executable.is_file()):
            continue
        real = executable.resolve()
        if real not in seen:
            seen.add(real)
            yield executable


def _search_paths(environ: Mapping[str, str], places: Iterable[str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java")
    for directory in environ.get("PATH", "").split(os.pathsep):
        if directory:
            yield Path(directory, "java")
    for place in places:
        # Only the last parts hold wildcards; Path.glob wants a pattern relative to a directory.
        pattern = Path(place)
        for home in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
            yield home / "bin" / "java"


def _output(executable: Path, *arguments: str) -> str:
    """Return both streams of a short command; empty if it fails or hangs."""
    try:
        done = subprocess.run(
            [str(executable), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _cached_java(executable: Path, known: Mapping[str, Any]) -> Java | None:
    """Return the cached result for an unchanged file; None otherwise."""
    entry = known.get(str(executable))
    try:
        if not isinstance(entry, dict) or entry["identity"] != _identity(executable):
            return None
        return Java(Path(entry["home"]), executable, str(entry["version"]), bool(entry["has_module"]))
    except (KeyError, TypeError):
        return None


def _probe_and_cache(executable: Path, known: dict[str, Any], cache: Path | None) -> Java:
    java = probe_java(executable)
    # A missing answer may be temporary, so it is not cached.
    if cache is None or not java.version:
        return java
    known[str(executable)] = {
        "identity": _identity(executable),
        "home": str(java.home),
        "version": java.version,
        "has_module": java.has_module,
    }
    part = cache.with_name(f"{cache.name}.{os.getpid()}.part")
    # A cache that cannot be written costs time, never correctness.
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(known, indent=1))
        part.replace(cache)
    return java


def _identity(executable: Path) -> list[Any]:
    """Return real path, modification time and size, which identify a runtime."""
    real = executable.resolve()
    status = real.stat()
    return [str(real), status.st_mtime_ns, status.st_size]


def _read_cache(cache: Path | None) -> dict[str, Any]:
    if cache is None:
        return {}
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
