"""Short Spark jobs through the Spark provider's operator: harvest and aggregate."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from faultline.base.settings import load_settings


class LocalSparkJob(SparkSubmitOperator):
    """Hands a program of `spark_jobs/` to spark-submit, in one JVM; `kafka`: one that reads topics.

    A short job on few data: starting executors on the cluster would take longer than the job itself.
    What the machine must provide is looked for when the task runs, not when the DAG file is read.
    """

    # Set before `execute` by a job that reads much, or that belongs to one attempt.
    large = False
    for_attempt: str | None = None

    def __init__(self, *, program: str, kafka: bool = False, **arguments: Any) -> None:
        from faultline.engines.spark.settings import kafka_jars
        from faultline.engines.spark.settings import program as path_of

        settings = load_settings()
        if kafka:
            arguments["jars"] = kafka_jars(settings)
        super().__init__(application=str(path_of(settings, program)), conn_id="spark_local", durable=False, **arguments)

    def execute(self, context: Any) -> None:
        from faultline.cluster.class_data import archive_option
        from faultline.cluster.java import find_java
        from faultline.engines.spark.settings import batch_settings, spark_environment

        settings = load_settings()
        self.conf = batch_settings(
            settings, archive=archive_option(settings), large=self.large, attempt=self.for_attempt
        )
        self.env_vars = spark_environment(settings, find_java(settings.home / "java.json").home)
        super().execute(context)
