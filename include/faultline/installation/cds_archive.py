"""CDS (class data sharing) archive: a memory-mapped file of Spark's classes that shortens the start of a JVM.

A Spark JVM loads about 15,000 classes before its first batch; on two cores that is half of its start time. Java writes
the loaded classes at exit (`-XX:ArchiveClassesAtExit`), and later JVMs map the file. There is one archive per Java and
set of jars. A JVM that cannot use it starts without it.
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
    """Return the path of the archive for this Java and the current jars."""
    jars = [*sorted((spark_home() / "jars").iterdir()), *kafka_jars(settings)]
    facts = [java.version, str(java.home), str(settings.spark_conf)]
    facts += [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in [jar.stat()]]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return settings.cds_folder / f"classes-{digest}.jsa"


def find_archive(settings: Settings) -> Path | None:
    """Return this installation's archive, or None if missing."""
    path = archive_path(settings, find_java(settings.home / "java.json"))
    return path if path.exists() else None


# ---- CDS training run: a Spark program loads the classes, and Java writes the archive as it ends ----


# Timeout in seconds; the run takes a minute on a slow machine with two cores.
TIMEOUT_S = 300.0
# A smaller archive lacks Spark's classes.
MIN_BYTES = 20_000_000
# Suffix of a failed run's log, which prevents a repetition at every start.
FAILED = ".failed"
FOLDER_PREFIX = "rehearsal-"


def make_archive(settings: Settings, progress: Progress = lambda text: None) -> None:
    """Create the archive for this Java and these jars if missing, and remove all others.

    A failure is reported once and is not an error.
    """
    path = archive_path(settings, find_java(settings.home / "java.json"))
    failed = path.with_suffix(FAILED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / "lock").acquire():
        if path.exists() or failed.exists():
            return
        progress("spark: creating the CDS archive (faster starts; takes a minute)")
        for old in path.parent.glob("classes-*"):
            old.unlink()
        for old in path.parent.glob(f"{FOLDER_PREFIX}*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=path.parent) as folder:
            archive, log = Path(folder) / path.name, Path(folder) / "log"
            if problem := _train(settings, archive, log):
                log.rename(failed)
                progress(f"spark: CDS archive skipped ({problem}; see {failed})")
            else:
                archive.rename(path)


def _train(settings: Settings, archive: Path, log: Path) -> str | None:
    """Run the CDS training program in the folder of `archive`. Returns the failure, or None."""
    folder = archive.parent
    prepare_spark(settings)
    conf = {**engine_settings(), **batch_settings(settings), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf["spark.driver.extraJavaOptions"] += f' "-XX:ArchiveClassesAtExit={archive}"'
    # Start Spark's UI, since workload JVMs load its classes, too.
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
            return f"timeout after {TIMEOUT_S:g} s"
        except OSError as error:
            return str(error)
    if done.returncode:
        return f"ended with status {done.returncode}"
    size = archive.stat().st_size if archive.exists() else 0
    return None if size >= MIN_BYTES else f"Java wrote {size} bytes"
