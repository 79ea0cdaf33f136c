"""Batch jobs on Spark through the Spark provider's operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.engines.runtime import BatchJob
    from faultline.engines.spark.submission import SparkProgram


class LocalSparkJob(SparkSubmitOperator):
    """Operator that runs a program of `spark_jobs/` in the persistent session, or else with spark-submit.

    spark-submit uses one JVM. Prerequisites are checked when the task runs, not when the DAG file is parsed.
    """

    def __init__(self, *, program: str, **arguments: Any) -> None:
        from faultline.engines.spark.settings import program as path_of

        application = str(path_of(load_settings(), program))
        super().__init__(application=application, conn_id="spark_local", durable=False, **arguments)

    def run_batch(self, job: BatchJob, context: Any) -> None:
        """Run the job and wait for its end.

        Raises the operator's error if it fails.
        """
        from faultline.engines.spark.job_client import run_batch
        from faultline.lifecycle.context import runtime_of

        settings = load_settings()
        run_batch(job, settings, runtime_of(settings), lambda program: self._submit(program, context))

    def _submit(self, program: SparkProgram, context: Any) -> None:
        self.name, self.conf = program.name, dict(program.settings)
        self.application_args = list(program.command[1:])
        self.properties_file, self.env_vars = str(program.properties), dict(program.environment)
        super().execute(context)
