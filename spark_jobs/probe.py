"""Looks at a cluster from its executors: what they can read, and whether they share a folder with the driver.

    spark-submit probe.py --config FILE

The configuration is JSON: folder (of the shared storage, to be made here and removed), paths (what executors must be
able to read), report (the file that is written here). The report: {"executors": [{"host", "python", "user", "sees",
"wrote", "unreadable"}]}, one for each host that ran a task; `wrote` is null, or why it could not write.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

TOKEN = "driver"
# Tasks for each slot, so that every executor gets one.
TASKS_A_SLOT = 4


def look(folder: str, token: str, paths: list[str]) -> dict[str, Any]:
    """What one executor sees of the folder and of the paths."""
    name = f"{socket.gethostname()}-{os.getpid()}"
    try:
        sees = Path(folder, TOKEN).read_text() == token
    except OSError:
        sees = False
    wrote = None
    try:
        Path(folder, name).write_text(token)
    except OSError as error:
        wrote = error.strerror or str(error)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "user": os.geteuid(),
        "sees": sees,
        "wrote": wrote,
        "file": name,
        "unreadable": [path for path in paths if not os.access(path, os.R_OK)],
    }


def write_there(spark: SparkSession, url: str, slots: int) -> str | None:
    """Has executors write files to HDFS and read them again; why they cannot, or None."""
    jvm: Any = spark._jvm  # type: ignore[attr-defined]
    path = jvm.org.apache.hadoop.fs.Path(url)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]
    try:
        rows = spark.range(0, slots * TASKS_A_SLOT, 1, slots).selectExpr("cast(id as string) as value")
        rows.write.text(url)
        found = spark.read.text(url).count()
    except Exception as error:
        # What Java says stands below what Py4J says of it.
        java = getattr(error, "java_exception", None)
        return str(error if java is None else java.toString()).strip().splitlines()[0]
    finally:
        with contextlib.suppress(Exception):  # what could not be written cannot be removed either: the first is told
            system.delete(path, True)
    return None if found == slots * TASKS_A_SLOT else f"{found} rows are read where {slots * TASKS_A_SLOT} were written"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config: dict[str, Any] = json.loads(parser.parse_known_args()[0].config.read_text())
    token, folder = uuid.uuid4().hex, Path(config["folder"])
    paths: list[str] = config["paths"]
    folder.mkdir()
    # Executors may run as another user: whether the folder lets them in is what is asked, not this file.
    folder.chmod(0o777)
    try:
        (folder / TOKEN).write_text(token)
        where = str(folder)

        def on_executor(_: Iterator[int]) -> Iterator[dict[str, Any]]:
            yield look(where, token, paths)

        spark = SparkSession.builder.getOrCreate()
        slots = max(1, spark.sparkContext.defaultParallelism)
        tasks = spark.sparkContext.parallelize(range(slots * TASKS_A_SLOT), slots * TASKS_A_SLOT)
        seen = {one["host"]: one for one in tasks.mapPartitions(on_executor).collect()}
        for one in seen.values():
            if one["wrote"] is None and not (folder / one.pop("file")).exists():
                one["wrote"] = "what it wrote is not seen here"
        trouble = None if config["hdfs"] is None else write_there(spark, f"{config['hdfs']}/{folder.name}", slots)
        Path(config["report"]).write_text(json.dumps({"executors": list(seen.values()), "hdfs": trouble}))
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
