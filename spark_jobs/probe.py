"""Probe of a cluster from its executors: readable paths, and the folder shared with the driver.

    spark-submit probe.py --config FILE

The configuration is JSON: folder (of the shared storage, created and removed here), paths (to be readable by
executors), report (output file). The report: {"executors": [{"host", "python", "user", "sees", "wrote",
"unreadable"}]}, one entry per host that ran a task; `wrote` is null or the write error.
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
# Several tasks per slot, so that every executor gets one.
TASKS_PER_SLOT = 4


def inspect_executor(folder: str, token: str, paths: list[str]) -> dict[str, Any]:
    """Return the access of one executor to the folder and the paths."""
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


def check_hdfs(spark: SparkSession, url: str, slots: int) -> str | None:
    """Write and read files in HDFS on executors; return the error, or None."""
    jvm: Any = spark._jvm  # type: ignore[attr-defined]
    path = jvm.org.apache.hadoop.fs.Path(url)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]
    try:
        rows = spark.range(0, slots * TASKS_PER_SLOT, 1, slots).selectExpr("cast(id as string) as value")
        rows.write.text(url)
        found = spark.read.text(url).count()
    except Exception as error:
        # Prefer Java's message to that of Py4J.
        java = getattr(error, "java_exception", None)
        return str(error if java is None else java.toString()).strip().splitlines()[0]
    finally:
        with contextlib.suppress(Exception):  # keep the first error
            system.delete(path, True)
    return None if found == slots * TASKS_PER_SLOT else f"read {found} rows; expected {slots * TASKS_PER_SLOT}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config: dict[str, Any] = json.loads(parser.parse_known_args()[0].config.read_text())
    token, folder = uuid.uuid4().hex, Path(config["folder"])
    paths: list[str] = config["paths"]
    folder.mkdir()
    # Executors may run as another user; the probe tests access to the parent folder.
    folder.chmod(0o777)
    try:
        (folder / TOKEN).write_text(token)
        where = str(folder)

        def on_executor(_: Iterator[int]) -> Iterator[dict[str, Any]]:
            yield inspect_executor(where, token, paths)

        spark = SparkSession.builder.getOrCreate()
        slots = max(1, spark.sparkContext.defaultParallelism)
        tasks = spark.sparkContext.parallelize(range(slots * TASKS_PER_SLOT), slots * TASKS_PER_SLOT)
        seen = {one["host"]: one for one in tasks.mapPartitions(on_executor).collect()}
        for one in seen.values():
            if one["wrote"] is None and not (folder / one.pop("file")).exists():
                one["wrote"] = "file not visible to the driver"
        hdfs_error = None if config["hdfs"] is None else check_hdfs(spark, f"{config['hdfs']}/{folder.name}", slots)
        Path(config["report"]).write_text(json.dumps({"executors": list(seen.values()), "hdfs": hdfs_error}))
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
