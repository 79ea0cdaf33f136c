"""The class-data archive: Spark's classes as a JVM keeps them in memory, so that later JVMs need not load them anew.

A Spark JVM loads some 15,000 classes before its first batch; on two cores that is half of the time it takes to start.
Java can write down what a program has loaded (`-XX:ArchiveClassesAtExit`) and map it into the next process. There is
one archive for each Java and each set of jars, made by `faultline.installation.rehearsal`. A JVM that cannot use it
does without it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from faultline.engines.spark.settings import kafka_jars
from faultline.installation.java import Java, find_java
from faultline.installation.services import spark_home
from faultline.system.settings import Settings


def archive_path(settings: Settings, java: Java) -> Path:
    """Where the archive lies that fits this Java and the jars as they are."""
    jars = [*sorted((spark_home() / "jars").iterdir()), *kafka_jars(settings)]
    facts = [java.version, str(java.home), str(settings.spark_conf)]
    facts += [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in [jar.stat()]]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return settings.class_data / f"classes-{digest}.jsa"


def archive_here(settings: Settings) -> Path | None:
    """The archive that JVMs of this installation can start from, if there is one."""
    path = archive_path(settings, find_java(settings.home / "java.json"))
    return path if path.exists() else None
