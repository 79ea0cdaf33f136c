"""The executor of Airflow's scheduler: LocalExecutor, which waits for the end of a task instead of for a clock.

The scheduler goes round, asks what is due, and sleeps. To hand one task over to the next soon it must go round often,
and then it takes a tenth of a core beside whatever is measured. This one lets it go round when a task has ended, or
when it has waited as long as new work may wait: longest while a window is measured.
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

# What the tasks of this project import, beside what the scheduler has of it. Workers are forked from the scheduler, and
# each task from its worker: what is loaded here, no task has to load, and that is most of what a task takes.
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
# Of the project itself. A task runs the code that lies there when it runs: when a file was changed since, it loads all
# of it by itself.
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
# How long work that comes from elsewhere (a run that somebody triggers, a trigger that fires) may go unseen.
IDLE_WAIT_S = 0.8
MEASURED_WAIT_S = 8.0


class EventExecutor(LocalExecutor):
    """See `airflow.executors.local_executor.LocalExecutor`."""

    def start(self) -> None:
        for name in (*LIBRARIES, *PROJECT_MODULES):
            importlib.import_module(name)
        configuration_params()  # whose schema every DAG is made with
        own = LoadedCode.of(PACKAGES)
        os.register_at_fork(after_in_child=lambda: own.unload() if own.is_stale() else None)
        settings = load_settings()
        # The processes that run tasks are forked from here.
        guard_tokens(Client, settings)
        self._window_lock = settings.window_lock
        super().start()

    def sync(self) -> None:
        """Waits for a worker's word, at most as long as new work may wait; then reads what there is."""
        wait_s = MEASURED_WAIT_S if is_measured(self._window_lock) else IDLE_WAIT_S
        with contextlib.suppress(AttributeError):  # a queue of another Python: the scheduler's own sleep remains
            self.result_queue._reader.poll(wait_s)
        super().sync()
