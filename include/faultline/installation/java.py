"""Finds the Java that Kafka and Spark run on: version 17 or 21, with the vector module.

Standard library only: the bootstrap uses it before anything is installed.
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
# Spark's launch command names this module; a trimmed runtime without it ends before its first log line.
REQUIRED_MODULE = "jdk.incubator.vector"
# Seconds. A cold JVM on a busy machine takes one or two; more means that the program is no JVM.
ANSWER_TIMEOUT_S = 30.0
# Where packages put Java. The last three are macOS: Homebrew links its versioned Java nowhere in PATH.
SEARCH_PATTERNS = (
    "/usr/lib/jvm/*",
    "/opt/homebrew/opt/openjdk@*",
    "/usr/local/opt/openjdk@*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True)
class Java:
    """A Java runtime. `home` is what JAVA_HOME must be for the programs started with it."""

    home: Path
    executable: Path
    version: str
    has_module: bool

    @property
    def major(self) -> int:
        """17 for `17.0.15`, 8 for `1.8.0_392`, 0 when the version cannot be read."""
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(match[1]) if match else 0

    @property
    def defect(self) -> str | None:
        """Why Faultline cannot use it, in a few words; None when it can."""
        if self.major not in SUPPORTED:
            return f"is Java {self.version}" if self.version else "does not answer to -version"
        if not self.has_module:
            return f"is Java {self.version} without the module {REQUIRED_MODULE}"
        return None


def find_java(
    cache: Path | None = None, *, environ: Mapping[str, str] | None = None, places: Iterable[str] = SEARCH_PATTERNS
) -> Java:
    """The first usable Java of JAVA_HOME, PATH and the usual places.

    `cache` is a JSON file that keeps what each program answered, by path and time of change: asking costs
    0.3 s each. Raises ConfigError that names what was found and the command that installs what is needed.
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
        f"needs Java 17 or 21 with the module {REQUIRED_MODULE}; found: {found}. Install it with: {install_command()}"
    )


def probe_java(executable: Path) -> Java:
    """Runs the program twice and reads its version, its home and its modules. Never raises."""
    text = _output(executable, "-XshowSettings:properties", "-version")
    version = re.search(r'version "([^"]+)"', text)
    # /usr/bin/java of macOS is a stand-in, so the runtime itself is asked where it lives.
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
    """The exact command that installs a fitting Java on this system."""
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
    """The command as the present user must type it."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def _debian_major() -> int:
    """17 wherever it exists or nothing is known; 21 where the package lists hold only that."""
    if not shutil.which("apt-cache"):
        return 17
    offered = [major for major in SUPPORTED if _output(Path("apt-cache"), "show", f"openjdk-{major}-jre-headless")]
    return 21 if offered == [21] else 17


def _candidates(environ: Mapping[str, str], places: Iterable[str]) -> Iterator[Path]:
    """Executable `java` programs in order of preference, each real file once."""
    seen: set[Path] = set()
    for executable in _search_paths(environ, places):
        # In this order: a folder that may not be entered hides what is in it, and is_file() would raise.
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
    """Both streams of a short command; empty when it fails, hangs or is no program."""
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
    """What the cache says about this very file; None when it changed or the entry is of another form."""
    entry = known.get(str(executable))
    try:
        if not isinstance(entry, dict) or entry["identity"] != _identity(executable):
            return None
        return Java(Path(entry["home"]), executable, str(entry["version"]), bool(entry["has_module"]))
    except (KeyError, TypeError):
        return None


def _probe_and_cache(executable: Path, known: dict[str, Any], cache: Path | None) -> Java:
    java = probe_java(executable)
    # No answer may be a passing state of the machine, so it is asked again the next time.
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
    """Real path, time of change and size: another runtime in the same place differs in one of them."""
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
