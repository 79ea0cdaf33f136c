"""What an engine gives the lifecycle for a run: what is started, what is sampled, and who guards its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from fault.process_sampler import RoleRule
from faultline.experiment.attempt import write_json
from faultline.experiment.run import Run
from faultline.system.journal import Journal, Line


@dataclass(frozen=True)
class Runtime:
    """What this machine has for programs on a JVM; the room `installation` knows where.

    `cds_archive`: the archive of loaded classes, None where there is none.
    """

    java_home: Path
    cds_archive: Path | None = None


@dataclass(frozen=True)
class Program:
    """A process that is to be started.

    `role`: its name among those of the run. `command`: the program and its arguments; complete, unless a kind of its
    own says to whom it is handed. `environment`: beside that of whoever starts it.
    """

    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class SupervisedProgram:
    """A program that the workload supervisor keeps running: when it dies, it starts it again, so often, after
    `restart_delay_s`. 0 times: the engine does that itself."""

    program: Program
    max_restarts: int
    restart_delay_s: float


@dataclass(frozen=True)
class Submission:
    """What runs a workload, which goes on while all of these processes do: the end of one ends the others.

    `stops_on_request`: its processes look for the attempt's stop file; else they are ended by a signal.
    """

    processes: tuple[SupervisedProgram, ...]
    stops_on_request: bool = True


@dataclass(frozen=True)
class BatchJob:
    """A program of `spark_jobs/` that reads what is there, and ends.

    `large`: reads much, so that Spark's optimisations pay. `run`: the one whose topics it reads, under whose mark it
    runs; None: it reads files alone.
    """

    program: str
    arguments: tuple[str, ...]
    name: str
    large: bool = False
    run: Run | None = None

    @property
    def is_user_job(self) -> bool:
        """Whether it runs the user's job once more, under the settings and with the jars of the run; never where other
        jobs come after it."""
        return self.run is not None and self.run.attempt.job.is_dir()


def write_program_configuration(run: Run, by_engine: Mapping[str, Any]) -> Path:
    """Writes what the workload's program is told: the plan's part, and what the engine adds; what both name is the
    workload's."""
    path = run.attempt.folder / "workload_config.json"
    write_json(path, {**by_engine, **run.plan.program})
    return path


class Sampler(Protocol):
    """What the recorder takes down of an engine each second.

    `rules`: the roles of the run's processes by their command lines.
    `child_roles`: the role of what a process starts, by the role of that process, where the two differ.
    """

    rules: Sequence[RoleRule]
    child_roles: Mapping[str, str]

    def sample(self) -> Iterable[Line]:
        """Lines for the recorder's journal, each with its `kind`; none while the engine does not answer."""


class StateGuardian(Protocol):
    """Sees to it that no state outlives what was lost, where the engine itself would keep it (commit mode `none`)."""

    def watch(self, journal: Journal) -> None:
        """One look, several times a second while the workload runs; journals what it did."""

    def on_driver_exit(self, journal: Journal) -> None:
        """The supervised program has died, and is not started again yet."""


class NoSampler:
    """For an engine that is one process below the supervisor, and writes down itself what it does."""

    rules: Sequence[RoleRule] = ()
    child_roles: Mapping[str, str] = MappingProxyType({})

    def sample(self) -> Iterable[Line]:
        return ()
