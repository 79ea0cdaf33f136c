"""Makes the class-data archive: one run of a Spark program that loads the classes, written down by Java as it ends."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, engine_settings, program, spark_environment
from faultline.installation.class_data import archive_path
from faultline.installation.java import find_java
from faultline.installation.services import prepare_spark, spark_submit
from faultline.system.environment import clean_environment
from faultline.system.settings import Settings
from faultline.system.text import Say

# Seconds; it takes a minute on a slow machine with two cores.
LIMIT_S = 300.0
# Smaller than this is no archive of Spark's classes: it did not get to load them.
LEAST_BYTES = 20_000_000
# What is left of a try that failed, so that it is not repeated at every start.
FAILED = ".failed"
FOLDER = "rehearsal-"


def make_archive(settings: Settings, say: Say = lambda text: None) -> None:
    """Makes the archive of this Java and these jars, when there is none, and removes those of others.

    Whatever keeps it from that is said once, and is no error.
    """
    path = archive_path(settings, find_java(settings.home / "java.json"))
    failed = path.with_suffix(FAILED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() or failed.exists():
            return
        say("spark: writing down its classes, so that it starts faster from now on (takes a minute)")
        for old in path.parent.glob("classes-*"):
            old.unlink()
        for old in path.parent.glob(f"{FOLDER}*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(prefix=FOLDER, dir=path.parent) as folder:
            made, log = Path(folder) / path.name, Path(folder) / "log"
            if problem := _rehearse(settings, made, log):
                log.rename(failed)
                say(f"spark: starts without an archive of its classes ({problem}; see {failed})")
            else:
                made.rename(path)


def _rehearse(settings: Settings, made: Path, log: Path) -> str | None:
    """Runs the program that loads the classes, in the folder of `made`. Returns why there is no archive, or None."""
    folder = made.parent
    prepare_spark(settings)
    conf = {**engine_settings(), **batch_settings(settings), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf["spark.driver.extraJavaOptions"] += f' "-XX:ArchiveClassesAtExit={made}"'
    # The workloads' JVMs have the page that tells of stages and executors.
    conf["spark.ui.enabled"] = "true"
    conf["spark.ui.port"] = "0"
    command = spark_submit(settings, conf, program(settings, "rehearsal"), str(folder), master=LOCAL_MASTER)
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**clean_environment(), **spark_environment(settings, find_java(settings.home / "java.json").home)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done within {LIMIT_S:g} s"
        except OSError as error:
            return str(error)
    if done.returncode:
        return f"ended with status {done.returncode}"
    size = made.stat().st_size if made.exists() else 0
    return None if size >= LEAST_BYTES else f"Java wrote {size} bytes"
