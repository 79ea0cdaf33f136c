"""The class-data archive: Spark's classes as a JVM keeps them in memory, so that later JVMs need not load them anew.

A Spark JVM loads some 15,000 classes before its first batch; on two cores that is half of the time it takes to start.
Java can write down what a program has loaded (`-XX:ArchiveClassesAtExit`) and map it into the next process. There is
one archive for each Java and each set of jars. A JVM that cannot use it does without it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from faultline.engines.spark.settings import (
    LOCAL_MASTER,
    batch_settings,
    engine_settings,
    kafka_jars,
    program,
    spark_environment,
)
from faultline.installation.java import Java, find_java
from faultline.installation.spark import prepare_spark, spark_home, spark_submit
from faultline.system.child_environment import clean_environment
from faultline.system.locks import FileLock
from faultline.system.settings import Settings
from faultline.system.text import Progress


def archive_path(settings: Settings, java: Java) -> Path:
    """Where the archive lies that fits this Java and the jars as they are."""
    jars = [*sorted((spark_home() / "jars").iterdir()), *kafka_jars(settings)]
    facts = [java.version, str(java.home), str(settings.spark_conf)]
    facts += [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in [jar.stat()]]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return settings.cds_folder / f"classes-{digest}.jsa"


def find_archive(settings: Settings) -> Path | None:
    """The archive that JVMs of this installation can start from, if there is one."""
    path = archive_path(settings, find_java(settings.home / "java.json"))
    return path if path.exists() else None


# ---- The archive is made: one run of a Spark program that loads the classes, written down by Java as it ends ----


# Seconds; it takes a minute on a slow machine with two cores.
TIMEOUT_S = 300.0
# Smaller than this is no archive of Spark's classes: it did not get to load them.
MIN_BYTES = 20_000_000
# What is left of a try that failed, so that it is not repeated at every start.
FAILED = ".failed"
FOLDER_PREFIX = "rehearsal-"


def make_archive(settings: Settings, progress: Progress = lambda text: None) -> None:
    """Makes the archive of this Java and these jars, when there is none, and removes those of others.

    Whatever keeps it from that is said once, and is no error.
    """
    path = archive_path(settings, find_java(settings.home / "java.json"))
    failed = path.with_suffix(FAILED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / "lock").acquire():
        if path.exists() or failed.exists():
            return
        progress("spark: writing down its classes, so that it starts faster from now on (takes a minute)")
        for old in path.parent.glob("classes-*"):
            old.unlink()
        for old in path.parent.glob(f"{FOLDER_PREFIX}*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=path.parent) as folder:
            made, log = Path(folder) / path.name, Path(folder) / "log"
            if problem := _train(settings, made, log):
                log.rename(failed)
                progress(f"spark: starts without an archive of its classes ({problem}; see {failed})")
            else:
                made.rename(path)


def _train(settings: Settings, made: Path, log: Path) -> str | None:
    """Runs the program that loads the classes, in the folder of `made`. Returns why there is no archive, or None."""
    folder = made.parent
    prepare_spark(settings)
    conf = {**engine_settings(), **batch_settings(settings), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf["spark.driver.extraJavaOptions"] += f' "-XX:ArchiveClassesAtExit={made}"'
    # The workloads' JVMs have the page that tells of stages and executors.
    conf["spark.ui.enabled"] = "true"
    conf["spark.ui.port"] = "0"
    command = spark_submit(settings, conf, program(settings, "cds_training"), str(folder), master=LOCAL_MASTER)
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**clean_environment(), **spark_environment(settings, find_java(settings.home / "java.json").home)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done within {TIMEOUT_S:g} s"
        except OSError as error:
            return str(error)
    if done.returncode:
        return f"ended with status {done.returncode}"
    size = made.stat().st_size if made.exists() else 0
    return None if size >= MIN_BYTES else f"Java wrote {size} bytes"
