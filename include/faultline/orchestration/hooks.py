"""Hooks of an experiment whose steps are tasks of Airflow: its Connections, providers and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook

from faultline.engines.runtime import BatchJob, Program
from faultline.engines.spark.submission import SparkProgram
from faultline.experiment.cell import EXPERIMENT
from faultline.orchestration.cells import ACTIVE_STATES
from faultline.orchestration.run_experiment import run_state
from faultline.orchestration.targets.connection_query import store_target
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from faultline.system.ssh_hosts import check_ssh_host, ssh_hosts

if TYPE_CHECKING:
    from faultline.system.target_registry import Target

TASK_SUPERVISOR_DIED = "airflow: the task's supervisor process died; the experiment itself did not fail"


class AirflowHooks:
    """Implementation of `faultline.lifecycle.context.Hooks`.

    `context`: context of the task. `batch`: runs a batch job; None in tasks without one.
    """

    def __init__(self, settings: Settings, context: Any, batch: Callable[[BatchJob], None] | None = None) -> None:
        self._settings, self._context, self._batch = settings, context, batch
        self._supervisor_pid = os.getppid()

    def kafka_admin(self) -> Any:
        return KafkaAdminClientHook(kafka_config_id="kafka_default").get_conn

    def command(self, program: Program) -> list[str]:
        """Return the program's complete command.

        Raises InfrastructureError if the Connection `spark_default` is missing; the provider's hook would silently fall
        back to YARN.
        """
        if not isinstance(program, SparkProgram):
            return list(program.command)
        # The import takes seconds.
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        application, *arguments = program.command
        hook = SparkSubmitHook(
            conn_id="spark_default",
            conf=dict(program.settings),
            name=program.name,
            java_class=program.main_class,
            properties_file=str(program.properties),
            application_args=arguments,
        )
        if not hook._connection["master"].startswith("spark://"):
            raise InfrastructureError(
                "Connection spark_default: missing or not a Spark master; fix: run ./faultline up"
            )
        command: list[str] = hook._build_spark_submit_command(application)
        if program.spark_submit is not None:
            command[0] = program.spark_submit
        if program.master is not None:
            command[command.index("--master") + 1] = program.master
        return command

    def batch(self, job: BatchJob) -> None:
        assert self._batch is not None, "this task is not a Spark job"
        self._batch(job)

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the hosts as described by their Connections, which users may edit in the UI."""
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowException

        found = {}
        for name in ssh_hosts(self._settings):
            try:
                connection = BaseHook.get_connection(f"ssh_{name}")
            except AirflowException:
                raise ConfigError(
                    f"ssh_hosts.json: {name}: Connection ssh_{name} missing; fix: run ./faultline up"
                ) from None
            address = {"host": connection.host, "port": connection.port, "user": connection.login}
            found[name] = check_ssh_host(f"Connection ssh_{name}", {**address, **connection.extra_dejson})
        return found

    def store_target(self, target: Target) -> None:
        store_target(self._settings, target)

    def is_run_active(self, run_id: str) -> bool:
        if run_id == self._context["run_id"]:  # earlier attempts of this run have ended
            return False
        count = self._context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[run_id], states=["queued", "running"])
        return bool(count)

    def is_cancelled(self) -> bool:
        """Return whether the matrix run that requested this experiment has ended or was deleted."""
        params = self._context["params"]
        matrix, parent = params.get("matrix"), params.get("parent_run_id")
        if not parent or not matrix:
            return False
        if not self._context["ti"].get_dr_count(dag_id=matrix, run_ids=[parent]):
            return True
        return run_state(self._context, matrix, parent) not in ACTIVE_STATES

    def cause_of(self, error: Exception) -> Exception:
        """Return the error to report: the death of the task's supervisor process if it died, else `error`."""
        return error if os.getppid() == self._supervisor_pid else InfrastructureError(TASK_SUPERVISOR_DIED)
