"""The jars of Kafka and of Spark's Kafka connector: fetched once, verified by SHA-256.

jars.lock is the only list. PySpark brings Apache Ivy, a complete resolver whose default repository is
enough, so no address is written anywhere. Standard library only: the bootstrap uses it.
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
SETS = ("kafka", "kafka-tools", "spark-kafka", "hdfs")
# 50 jars, 54 MB take 10 s on a good line; this bounds a dead one.
FETCH_TIMEOUT_S = 900.0
# usepoms="false": the lock names every jar, so no description is needed; reading them took 23 s of 28.
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
        """Where the jar lies below the state directory."""
        return home / "jars" / self.set / self.filename


def read_lock(lock: Path = LOCK) -> list[Jar]:
    """The jars in the order of the lock. Raises ConfigError for a line of another form."""
    jars = []
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or match["set"] not in SETS:
            raise ConfigError(
                f"{lock.name}, line {number}: not of the form `sha256  group:artifact:version  file  set`"
            )
        jars.append(Jar(**match.groupdict()))
    return jars


def missing_jars(home: Path, lock: Path = LOCK) -> list[Jar]:
    """The jars that are not there; what they hold is not looked at."""
    return [jar for jar in read_lock(lock) if not jar.path(home).is_file()]


def classpath(home: Path, name: str, lock: Path = LOCK) -> list[Path]:
    """The jars of one set, in the order of the lock."""
    if name not in SETS:
        raise ConfigError(f"no jar set `{name}`: choose one of {', '.join(SETS)}")
    return [jar.path(home) for jar in read_lock(lock) if jar.set == name]


def verify(home: Path, lock: Path = LOCK) -> None:
    """Reads every jar (0.2 s). Raises ConfigError that names the first bad one, its fault and the remedy."""
    bad = [(jar, fault) for jar in read_lock(lock) if (fault := _defect(jar.path(home), jar.sha256))]
    if not bad:
        return
    jar, fault = bad[0]
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    remedy = "run" if fault == "missing" else "delete it and run"
    raise ConfigError(f"{jar.path(home)}: {fault}{others}; {remedy} `./faultline` again, which fetches it anew")


def fetch(home: Path, java: Java, lock: Path = LOCK, *, ivy: Path | None = None, keep_open: Sequence[int] = ()) -> None:
    """Fetches the missing jars in one run of Ivy and moves each into place once its hash is right.

    Raises InfrastructureError when a jar cannot be had, ConfigError when one is not what the lock promises.
    The log is `logs/ivy.log` in the state directory. `keep_open`: descriptors that Ivy inherits, such as a
    lock that must outlive a killed caller.
    """
    wanted = missing_jars(home, lock)
    if not wanted:
        return
    work, log = home / "ivy", home / "logs" / "ivy.log"
    # Ivy's cache goes with it: a cached bad file would come back for ever.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run_ivy(_ivy_command(java, ivy or ivy_jar(home), work, wanted), work, log, keep_open)
        for jar in wanted:
            _accept(jar, work / "out" / jar.set / jar.filename, home, log)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def ivy_jar(home: Path) -> Path:
    """The resolver inside the installed PySpark."""
    found = sorted(home.glob("venv/lib/python3.*/site-packages/pyspark/jars/ivy-*.jar"))
    if not found:
        raise InfrastructureError(f"no PySpark in {home / 'venv'}: delete that directory and run `./faultline` again")
    return found[-1]


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """JVM options for the proxy that the usual variables name; the JVM itself does not read them."""
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
    """Writes what Ivy reads into `work` and returns the command; the jars will lie in work/out/<set>/."""
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
    """The exit code is not asked: the caller looks at each jar."""
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
                f"fetching the jars took more than {FETCH_TIMEOUT_S:.0f} s: check the network,"
                f" then run `./faultline` again (log: {log})"
            ) from error


def _module(wanted: Sequence[Jar]) -> str:
    """Ivy's description of a module that needs exactly these jars; a set is a configuration.

    Sets are resolved apart, so two versions of one artifact in different sets do not evict each other.
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


def _accept(jar: Jar, fetched: Path, home: Path, log: Path) -> None:
    if not fetched.is_file():
        raise InfrastructureError(
            f"{jar.filename} could not be fetched: check the network and HTTPS_PROXY, then run `./faultline` again,"
            f" or put the file into {jar.path(home).parent} (log: {log})"
        )
    fault = _defect(fetched, jar.sha256)
    if fault:
        raise ConfigError(
            f"{jar.filename} was fetched but is not what jars.lock promises ({fault}): it was thrown away;"
            " check what stands between you and the repository, then run `./faultline` again"
        )
    jar.path(home).parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(jar.path(home))


def _defect(path: Path, sha256: str) -> str | None:
    """What is wrong with a jar in two words; None when it is as promised."""
    try:
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == sha256:
                return None
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    # A zip file ends with its directory, so a jar that lost its tail is no zip file any more.
    return "other content" if zipfile.is_zipfile(path) else "truncated"
