"""The CDS archive of Spark's classes matches the class path of Spark's programs."""

from __future__ import annotations

import os
import subprocess

from faultline.engines.spark.settings import kafka_classes, spark_environment
from faultline.installation.cds_archive import MIN_BYTES, archive_path, make_archive
from faultline.installation.java import find_java
from faultline.installation.spark import prepare_spark, spark_home
from faultline.system.settings import load_settings


def test_sparks_programs_start_from_the_archive() -> None:
    settings = load_settings()
    prepare_spark(settings)
    make_archive(settings)
    path = archive_path(settings, find_java(settings.home / "java.json"))

    def start(**more: str) -> subprocess.CompletedProcess[str]:
        # With `-Xshare:on`, a JVM that cannot use the archive fails.
        options = f'-Xshare:on "-XX:SharedArchiveFile={path}" -Xlog:class+load'
        java_home = find_java(settings.home / "java.json").home
        environment = {**os.environ, **spark_environment(settings, java_home), "SPARK_SUBMIT_OPTS": options, **more}
        connector = kafka_classes(settings)["spark.driver.extraClassPath"]
        command = [str(spark_home() / "bin" / "spark-submit"), "--driver-class-path", connector, "--version"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    spark = start()
    assert spark.returncode == 0, spark.stdout + spark.stderr
    shared = [line for line in spark.stdout.splitlines() if line.endswith("source: shared objects file (top)")]
    assert any(" org.apache.spark.deploy.SparkSubmit " in line for line in shared)
    assert path.stat().st_size > MIN_BYTES
    other = start(SPARK_CONF_DIR=str(settings.home))
    assert other.returncode == 1
    assert "shared class paths mismatch" in other.stdout + other.stderr
