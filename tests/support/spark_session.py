"""One local Spark for all tests of the Spark programs, and the programs themselves, which lie beside each other."""

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

# As spark-submit puts the program's folder on the path.
PROGRAMS = ROOT / "spark_jobs"
if str(PROGRAMS) not in sys.path:
    sys.path.append(str(PROGRAMS))


def local_session(folder: Path) -> SparkSession:
    """Return a local Spark on two cores with the engine's settings; what it writes goes to `folder`."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("JAVA_HOME", str(find_java(folder / "java.json").home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in local_settings(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # At the interpreter's end its connections say that they close, when nothing is left to say it to.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return session


def local_settings(folder: Path) -> dict[str, str]:
    """Return settings of a local Spark, whose files go to `folder`."""
    return {
        **engine_settings(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # Small data: compiling them well takes longer than working through them. Room for the code of many queries in
        # one JVM: with one compiler it defaults to 48 MB, and the JVM ends when that is full.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
