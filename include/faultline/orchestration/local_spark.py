"""Short Spark jobs through the Spark provider's operator: harvest and aggregate."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from faultline.system.endpoints import Endpoints
from faultline.system.quiet.window_lock import beside_windows
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.experiment.attempt import Attempt
    from faultline.experiment.config import Configuration


class LocalSparkJob(SparkSubmitOperator):
    """Hands a program of `spark_jobs/` to spark-submit, in one JVM.

    A short job on few data: starting executors on the cluster would take longer than the job itself, and starting the
    one JVM still takes most of the time. So a job that is neither `large` nor `alone` goes to the Spark that stays, and
    to spark-submit only when that one has not done it.
    What the machine must provide is looked for when the task runs, not when the DAG file is read.
    """

    # Set before `execute` by a job that reads much, or that belongs to one attempt.
    large = False
    # Runs what is not Faultline's own: never where other jobs come after it.
    alone = False
    for_attempt: str | None = None
    # Settings of the run whose job is run again here.
    conditions: Mapping[str, str] = MappingProxyType({})
    # Whose topics it reads, where they are not the embedded broker's.
    endpoints: Endpoints | None = None

    def __init__(self, *, program: str, **arguments: Any) -> None:
        from faultline.engines.spark.settings import program as path_of

        settings = load_settings()
        self._program = program
        super().__init__(application=str(path_of(settings, program)), conn_id="spark_local", durable=False, **arguments)

    def run_under_conditions_of(self, attempt: Attempt, config: Configuration) -> None:
        """Runs a job of the user's once more as it ran: under its settings, with its jars."""
        from faultline.engines.spark.submission import job_jars

        self.conditions = {**(config.spark_conf or {}), **job_jars(attempt, config)}

    def execute(self, context: Any) -> None:
        with beside_windows(load_settings().window_lock) as waited_s:
            if waited_s:
                print(f"waited {waited_s:.1f} s for the end of a window")
            if not self.large and not self.alone and self._done_in_session():
                return
            self._submit(context)

    def _done_in_session(self) -> bool:
        from faultline.engines.spark.session import NoSession, run_in_session

        try:
            run_in_session(load_settings(), self._program, self.application_args or ())
        except NoSession as reason:
            print(f"{reason}; started anew instead")
            return False
        return True

    def _submit(self, context: Any) -> None:
        from faultline.system.marks import RUN_MARK
        from faultline.installation.class_data import archive_here
        from faultline.installation.java import find_java
        from faultline.engines.spark.settings import batch_settings, properties_file, spark_environment

        settings = load_settings()
        there = settings if self.endpoints is None else settings.at(self.endpoints)
        self.conf = batch_settings(there, archive=archive_here(settings), large=self.large, attempt=self.for_attempt)
        self.conf = {**self.conditions, **self.conf}
        self.properties_file = str(properties_file(settings))
        marked = {RUN_MARK: self.for_attempt} if self.for_attempt else {}
        self.env_vars = {**spark_environment(settings, find_java(settings.home / "java.json").home), **marked}
        super().execute(context)
