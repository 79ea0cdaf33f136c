"""Interfaces and data types of engines: the evidence in a common form, and the operations that an engine implements.

Instants are wall-clock nanoseconds since 1970. Offsets map a partition to an exclusive end. A *state epoch* is a
history of state that starts after a deliberate loss of all state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from faultline.engines.runtime import Program, Runtime, Sampler, StateGuardian, Submission
from faultline.engines.work import Batch, CheckpointReport, Collections, ProcessExit, Totals
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.run import Run
from faultline.system.endpoints import Endpoints
from faultline.system.measured_window import CLOCK_RESOLUTION_NS
from faultline.system.settings import Settings

if TYPE_CHECKING:  # recorder and supervisor import this module, and do not need configurations
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration

Offsets = Mapping[str, int]

# Values of `EngineEvent.kind`.
KINDS = (
    "answered",  # first answer of an application
    "registered",  # a worker process registered
    "lost",  # a worker process was given up
    "task_started",
    "task_lost",
    "state_loaded",  # a task read the state of a store; opening local state does not count
    "snapshot",  # a snapshot of a store reached the checkpoint
    "disconnected",  # lost connection to the broker
)
CYCLES = ("checkpoint", "snapshot")
GRANULARITIES = ("batch", "record")
# Partition name for events that an engine numbers itself in a single sequence.
NUMBERED_PARTITION = "0"


def offsets_by_partition(value: Mapping[Any, Any]) -> dict[str, int]:
    """Convert offsets by partition, as read from JSON, to strings and integers."""
    return {str(partition): int(offset) for partition, offset in value.items()}


def covers(committed: Offsets, wanted: Offsets) -> bool:
    """Return whether `committed` has reached `wanted` on every partition."""
    return all(committed.get(partition, 0) >= offset for partition, offset in wanted.items())


def uncommitted_count(committed: Offsets, wanted: Offsets) -> int:
    """Return the number of offsets of `wanted` that are not committed, over all partitions."""
    return sum(max(0, offset - committed.get(partition, 0)) for partition, offset in wanted.items())


@dataclass(frozen=True)
class Commit:
    """Commit that ends a batch.

    `epoch`: the state epoch, from 0; `number`: the batch within the epoch. `planned_ns`: None if not recorded.
    `starts`: start offsets of the epoch; only on the first commit of an epoch after 0.
    """

    epoch: int
    number: int
    planned_ns: int | None
    committed_ns: int
    ends: Offsets
    starts: Offsets | None = None

    def covers(self, offsets: Offsets) -> bool:
        """Return whether every partition of `offsets` is committed at least that far."""
        return covers(self.ends, offsets)


@dataclass(frozen=True)
class EngineEvent:
    """Observed event of an engine, with the raw file and text that it is read from.

    `role`: role of the process that the event concerns; `process`: name of that process, `<application>/<name>` if
    names repeat. `task`: the task that caused the event, unique within the process. `store`: the state store concerned.
    """

    kind: str
    role: str
    process: str
    wall_ns: int
    file: str
    text: str
    task: str | None = None
    store: str | None = None

    @property
    def source(self) -> str:
        """Evidence of the event, for a timeline."""
        return f"{self.file}: {self.text}"

    @property
    def name(self) -> str:
        """Name of the process within its application."""
        return self.process.rpartition("/")[2]


@dataclass(frozen=True)
class ProcessRun:
    """One run of a process under the workload supervisor; either end is None if not recorded."""

    incarnation: int
    began_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True)
class StateEpoch:
    """State epoch that started after the previous one was lost."""

    number: int
    began_ns: int
    reason: str


@dataclass(frozen=True)
class Traces:
    """Evidence of one attempt, read from the raw files of its engine.

    `method`: how the harvest finds a tuple's first output: by `batch`, `id` or `rank`. `commits`: sorted by epoch and
    number. `reached`: the offsets committed at the end. `events`: sorted by time within each kind. `process_runs`: runs
    of the supervised process. `batches`: the batches that were reported with times. `totals`: samples, sorted by time.
    `collections`: one entry per process that logged them. `checkpoints`: completed ones; empty for an engine without
    barriers. `job_restarts`: instants at which the engine restarted the job. `worker_exits`: exits of supervised
    workers. Both are None if not reported.

    `state_rows`: live rows after the last batch that reported them. `state_bytes`: size of the last snapshot and the
    later changelog, which a recovery would read; None if not measured. `late_rows`: rows dropped as late. `settings`:
    settings of a user job or program; None if not collected. `per_record`: outputs do not come in batches.
    """

    method: str
    commits: tuple[Commit, ...] = ()
    reached: Offsets = field(default_factory=dict)
    events: tuple[EngineEvent, ...] = ()
    process_runs: tuple[ProcessRun, ...] = ()
    epochs: tuple[StateEpoch, ...] = ()
    batches: tuple[Batch, ...] = ()
    totals: tuple[Totals, ...] = ()
    collections: tuple[Collections, ...] = ()
    checkpoints: tuple[CheckpointReport, ...] = ()
    job_restarts: tuple[int, ...] | None = None
    worker_exits: tuple[ProcessExit, ...] | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    late_rows: int = 0
    settings: Mapping[str, str] | None = None
    per_record: bool = False

    def events_of(self, kind: str) -> list[EngineEvent]:
        """Return the events of a kind, sorted by time."""
        return [one for one in self.events if one.kind == kind]


@dataclass(frozen=True)
class FaultInterval:
    """Time that belongs to one fault: from its delivery to the next delivery, which is None for the last."""

    t0_ns: int
    until_ns: int | None = None

    @property
    def earliest_ns(self) -> int:
        """Earliest instant that counts as t0, given the resolution of other clocks."""
        return self.t0_ns - CLOCK_RESOLUTION_NS

    def contains(self, wall_ns: int | None) -> bool:
        """Return whether an instant belongs to the fault: not before t0, and before the next fault."""
        return (
            wall_ns is not None and wall_ns >= self.earliest_ns and (self.until_ns is None or wall_ns < self.until_ns)
        )


@dataclass(frozen=True)
class VictimGroup:
    """Victims of one role, as the fault scheduler recorded them, and the interval of the fault."""

    role: str
    victims: Sequence[Mapping[str, Any]]
    span: FaultInterval


@dataclass(frozen=True)
class Capabilities:
    """Options of an experiment that an engine supports.

    `cycles`: cycles whose phases a fault can target. `granularity`: granularity of outputs and commits. `workloads`:
    workloads that it runs; None for all that no other engine claims.
    """

    commit_modes: frozenset[str]
    cycles: frozenset[str]
    granularity: frozenset[str]
    workloads: tuple[str, ...] | None = None

    def unknown_values(self) -> list[str]:
        """Return the declared values that are not defined."""
        known = ((self.commit_modes, COMMIT_MODES), (self.cycles, CYCLES), (self.granularity, GRANULARITIES))
        return sorted(one for declared, all_of_them in known for one in declared - set(all_of_them))


class Progress(Protocol):
    """Progress of a running workload; each call reads it again."""

    def committed(self) -> Offsets:
        """Return the offsets of the newest commit; before the first, those where the query started, or none."""

    def covering(self, offsets: Offsets) -> int:
        """Return the number of commits that cover all records below `offsets`."""

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        """Return the commits made after an instant, in order."""

    def runs(self) -> int:
        """Return how often the query was started; the last start counts only after its first commit."""

    def last_commit_ns(self) -> int:
        """Return the instant of the newest commit; 0 before the first."""

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """Return when the first `cycle` at or after `not_before_ns` started; None if none did in time."""


class EvidenceReader(Protocol):
    """Reader of an engine's raw files, used after a run.

    `roles`: roles of the engine's processes that a fault can hit, and of processes that the engine depends on.
    `replacer`: description of what replaces a lost worker process. `job_settings`: prefix of the settings that a user
    job or program may set.
    """

    roles: frozenset[str]
    replacer: str
    job_settings: str

    def traces(self, folder: Path) -> Traces:
        """Return the traces of an attempt's folder.

        Raises InfrastructureError that names the broken file.
        """

    def is_evidence(self, log: str, line: str) -> bool:
        """Return whether the traces need this line of a log with this name under `spark-logs/`."""

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        """Return the event by which the engine or its supervisor detected the loss of the last victim; None if none."""

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        """Return why the loss of these victims did not affect the run, or None if it did."""


class Engine(EvidenceReader, Protocol):
    """Engine that runs workloads, with its operations before, during and after a run.

    `exclusive_workloads`: workloads that only this engine runs; empty for the default engine. `packages`: the installed
    Python distributions that it consists of, with descriptions; records contain their versions. `parameters`:
    configuration parameters that this engine reads and some other engine does not. `programs`: folder of the checkout
    with the programs of a build; None if it runs none. `error_line`: matches log lines that state why a workload ended.
    """

    name: str
    exclusive_workloads: frozenset[str]
    capabilities: Capabilities
    packages: Mapping[str, str]
    parameters: frozenset[str]
    programs: str | None
    error_line: re.Pattern[str]

    def build_settings(self) -> dict[str, str]:
        """Return the settings common to all experiments; they are part of the label of a build."""

    def settings(self, config: Configuration) -> dict[str, str]:
        """Return all settings of an experiment, as the record shows them."""

    def tuples(self, config: Configuration) -> tuple[str, dict[str, Any]]:
        """Return the latency method and the tuple definition, by which the harvest finds a tuple's first output."""

    def check_build(self, spec: BuildSpec, config: Configuration, key: str) -> None:
        """Raise ConfigError, naming the key, for a build under test that this engine cannot run.

        Settings of other programs and reserved settings are rejected; an engine without programs rejects every build.
        """

    def program_hashes(self, folder: Path) -> dict[str, str]:
        """Return the SHA-256 of each program that is part of the label of a build, by relative path."""

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        """Return the options and `heap_mb` of its JVMs by role, with placeholders for paths.

        `with_archive`: whether a CDS archive exists. An engine without JVMs returns nothing.
        """

    def check(self, config: Configuration) -> None:
        """Raise ConfigError, naming the key, for a configuration that can never run here."""

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        """Return description and hash of the engine build of an experiment; None for the installed one."""

    def endpoints(self, settings: Settings, config: Configuration) -> Endpoints:
        """Return the endpoints of this installation's services for an experiment."""

    def startup_blocker(self, endpoints: Endpoints, config: Configuration) -> str | None:
        """Return why an experiment cannot start yet; None if it can."""

    def restart_delays(self, settings: Settings) -> dict[str, Path]:
        """Return the restart-delay files of its embedded services, by node."""

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        """Return the addresses of a run for the attempt plan, by engine-specific keys."""

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        """Write the files that the workload reads, and return the processes to start."""

    def generator(self, run: Run, runtime: Runtime, arguments: Sequence[str]) -> Program:
        """Return the generator with these arguments as a job on the engine's cluster."""

    def while_starting(self, run: Run) -> Callable[[], None]:
        """Return a function to call repeatedly until the preload is committed."""

    def on_ready(self, run: Run, runtime: Runtime) -> None:
        """Remove startup optimisations once the preload is committed.

        Processes that a fault restarts later then start as usual.
        """

    def sampler(self, run: Run) -> Sampler:
        """Return the sampler that the recorder calls each second."""

    def state_guardian(self, run: Run) -> StateGuardian | None:
        """Return the guardian that discards lost state; None if the engine keeps its state."""

    def progress(self, run: Run) -> Progress:
        """Return the progress of the workload."""

    def live_reader(self, run: Run) -> Callable[[], Traces]:
        """Return a reader of partial traces during the run; each call reads what is new."""

    def collect(self, run: Run) -> None:
        """Copy evidence from other places into the attempt's folder, and write `batches.json`. Idempotent.

        Raises InfrastructureError if the evidence cannot be read.
        """

    def harvester(self, run: Run) -> Callable[[Path], None] | None:
        """Return the function that writes the three tables; its argument is the file of `collect.collect_raw_data`.

        None selects the Spark program `harvest`, which reads both topics for any engine.
        """

    def keep_logs(self, run: Run) -> None:
        """Release memory and processes of a finished run, but keep the files that a later harvest reads. Idempotent."""

    def discard(self, run: Run) -> None:
        """Remove files that the run created outside its raw files, after harvest or abandonment. Idempotent."""
