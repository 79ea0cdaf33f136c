"""Spark through Airflow's provider: its Connections, and the command of what is submitted to it.

`SparkSubmitOperator` blocks until the application ends, so the streaming workload only borrows the
hook's command; the workload supervisor runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from faultline.experiment.attempt import Attempt
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.engines.running import Runtime, Submission
from faultline.engines.spark.settings import LOCAL_MASTER
from faultline.engines.spark.submission import SparkSubmission
from faultline.experiment.plan import configuration_of, plan_of


def spark_connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Connections by id: the cluster's master, and one JVM for short jobs."""
    common = {"conn_type": "spark", "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"})}
    return {
        "spark_default": {
            **common,
            "host": f"spark://{settings.placement.conductor}",
            "port": settings.ports["spark_master"],
        },
        "spark_local": {**common, "host": LOCAL_MASTER},
    }


def command_of(submission: Submission) -> list[str]:
    """What the workload supervisor runs: a program for Spark by way of spark-submit, any other as it is.

    Raises InfrastructureError when the Connection `spark_default` is missing: the hook would fall
    back to YARN without a word.
    """
    return _spark_submit(submission) if isinstance(submission, SparkSubmission) else list(submission.command)


def generator_command(
    attempt: Attempt, settings: Settings, arguments: Sequence[str]
) -> tuple[list[str], Mapping[str, str]]:
    """Command and environment of a generator with these arguments that is a job on the cluster."""
    from faultline.installation.java import find_java
    from faultline.engines.spark.generator_job import generator_job

    runtime = Runtime(find_java(settings.home / "java.json").home)
    processes = configuration_of(attempt).generator_processes
    endpoints = plan_of(attempt).endpoints
    job = generator_job(attempt, processes, settings.at(endpoints), runtime, tuple(arguments))
    return _spark_submit(job), job.environment


def _spark_submit(submission: SparkSubmission) -> list[str]:
    # Seconds of imports, which whoever only asks for the Connections does without.
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    program, *arguments = submission.command
    hook = SparkSubmitHook(
        conn_id="spark_default",
        conf=dict(submission.settings),
        name=submission.name,
        java_class=submission.main_class,
        properties_file=str(submission.properties),
        application_args=arguments,
    )
    if not hook._connection["master"].startswith("spark://"):
        raise InfrastructureError("Connection spark_default: missing or not a Spark master; run ./faultline up")
    command: list[str] = hook._build_spark_submit_command(program)
    if submission.spark_submit is not None:
        command[0] = submission.spark_submit
    if submission.master is not None:
        command[command.index("--master") + 1] = submission.master
    return command
