"""Processes, samplers and state guardians that an engine provides for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from fault.process_sampler import RoleRule
from faultline.experiment.attempt import write_json
from faultline.experiment.run import Run
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.journal import Journal, Line
from faultline.system.settings import Settings
from faultline.system.target_registry import endpoints_at

if TYPE_CHECKING:  # recorder and supervisor import this module, and do not need configurations
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration


@dataclass(frozen=True)
class Runtime:
    """JVM installation on this machine.

    `cds_archive`: the CDS archive; None if there is none.
    """

    java_home: Path
    cds_archive: Path | None = None


@dataclass(frozen=True)
class Program:
    """Process to start.

    `role`: its name within the run. `command`: the program and its arguments; subclasses define how it is launched.
    `environment`: variables in addition to the inherited ones.
    """

    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class SupervisedProgram:
    """Program that the workload supervisor restarts after a crash.

    It is restarted at most `max_restarts` times, each `restart_delay_s` after its end. 0: the engine restarts it
    itself. `final_statuses`: exit statuses after which a restart would not help, with their meanings.
    """

    program: Program
    max_restarts: int
    restart_delay_s: float
    final_statuses: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """Processes that run a workload together; if one ends, the supervisor ends the others.

    `stops_on_request`: the processes poll the attempt's stop file; otherwise they are ended by a signal.
    """

    processes: tuple[SupervisedProgram, ...]
    stops_on_request: bool = True


@dataclass(frozen=True)
class BatchJob:
    """Batch job: a program of `spark_jobs/` that reads existing data and ends.

    `run`: the run whose topics it reads; the job's processes carry the tag of that run, by which teardown finds them.
    None if it reads only files.
    """

    program: str
    arguments: tuple[str, ...]
    name: str
    run: Run | None = None

    @property
    def is_user_job(self) -> bool:
        """Whether it executes the user's job again, with the run's settings and jars.

        Such a job never shares its process with later jobs.
        """
        return self.run is not None and self.run.attempt.job.is_dir()


def write_program_configuration(run: Run, by_engine: Mapping[str, Any]) -> Path:
    """Write the configuration of the workload's program: the engine's entries and those of the plan.

    Entries of the plan take precedence.
    """
    path = run.attempt.folder / "workload_config.json"
    write_json(path, {**by_engine, **run.plan.program})
    return path


class Sampler(Protocol):
    """Source of the engine samples that the recorder writes each second.

    `rules`: how to find the role of a process from its command line. `child_roles`: role of child processes by that of
    their parent, where the two differ.
    """

    rules: Sequence[RoleRule]
    child_roles: Mapping[str, str]

    def sample(self) -> Iterable[Line]:
        """Return lines for the recorder's journal, each with its `kind`; none if the engine does not answer."""


class StateGuardian(Protocol):
    """Guardian that discards state after a loss in commit mode `none`, because the engine itself would keep it."""

    def watch(self, journal: Journal) -> None:
        """Check once and journal the actions; called several times a second while the workload runs."""

    def on_driver_exit(self, journal: Journal) -> None:
        """Handle the exit of the supervised program, before its restart."""


class WithoutPrograms:
    """Common methods of engines that run neither programs of a build nor services of their own.

    See `faultline.engines.protocol.Engine`.
    """

    name: str

    def check_build(self, spec: BuildSpec, config: Configuration, key: str) -> None:
        raise ConfigError(f"{key}: got a build; expected none: the engine {self.name} runs no programs of a build")

    def program_hashes(self, folder: Path) -> dict[str, str]:
        return {}

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        return {}

    def endpoints(self, settings: Settings, config: Configuration) -> Endpoints:
        return endpoints_at(settings, config.target)

    def startup_blocker(self, endpoints: Endpoints, config: Configuration) -> str | None:
        return None

    def restart_delays(self, settings: Settings) -> dict[str, Path]:
        return {}

    def generator(self, run: Run, runtime: Runtime, arguments: Sequence[str]) -> Program:
        raise NotImplementedError("generator_on: rejected with the configuration")

    def while_starting(self, run: Run) -> Callable[[], None]:
        return lambda: None

    def on_ready(self, run: Run, runtime: Runtime) -> None:
        """Do nothing: a process that restarts later starts as the first one."""

    def state_guardian(self, run: Run) -> StateGuardian | None:
        return None


class NoSampler:
    """Sampler of an engine that is one supervised process and writes its own traces."""

    rules: Sequence[RoleRule] = ()
    child_roles: Mapping[str, str] = MappingProxyType({})

    def sample(self) -> Iterable[Line]:
        return ()
