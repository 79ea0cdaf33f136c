"""Executor of Airflow's scheduler: a LocalExecutor that waits for the end of a task instead of a timer.

The scheduler loop checks for due work, then sleeps. With a short sleep, the loop would take a tenth of a core from the
measurement. This executor continues the loop when a task ends, or after the longest time for which new work may wait;
that time is longest during a measured window.
"""

from __future__ import annotations

import contextlib
import importlib
import os

from airflow.executors.local_executor import LocalExecutor
from airflow.sdk.api.client import Client

from faultline.installation.server_proof import guard_tokens
from faultline.orchestration.forms import configuration_params
from faultline.system.hashes import LoadedCode
from faultline.system.locks import is_measured
from faultline.system.settings import load_settings

# Imports of the tasks, preloaded in the scheduler: workers and tasks are forked from it, and importing takes most of a
# task's time.
LIBRARIES = (
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.standard.operators.trigger_dagrun",
    "airflow.providers.standard.triggers.external_task",
    "confluent_kafka",
    "jinja2",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pydantic",
    "scipy.stats",
)
# Own packages: if their files have changed since the scheduler started, a task imports them again.
PACKAGES = ("faultline", "fault", "generators")
PROJECT_MODULES = (
    "faultline.orchestration.experiment",
    "faultline.orchestration.hooks",
    "faultline.orchestration.local_spark",
    "faultline.orchestration.airflow_api",
    "faultline.orchestration.matrix_dag",
    "faultline.records.judge.rejudge",
    "faultline.records.store",
    "faultline.reports.notes",
    "faultline.lifecycle.steps",
)
# Longest delay of work from outside the executor, such as triggered runs.
IDLE_WAIT_S = 0.8
MEASURED_WAIT_S = 8.0


class EventExecutor(LocalExecutor):
    """Executor with event-driven waits; see `airflow.executors.local_executor.LocalExecutor`."""

    def start(self) -> None:
        for name in (*LIBRARIES, *PROJECT_MODULES):
            importlib.import_module(name)
        configuration_params()  # caches the schema that every DAG needs
        own = LoadedCode.of(PACKAGES)
        os.register_at_fork(after_in_child=lambda: own.unload() if own.is_stale() else None)
        settings = load_settings()
        # Tasks are forked from this process, so they inherit this.
        guard_tokens(Client, settings)
        self._window_lock = settings.window_lock
        super().start()

    def sync(self) -> None:
        """Wait for a worker's message, at most as long as new work may wait; then process all messages."""
        wait_s = MEASURED_WAIT_S if is_measured(self._window_lock) else IDLE_WAIT_S
        with contextlib.suppress(AttributeError):  # if Airflow lacks this attribute, only the scheduler's sleep waits
            self.result_queue._reader.poll(wait_s)
        super().sync()
