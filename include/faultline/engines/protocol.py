"""What an engine is to the rest of the house: the evidence that it leaves, in one form, and what it can be asked.

Instants are wall-clock nanoseconds since the epoch. Offsets are ends (the first that is not in it), by partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from faultline.engines.runtime import Program, Runtime, Sampler, StateGuardian, Submission
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.run import Run
from faultline.system.endpoints import Endpoints
from faultline.system.measured_window import CLOCK_RESOLUTION_NS
from faultline.system.settings import Settings

if TYPE_CHECKING:  # recorder and supervisor ask their engine, and need nothing of a configuration
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration

Offsets = Mapping[str, int]

# What `EngineEvent.kind` may be.
KINDS = (
    "answered",  # an application showed itself for the first time
    "registered",  # a process that does work became known to it
    "lost",  # such a process was given up
    "task_started",
    "task_lost",
    "state_loaded",  # a task has read the state of a store; opening what is at hand is no loading
    "snapshot",  # a snapshot of a store reached the checkpoint
    "disconnected",  # a connection to the broker broke
)
CYCLES = ("checkpoint", "snapshot")
GRANULARITIES = ("batch", "record")
# Events that an engine numbers itself run through one row, which stands for a partition.
NUMBERED_PARTITION = "0"


def offsets_by_partition(value: Mapping[Any, Any]) -> dict[str, int]:
    """Offsets by partition as JSON gives them, with both types made sure of."""
    return {str(partition): int(offset) for partition, offset in value.items()}


def covers(committed: Offsets, wanted: Offsets) -> bool:
    """Whether `committed` has reached `wanted` on every partition."""
    return all(committed.get(partition, 0) >= offset for partition, offset in wanted.items())


def uncommitted_count(committed: Offsets, wanted: Offsets) -> int:
    """How many offsets of `wanted` were not committed, over all partitions."""
    return sum(max(0, offset - committed.get(partition, 0)) for partition, offset in wanted.items())


@dataclass(frozen=True)
class Commit:
    """One commit, which ends a batch. `epoch`: the state lineage, from 0; `number`: counts within it.

    `planned_ns`: None where nobody noted it. `starts`: where a later epoch began; only on its first commit.
    """

    epoch: int
    number: int
    planned_ns: int | None
    committed_ns: int
    ends: Offsets
    starts: Offsets | None = None

    def covers(self, offsets: Offsets) -> bool:
        """Whether every partition of `offsets` was committed at least that far."""
        return covers(self.ends, offsets)


@dataclass(frozen=True)
class EngineEvent:
    """Something that the engine was seen to do, and which raw file says so in which words.

    `role`: of the process that it is about, or that did it. `process`: its name, `<application>/<name>` where names
    come again. `task`: the task that did it, known by this name within its process. `store`: of state, which one.
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
        """Where it was read, for a timeline."""
        return f"{self.file}: {self.text}"

    @property
    def name(self) -> str:
        """The process's name within its application."""
        return self.process.rpartition("/")[2]


@dataclass(frozen=True)
class ProcessRun:
    """One life of what the workload supervisor keeps running; either end is None where it was not noted."""

    incarnation: int
    began_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True)
class StateEpoch:
    """A state lineage that was begun because the one before it was lost."""

    number: int
    began_ns: int
    reason: str


@dataclass(frozen=True)
class Batch:
    """One batch as the engine reported it at its end: how long it took, and how much of that it computed, in ms."""

    number: int
    wall_ns: int
    duration_ms: float
    compute_ms: float | None


@dataclass(frozen=True)
class Totals:
    """What a process that does work had done by an instant, since it started: finished tasks, ms of GC and of tasks."""

    process: str
    wall_ns: int
    gc_ms: float
    tasks: float
    task_ms: float


@dataclass(frozen=True)
class Pause:
    """A time in which a process did nothing but collect garbage."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Collections:
    """Garbage collection of one process, by its own log. `process`: as `Totals` and `EngineEvent` name it."""

    role: str
    process: str
    collector: str
    pauses: tuple[Pause, ...]


@dataclass(frozen=True)
class Traces:
    """The evidence of one attempt, from whichever raw files its engine leaves.

    `method`: how the harvest found a tuple's first output, `batch`, `id` or `rank`. `commits`: in order of epoch and
    number. `reached`: the offsets that were committed at the end. `seen`: of each kind in order of time. `lives`: of
    what the workload supervisor restarts. `work`: batches that were reported with their times. `totals`: samples, in
    order of time. `collections`: of each process that logged them, none in attempts from before they were logged.
    `state_rows`: live rows after the last batch that told; `state_bytes`: of the last snapshot and what
    changed since, as a recovery would read them; None where nobody looked. `late_rows`: dropped, since they came late.
    `settings`: those that a user's job or program ran under; None if they were not collected.
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
    state_rows: int | None = None
    state_bytes: int | None = None
    late_rows: int = 0
    settings: Mapping[str, str] | None = None

    def events_of(self, kind: str) -> list[EngineEvent]:
        """What was seen of a kind, in order of time."""
        return [one for one in self.events if one.kind == kind]


@dataclass(frozen=True)
class FaultInterval:
    """The time that belongs to one fault: from its delivery to the next one, which is None for the last."""

    t0_ns: int
    until_ns: int | None = None

    @property
    def earliest_ns(self) -> int:
        """An instant of another clock's grain before this lies before t0."""
        return self.t0_ns - CLOCK_RESOLUTION_NS

    def contains(self, wall_ns: int | None) -> bool:
        """Whether an instant belongs to the fault: not before t0, and before the next fault."""
        return (
            wall_ns is not None and wall_ns >= self.earliest_ns and (self.until_ns is None or wall_ns < self.until_ns)
        )


@dataclass(frozen=True)
class VictimGroup:
    """Victims of one role, as the conductor's lines name them, and the time that belongs to the fault."""

    role: str
    victims: Sequence[Mapping[str, Any]]
    span: FaultInterval


@dataclass(frozen=True)
class Capabilities:
    """What an experiment may ask of an engine.

    `cycles`: whose phases a fault can be aimed at. `granularity`: of its output and its commits.
    """

    commit_modes: frozenset[str]
    cycles: frozenset[str]
    granularity: frozenset[str]

    def unknown_values(self) -> list[str]:
        """What nobody in the house knows of."""
        known = ((self.commit_modes, COMMIT_MODES), (self.cycles, CYCLES), (self.granularity, GRANULARITIES))
        return sorted(one for mine, all_of_them in known for one in mine - set(all_of_them))


class Progress(Protocol):
    """How far a running workload has come; each call looks anew."""

    def committed(self) -> Offsets:
        """Offsets of the newest commit; before the first, where the query began, or nothing."""

    def covering(self, offsets: Offsets) -> int:
        """How many commits there are at whose end all records below `offsets` were taken."""

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        """The commits made after an instant, in order."""

    def runs(self) -> int:
        """How often the query was begun; the last time counts once it has committed."""

    def last_commit_ns(self) -> int:
        """When the newest commit was made; 0 before the first."""

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """The instant at which the first `cycle` at or after `not_before_ns` began; None when none did in time."""


class EvidenceReader(Protocol):
    """How an engine's raw files are read, once a run is over.

    `roles`: of its processes, which a fault can hit, and of what it depends on. `replacer`: in words, who starts
    another process for one that does work and was lost. `job_settings`: what names of settings begin with that a job
    or program may set for itself.
    """

    roles: frozenset[str]
    replacer: str
    job_settings: str

    def traces(self, folder: Path) -> Traces:
        """The traces in the folder of an attempt. Raises InfrastructureError, naming the file that is broken."""

    def is_evidence(self, log: str, line: str) -> bool:
        """Whether the traces are read from this line, among others, of a file of this name under `spark-logs/`."""

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        """When the engine, or who watches over it, noticed what was done to the victims; of several the last one's."""

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        """Why losing these victims changed nothing for the run; None when it did."""


class Engine(EvidenceReader, Protocol):
    """What runs a workload: asked before a run, while it lasts, and at its end.

    `exclusive_workloads`: the workloads that nothing else runs; empty for the default.
    `packages`: the
    installed distributions that it is made of, whose versions an environment names, and what they are in words.
    `parameters`: of a configuration those that not every engine reads, and this one does. `programs`: the folder of
    the checkout that holds what it runs, None where it runs nothing of a build. `error_line`: matches lines of a
    log that say why a workload ended, better than others with an error in them.
    """

    name: str
    exclusive_workloads: frozenset[str]
    capabilities: Capabilities
    packages: Mapping[str, str]
    parameters: frozenset[str]
    programs: str | None
    error_line: re.Pattern[str]

    def build_settings(self) -> dict[str, str]:
        """Its settings that are alike in every experiment; the label of a build hangs on them."""

    def settings(self, config: Configuration) -> dict[str, str]:
        """All of its settings in an experiment, as the record shows them."""

    def check_build(self, spec: BuildSpec, config: Configuration, key: str) -> None:
        """Raises ConfigError, naming the key, for a build under test that it cannot run an experiment with: a setting
        that is not its own or is decided already; of an engine without programs, any."""

    def program_hashes(self, folder: Path) -> dict[str, str]:
        """SHA-256 of each program in such a folder that a build's label hangs on, by its path in there."""

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        """Of its processes that are JVMs, by role: `options`, with names in capitals in place of paths, and `heap_mb`.
        `with_archive`: whether there is an archive of loaded classes. None of an engine that is no Java program."""

    def check(self, config: Configuration) -> None:
        """Raises ConfigError, naming the key, for what it can never run here."""

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        """The build of it that runs an experiment, in words and by its hash; None where that is the installed one."""

    def endpoints(self, settings: Settings, config: Configuration) -> Endpoints:
        """Where an experiment reaches this installation's services: of an engine there may be several builds."""

    def startup_blocker(self, endpoints: Endpoints, config: Configuration) -> str | None:
        """What it lacks to begin at once, in words; None when it lacks nothing."""

    def restart_delays(self, settings: Settings) -> dict[str, Path]:
        """Where a fault holds down those of its embedded services that one can end, by the node that each is."""

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        """What the plan says of where this run of it will be reached, by keys of its own."""

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        """What is to be started; writes the files that it reads."""

    def generator(self, run: Run, runtime: Runtime, arguments: Sequence[str]) -> Program:
        """The generator with these arguments as a job on the engine's cluster."""

    def while_starting(self, run: Run) -> Callable[[], None]:
        """What is to be called now and then until all that was primed is committed: it holds back what can wait."""

    def on_ready(self, run: Run, runtime: Runtime) -> None:
        """All that was primed is committed. What hastened the start so far is taken away here, so that processes which
        a fault makes it start again do it as everybody's do."""

    def sampler(self, run: Run) -> Sampler:
        """What the recorder asks each second."""

    def state_guardian(self, run: Run) -> StateGuardian | None:
        """Who sees to it that lost state stays lost; None where the engine keeps what it should."""

    def progress(self, run: Run) -> Progress:
        """How far the workload has come."""

    def live_reader(self, run: Run) -> Callable[[], Traces]:
        """Reader of what a run has left so far, in part and before any harvest; each call reads what is new."""

    def collect(self, run: Run) -> None:
        """Gathers into the attempt's folder what the run left elsewhere, `batches.json` among it.

        Repeating it gives the same. Raises InfrastructureError when what was left cannot be read.
        """

    def harvester(self, run: Run) -> Callable[[Path], None] | None:
        """Who makes the three tables, as the file says that `faultline.lifecycle.collect.collect_raw_data` writes.

        None: the program `harvest`, which reads both topics on a Spark of its own, whoever wrote them.
        """

    def keep_logs(self, run: Run) -> None:
        """Lets go of memory and processes of a run that is over, and keeps what a later harvest reads. Idempotent."""

    def discard(self, run: Run) -> None:
        """Removes what the run made outside its raw files, once it is harvested or given up. Idempotent."""
