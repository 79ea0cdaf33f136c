"""Short batch jobs on Spark, harvest and aggregate: in the persistent session, or handed to spark-submit."""

from __future__ import annotations

from collections.abc import Callable

from faultline.engines.running import BatchJob, Runtime
from faultline.engines.spark.session import NoSession, run_in_session
from faultline.engines.spark.settings import (
    LOCAL_MASTER,
    batch_settings,
    program,
    properties_file,
    spark_environment,
)
from faultline.engines.spark.submission import SparkSubmission, job_jars
from faultline.system.locks import beside_windows
from faultline.system.marks import RUN_MARK
from faultline.system.settings import Settings


def run_batch(job: BatchJob, settings: Settings, runtime: Runtime, submit: Callable[[SparkSubmission], None]) -> None:
    """Runs a job and waits for its end, not beside a window that is measured.

    Starting a JVM takes longer than most jobs, so a small job goes to the persistent session first. `submit`: hands
    the job to spark-submit when no session has done it. Raises what `submit` raises.
    """
    elsewhere = job.run is not None and job.run.plan.endpoints.elsewhere
    with beside_windows(settings.window_lock) as waited_s:
        if waited_s:
            print(f"waited {waited_s:.1f} s for the end of a window")
        if not (job.large or job.of_user or elsewhere):
            try:
                run_in_session(settings, job.program, job.arguments)
                return
            except NoSession as reason:
                print(f"{reason}; started anew instead")
        submit(batch_submission(job, settings, runtime))


def batch_submission(job: BatchJob, settings: Settings, runtime: Runtime) -> SparkSubmission:
    """What is handed to spark-submit for a job: one JVM, with the harness's login."""
    there, run = settings if job.run is None else job.run.there, job.run
    conf = batch_settings(
        there, archive=runtime.class_data, large=job.large, attempt=None if run is None else run.attempt.id
    )
    if job.of_user and run is not None:
        conf = {**(run.config.spark_conf or {}), **job_jars(run.attempt, run.config), **conf}
    marked = {} if run is None else {RUN_MARK: run.attempt.id}
    return SparkSubmission(
        command=(str(program(settings, job.program)), *job.arguments),
        environment={**spark_environment(settings, runtime.java_home), **marked},
        restart_delay_s=0.0,
        max_restarts=0,
        name=job.name,
        settings=conf,
        properties=properties_file(settings),
        master=LOCAL_MASTER,
    )
