"""Local Spark session for tests of the Spark programs; adds their folder to the import path."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.engines.spark.settings import engine_settings
from faultline.installation.java import find_java
from faultline.system.settings import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Folder of the programs, which spark-submit adds to the import path.
PROGRAMS = ROOT / "spark_jobs"
if str(PROGRAMS) not in sys.path:
    sys.path.append(str(PROGRAMS))


def local_session(folder: Path) -> SparkSession:
    """Return a local Spark with two cores and the engine's settings; it writes to `folder`."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("JAVA_HOME", str(find_java(folder / "java.json").home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in local_settings(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Py4J's connections would log to streams that are closed at exit.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return session


def local_settings(folder: Path) -> dict[str, str]:
    """Return settings of a local Spark that writes to `folder`."""
    return {
        **engine_settings(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # For small data, C2 compilation takes longer than execution. The code cache holds many queries in
        # one JVM: with C1 only, it defaults to 48 MB, and the JVM exits when it is full.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
