"""Spark through Airflow's provider: its Connections, and the command of what is submitted to it.

`SparkSubmitOperator` blocks until the application ends, so the streaming workload only borrows the
hook's command; the workload supervisor runs it.
"""

from __future__ import annotations

import json

from faultline.base.errors import InfrastructureError
from faultline.base.settings import HOST, Settings
from faultline.engines.running import Submission
from faultline.engines.spark.settings import LOCAL_MASTER
from faultline.engines.spark.submission import SparkSubmission


def spark_connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Connections by id: the cluster's master, and one JVM for short jobs."""
    common = {"conn_type": "spark", "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"})}
    return {
        "spark_default": {**common, "host": f"spark://{HOST}", "port": settings.ports["spark_master"]},
        "spark_local": {**common, "host": LOCAL_MASTER},
    }


def command_of(submission: Submission) -> list[str]:
    """What the workload supervisor runs: a program for Spark by way of spark-submit, any other as it is.

    Raises InfrastructureError when the Connection `spark_default` is missing: the hook would fall
    back to YARN without a word.
    """
    if not isinstance(submission, SparkSubmission):
        return list(submission.command)
    # Seconds of imports, which whoever only asks for the Connections does without.
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    program, *arguments = submission.command
    hook = SparkSubmitHook(
        conn_id="spark_default",
        conf=dict(submission.settings),
        name=submission.name,
        application_args=arguments,
    )
    if not hook._connection["master"].startswith("spark://"):
        raise InfrastructureError("Connection spark_default: missing or not a Spark master; run ./faultline up")
    command: list[str] = hook._build_spark_submit_command(program)
    return command
