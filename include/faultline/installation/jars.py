"""Jars of Kafka and of Spark's Kafka connector: fetched once, verified by SHA-256.

jars.lock is the only list. PySpark includes Apache Ivy, whose default repository is sufficient, so no address is
configured. Standard library only: the bootstrap uses this module.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.installation.java import Java
from faultline.system.errors import ConfigError, InfrastructureError

LOCK = Path(__file__).resolve().parents[3] / "jars.lock"
SETS = ("kafka", "kafka-tools", "spark-kafka", "hdfs", "flink")
# 50 jars of 54 MB take 10 s on a fast connection; this bounds a stalled one.
FETCH_TIMEOUT_S = 900.0
# usepoms="false": the lock names every jar; reading the POM files took 23 of 28 s.
SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <resolvers><ibiblio name="default" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

_WORD = r"[\w.-]+"
_LINE = re.compile(
    rf"(?P<sha256>[0-9a-f]{{64}}) +(?P<group>{_WORD}):(?P<artifact>{_WORD}):(?P<version>{_WORD})"
    rf" +(?P<filename>{_WORD}\.jar) +(?P<set>{_WORD})"
)


@dataclass(frozen=True)
class Jar:
    """One line of jars.lock."""

    sha256: str
    group: str
    artifact: str
    version: str
    filename: str
    set: str

    def path(self, home: Path) -> Path:
        """Return the jar's path below the state directory."""
        return home / "jars" / self.set / self.filename


def read_lock(lock: Path = LOCK) -> list[Jar]:
    """Return the jars in the order of the lock. Raises ConfigError for a malformed line."""
    jars = []
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or match["set"] not in SETS:
            raise ConfigError(
                f"{lock.name}, line {number}: malformed; expected `sha256  group:artifact:version  file  set`"
            )
        jars.append(Jar(**match.groupdict()))
    return jars


def missing_jars(home: Path, lock: Path = LOCK) -> list[Jar]:
    """Return the missing jars; the content of the others is not verified."""
    return [jar for jar in read_lock(lock) if not jar.path(home).is_file()]


def classpath(home: Path, name: str, lock: Path = LOCK) -> list[Path]:
    """Return the jars of one set, in the order of the lock."""
    if name not in SETS:
        raise ConfigError(f"jar set: got {name!r}; expected one of {', '.join(SETS)}")
    return [jar.path(home) for jar in read_lock(lock) if jar.set == name]


def verify(home: Path, lock: Path = LOCK) -> None:
    """Verify every jar (0.2 s). Raises ConfigError naming the first bad one, its defect and the fix."""
    bad = [(jar, fault) for jar in read_lock(lock) if (fault := _defect(jar.path(home), jar.sha256))]
    if not bad:
        return
    jar, fault = bad[0]
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    remedy = "run" if fault == "missing" else "delete it and run"
    raise ConfigError(f"{jar.path(home)}: {fault}{others}; fix: {remedy} `./faultline` again")


def fetch(
    home: Path,
    java: Java,
    lock: Path = LOCK,
    *,
    ivy: Path | None = None,
    keep_open: Sequence[int] = (),
    command: str = "./faultline",
) -> None:
    """Fetch the missing jars in one run of Ivy, and move each into place if its hash is right.

    Raises InfrastructureError if a jar cannot be fetched, ConfigError if its hash differs from the lock. The log is
    `logs/ivy.log` in the state directory. `keep_open`: descriptors that Ivy inherits, such as a lock that must survive
    a killed caller. `command`: repeats the fetch.
    """
    wanted = missing_jars(home, lock)
    if not wanted:
        return
    work, log = home / "ivy", home / "logs" / "ivy.log"
    # Includes Ivy's cache: a cached bad file would be reused.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run_ivy(_ivy_command(java, ivy or ivy_jar(home), work, wanted), work, log, keep_open)
        for jar in wanted:
            _accept(jar, work / "out" / jar.set / jar.filename, home, log, command)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def ivy_jar(home: Path) -> Path:
    """Return the Ivy jar of the installed PySpark."""
    found = sorted(home.glob("venv/lib/python3.*/site-packages/pyspark/jars/ivy-*.jar"))
    if not found:
        raise InfrastructureError(
            f"{home / 'venv'}: PySpark is missing; fix: delete that directory, then run `./faultline` again"
        )
    return found[-1]


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return the JVM options for the proxy variables, which the JVM does not read itself."""
    options = []
    for scheme in ("http", "https"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if not value:
            continue
        address = urllib.parse.urlsplit(value if "//" in value else f"//{value}")
        if address.hostname:
            port = address.port or (443 if address.scheme == "https" else 80)
            options += [f"-D{scheme}.proxyHost={address.hostname}", f"-D{scheme}.proxyPort={port}"]
    return options


def _ivy_command(java: Java, ivy: Path, work: Path, wanted: Sequence[Jar]) -> list[str]:
    """Write Ivy's input into `work` and return the command; jars go to work/out/<set>/."""
    (work / "settings.xml").write_text(SETTINGS)
    (work / "ivy.xml").write_text(_module(wanted))
    # Relative paths: a `[` or `(` in the state directory's path would be read as a pattern.
    return [
        str(java.executable),
        "-Dsun.net.client.defaultConnectTimeout=20000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        f"-Divy.default.ivy.user.dir={work / 'user'}",
        *proxy_options(os.environ),
        *("-cp", str(ivy), "org.apache.ivy.Main"),
        *("-settings", "settings.xml", "-cache", str(work / "cache"), "-ivy", "ivy.xml"),
        *("-types", "jar", "-retrieve", "out/[conf]/[artifact]-[revision].[ext]"),
        *("-confs", *sorted({jar.set for jar in wanted})),
    ]


def _run_ivy(command: list[str], work: Path, log: Path, keep_open: Sequence[int]) -> None:
    """Run Ivy. Its exit code is ignored, since the caller verifies each jar."""
    with log.open("wb") as stream:
        try:
            subprocess.run(
                command,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=FETCH_TIMEOUT_S,
                check=False,
                pass_fds=tuple(keep_open),
            )
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"jars: fetching failed: timeout after {FETCH_TIMEOUT_S:.0f} s; fix: check the network,"
                f" then run `./faultline` again (log: {log})"
            ) from error


def _module(wanted: Sequence[Jar]) -> str:
    """Return an Ivy module that depends on exactly these jars; a set is a configuration.

    Sets are resolved separately, so that two versions of one artifact do not evict each other.
    """
    dependencies = "".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
        f' conf="{jar.set}->default" transitive="false"/>\n'
        for jar in wanted
    )
    configurations = "".join(f'<conf name="{name}"/>' for name in SETS)
    return (
        '<ivy-module version="2.0"><info organisation="faultline" module="jars"/>\n'
        f"<configurations>{configurations}</configurations>\n<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )


def _accept(jar: Jar, fetched: Path, home: Path, log: Path, command: str) -> None:
    if not fetched.is_file():
        raise InfrastructureError(
            f"{jar.filename}: fetching failed; fix: check the network and HTTPS_PROXY, then run `{command}` again,"
            f" or put the file into {jar.path(home).parent} (log: {log})"
        )
    fault = _defect(fetched, jar.sha256)
    if fault:
        raise ConfigError(
            f"{jar.filename}: rejected: differs from jars.lock ({fault});"
            f" fix: check the repository or proxy in use, then run `{command}` again"
        )
    jar.path(home).parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(jar.path(home))


def _defect(path: Path, sha256: str) -> str | None:
    """Return the defect of a jar in two words; None if it matches the lock."""
    try:
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == sha256:
                return None
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    # A zip file ends with its directory, so a truncated jar is not a zip file.
    return "other content" if zipfile.is_zipfile(path) else "truncated"
