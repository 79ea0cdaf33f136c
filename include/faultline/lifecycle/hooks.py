"""Hooks of an experiment in a plain process, without Airflow."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from faultline.engines.runtime import BatchJob, Program
from faultline.engines.spark.job_client import run_batch
from faultline.engines.spark.submission import SparkProgram, spark_submit_command
from faultline.installation.kafka import admin_client
from faultline.lifecycle.context import runtime_of
from faultline.system.child_environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.ssh_hosts import ssh_hosts
from faultline.system.target_registry import Target

# Length of a failed job's output in the error.
LAST_CHARACTERS = 500


class PlainHooks:
    """Implementation of `faultline.lifecycle.context.Hooks`; the caller has stored the target."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def kafka_admin(self) -> Any:
        return admin_client(self._settings)

    def command(self, program: Program) -> list[str]:
        if not isinstance(program, SparkProgram):
            return list(program.command)
        return spark_submit_command(program, self._settings.endpoints.engine)

    def batch(self, job: BatchJob) -> None:
        run_batch(job, self._settings, runtime_of(self._settings), self._submit)

    def _submit(self, program: SparkProgram) -> None:
        done = subprocess.run(
            self.command(program),
            env=clean_environment(program.environment, for_workload=True),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        print(done.stdout)
        if done.returncode:
            raise InfrastructureError(
                f"{program.name}: spark-submit failed: status {done.returncode}: "
                f"{done.stdout.strip()[-LAST_CHARACTERS:]}"
            )

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        return ssh_hosts(self._settings)

    def store_target(self, target: Target) -> None:
        pass

    def is_run_active(self, run_id: str) -> bool:
        """Return True: the state of Airflow's runs is unknown here, so their attempts are left alone."""
        return True

    def is_cancelled(self) -> bool:
        return False

    def cause_of(self, error: Exception) -> Exception:
        return error
