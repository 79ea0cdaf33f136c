"""Context of an experiment in one process: attempt, plan and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from faultline.engines.protocol import Engine, Progress
from faultline.engines.registry import engine_of_plan
from faultline.engines.runtime import BatchJob, Program, Runtime
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.run import Run
from faultline.installation.cds_archive import find_archive
from faultline.installation.java import find_java
from faultline.system.settings import Settings
from faultline.system.target_registry import Target


class Hooks(Protocol):
    """Differences between a task of Airflow and a plain process."""

    def kafka_admin(self) -> Any:
        """Return an admin client of the embedded broker (`confluent_kafka.admin.AdminClient`)."""

    def command(self, program: Program) -> list[str]:
        """Return the complete command of a program that an engine submits."""

    def batch(self, job: BatchJob) -> None:
        """Run a batch job on Spark and wait for its end.

        Raises InfrastructureError if it fails.
        """

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the hosts that are reached over SSH, by name.

        Raises ConfigError for a host without a description.
        """

    def store_target(self, target: Target) -> None:
        """Write the target's Connections to files.

        Raises ConfigError naming a missing or wrong Connection.
        """

    def is_run_active(self, run_id: str) -> bool:
        """Return whether another run with this id is queued or running."""

    def is_cancelled(self) -> bool:
        """Return whether the experiment's result is no longer wanted. Cheap enough to poll."""

    def cause_of(self, error: Exception) -> Exception:
        """Return the cause of a step's failure: usually `error` itself."""


@dataclass(frozen=True)
class RunContext(Run):
    """One attempt in this process, with its hooks."""

    hooks: Hooks

    @cached_property
    def engine(self) -> Engine:
        return engine_of_plan(self.plan)

    @cached_property
    def progress(self) -> Progress:
        """Progress of the workload."""
        return self.engine.progress(self)

    @cached_property
    def runtime(self) -> Runtime:
        """Java runtime of this machine."""
        return runtime_of(self.settings)


def open_run(attempt_id: str, hooks: Hooks, settings: Settings) -> RunContext:
    """Return the context of a prepared attempt.

    Raises InfrastructureError as `read_plan` does.
    """
    attempt = Attempt(settings.attempts / attempt_id)
    return RunContext(settings, attempt, read_plan(attempt), hooks)


def runtime_of(settings: Settings) -> Runtime:
    return Runtime(find_java(settings.home / "java.json").home, find_archive(settings))
