"""The hooks of an experiment whose steps are tasks of Airflow: its Connections, its providers, its runs."""

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

TASK_SUPERVISOR_DIED = (
    "Airflow's process beside the task was ended, and the task with it; nothing of the experiment failed"
)


class AirflowHooks:
    """See `faultline.lifecycle.context.Hooks`. `context`: the task's. `batch`: what runs a job, in tasks that do."""

    def __init__(self, settings: Settings, context: Any, batch: Callable[[BatchJob], None] | None = None) -> None:
        self._settings, self._context, self._batch = settings, context, batch
        self._supervisor_pid = os.getppid()

    def kafka_admin(self) -> Any:
        return KafkaAdminClientHook(kafka_config_id="kafka_default").get_conn

    def command(self, program: Program) -> list[str]:
        """Raises InfrastructureError when the Connection `spark_default` is missing: the provider's hook would fall
        back to YARN without a word."""
        if not isinstance(program, SparkProgram):
            return list(program.command)
        # Takes seconds to import.
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
            raise InfrastructureError("Connection spark_default: missing or not a Spark master; run ./faultline up")
        command: list[str] = hook._build_spark_submit_command(application)
        if program.spark_submit is not None:
            command[0] = program.spark_submit
        if program.master is not None:
            command[command.index("--master") + 1] = program.master
        return command

    def batch(self, job: BatchJob) -> None:
        assert self._batch is not None, "this task is no Spark job"
        self._batch(job)

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        """As their Connections say, which may be edited in the UI."""
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowException

        found = {}
        for name in ssh_hosts(self._settings):
            try:
                connection = BaseHook.get_connection(f"ssh_{name}")
            except AirflowException:
                raise ConfigError(
                    f"ssh_hosts.json: {name}: there is no Connection ssh_{name}; run ./faultline up"
                ) from None
            address = {"host": connection.host, "port": connection.port, "user": connection.login}
            found[name] = check_ssh_host(f"Connection ssh_{name}", {**address, **connection.extra_dejson})
        return found

    def store_target(self, target: Target) -> None:
        store_target(self._settings, target)

    def is_run_active(self, run_id: str) -> bool:
        if run_id == self._context["run_id"]:  # an earlier attempt of this very run is over
            return False
        count = self._context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[run_id], states=["queued", "running"])
        return bool(count)

    def is_cancelled(self) -> bool:
        """Whether the matrix run that asked for this experiment is over or gone: it waits while it wants it."""
        params = self._context["params"]
        matrix, parent = params.get("matrix"), params.get("parent_run_id")
        if not parent or not matrix:
            return False
        if not self._context["ti"].get_dr_count(dag_id=matrix, run_ids=[parent]):
            return True
        return run_state(self._context, matrix, parent) not in ACTIVE_STATES

    def cause_of(self, error: Exception) -> Exception:
        """Without the process that Airflow has beside a task nothing more can be told, and that is what failed."""
        return error if os.getppid() == self._supervisor_pid else InfrastructureError(TASK_SUPERVISOR_DIED)
