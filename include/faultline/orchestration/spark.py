"""The workload's spark-submit command, built by the Spark provider's hook.

`SparkSubmitOperator` blocks until the application ends, so the streaming workload only borrows the
hook's command; the workload supervisor runs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from faultline.base.errors import InfrastructureError

if TYPE_CHECKING:
    from faultline.base.attempt import Attempt
    from faultline.base.settings import Settings


def workload_command(attempt: Attempt, settings: Settings) -> list[str]:
    """What the workload supervisor runs: spark-submit, or the engine of a workload that is no Spark program."""
    from faultline.base.processes import run_token
    from faultline.engines.spark.programs import workload_configuration
    from faultline.experiment.plan import configuration_of

    if configuration_of(attempt).kind.program is None:
        program = [sys.executable, "-P", "-m", "faultline.engines.known_truth"]
        return [*program, "--config", str(workload_configuration(attempt)), run_token(attempt.id)]
    return submit_command(attempt, settings)


def submit_command(attempt: Attempt, settings: Settings) -> list[str]:
    """The complete command for the attempt's workload.

    Raises InfrastructureError when the Connection `spark_default` is missing: the hook would fall
    back to YARN without a word.
    """
    from faultline.base.processes import run_token
    from faultline.cluster.class_data import archive_option
    from faultline.engines.spark.programs import workload_configuration
    from faultline.engines.spark.settings import kafka_jars, workload_program, workload_settings
    from faultline.experiment.plan import configuration_of

    description = attempt.read()
    config = configuration_of(attempt)
    hook = SparkSubmitHook(
        conn_id="spark_default",
        conf=workload_settings(
            settings, attempt, config, description["spark"]["ui_port"], archive=archive_option(settings)
        ),
        jars=kafka_jars(settings),
        name=f"{config.workload} {attempt.id}",
        application_args=["--config", str(workload_configuration(attempt)), run_token(attempt.id)],
    )
    if not hook._connection["master"].startswith("spark://"):
        raise InfrastructureError("Connection spark_default: missing or not a Spark master; run ./faultline up")
    command: list[str] = hook._build_spark_submit_command(str(workload_program(settings, config)))
    return command
