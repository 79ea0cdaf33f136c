"""The context of an experiment in one process: its attempt, what it is to do, and the hooks it runs with."""

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
    """All that differs between a task of Airflow and a plain process."""

    def kafka_admin(self) -> Any:
        """An admin client of the embedded broker (`confluent_kafka.admin.AdminClient`)."""

    def command(self, program: Program) -> list[str]:
        """The complete command of what an engine submits."""

    def batch(self, job: BatchJob) -> None:
        """Runs a batch job on Spark and waits for its end. Raises InfrastructureError when it fails."""

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        """The hosts that are reached over SSH, by name. Raises ConfigError for one that is not described."""

    def store_target(self, target: Target) -> None:
        """Writes down what the target's Connections say. Raises ConfigError naming the Connection."""

    def is_run_active(self, run_id: str) -> bool:
        """Whether the run with this id is queued or running, and is another than this one."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for this experiment any more. May be asked often."""

    def cause_of(self, error: Exception) -> Exception:
        """What made a step fail that raised `error`: usually that itself."""


@dataclass(frozen=True)
class RunContext(Run):
    """One attempt in this process, and the hooks that it runs with."""

    hooks: Hooks

    @cached_property
    def engine(self) -> Engine:
        return engine_of_plan(self.plan)

    @cached_property
    def progress(self) -> Progress:
        """How far the workload has come."""
        return self.engine.progress(self)

    @cached_property
    def runtime(self) -> Runtime:
        """What this machine has for programs on a JVM."""
        return runtime_of(self.settings)


def open_run(attempt_id: str, hooks: Hooks, settings: Settings) -> RunContext:
    """The context of an attempt that `prepare` has made. Raises InfrastructureError as `read_plan`."""
    attempt = Attempt(settings.attempts / attempt_id)
    return RunContext(settings, attempt, read_plan(attempt), hooks)


def runtime_of(settings: Settings) -> Runtime:
    return Runtime(find_java(settings.home / "java.json").home, find_archive(settings))
