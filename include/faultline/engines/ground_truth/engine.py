"""The engine with known truth, as the house sees it: what it can do, how far it is, and what it left."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faultline.engines.batches import write_batches
from faultline.engines.ground_truth import traces as own
from faultline.engines.protocol import Capabilities, Commit, Engine, EngineEvent, Offsets, Progress, Traces, VictimGroup
from faultline.engines.runtime import (
    NoSampler,
    Program,
    Runtime,
    Sampler,
    StateGuardian,
    Submission,
    SupervisedProgram,
    write_program_configuration,
)
from faultline.engines.spark.traces import read_traces as read_from_spark
from faultline.engines.supervisor_journal import driver_exited
from faultline.experiment.run import Run
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.journal import JournalReader, Line, read_journal
from faultline.system.process_tags import run_token
from faultline.system.settings import Settings
from faultline.system.target_registry import endpoints_at

if TYPE_CHECKING:
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration


# By this name in its command line a fault knows the process as its victim (`fault.identity`).
PROGRAM = "faultline.engines.ground_truth"


# How often a commit is looked for that begins a cycle.
CYCLE_POLL_S = 0.02


class TraceProgress:
    """By the journal of the engine, of which each call reads what is new; see `faultline.engines.protocol.Progress`."""

    def __init__(self, path: Path) -> None:
        self._reader = JournalReader(path)
        self._lines: list[Line] = []

    def committed(self) -> Offsets:
        commits = self._commits()
        return commits[-1].ends if commits else {}

    def covering(self, offsets: Offsets) -> int:
        return sum(commit.covers(offsets) for commit in self._commits())

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        return [commit for commit in self._commits() if commit.committed_ns > wall_ns]

    def runs(self) -> int:
        """One at the most: what a killed process did goes on in the next."""
        return min(1, len(self._commits()))

    def last_commit_ns(self) -> int:
        commits = self._commits()
        return commits[-1].committed_ns if commits else 0

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """A cycle begins with each commit. Only later injections of a run ask: a script says when its first fault
        comes, and the configuration refuses one that is aimed."""
        while time.monotonic_ns() < until_mono_ns:
            began = next((one for one in self._commits() if one.committed_ns >= not_before_ns), None)
            if began is not None:
                return began.committed_ns
            time.sleep(CYCLE_POLL_S)
        return None

    def _commits(self) -> list[Commit]:
        self._lines += self._reader.poll()
        return own.commits_of(self._lines)


class GroundTruthEngine:
    """See `engines.protocol.Engine`. It is one process, needs no room on a cluster, and keeps no state on disk.

    Attempts of before it had traces of its own hold forged files of Spark, and are read as Spark's.
    """

    name = "known_truth"
    exclusive_workloads = frozenset({"known_truth"})
    roles = frozenset({"driver"})
    capabilities = Capabilities(
        commit_modes=frozenset({"aligned"}), cycles=frozenset(), granularity=frozenset({"batch", "record"})
    )
    packages: Mapping[str, str] = MappingProxyType({})
    parameters: frozenset[str] = frozenset()
    programs: str | None = None
    replacer = "the workload supervisor"
    job_settings = "spark.sql."
    error_line = re.compile(r"^\w+Error: ")

    def build_settings(self) -> dict[str, str]:
        return {}

    def settings(self, config: Configuration) -> dict[str, str]:
        return {}

    def check_build(self, spec: BuildSpec, config: Configuration, key: str) -> None:
        raise ConfigError(
            f"{key}: {config.workload} runs no programs of a build; leave it out, or use another workload"
        )

    def program_hashes(self, folder: Path) -> dict[str, str]:
        return {}

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        return {}

    def check(self, config: Configuration) -> None:
        """What contradicts its script was refused with the configuration."""

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        return None

    def endpoints(self, settings: Settings, config: Configuration) -> Endpoints:
        return endpoints_at(settings, config.target)

    def startup_blocker(self, endpoints: Endpoints, config: Configuration) -> str | None:
        return None

    def restart_delays(self, settings: Settings) -> dict[str, Path]:
        return {}

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        return {}

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        from faultline.experiment.common_parameters import MAX_RESTARTS

        attempt, plan = run.attempt, run.plan
        told = write_program_configuration(run, {"schedule_s": plan.window_s, "load_end": str(attempt.load_end)})
        command = (sys.executable, "-P", "-m", PROGRAM, "--config", str(told), run_token(attempt.id))
        program = Program("driver", command, {})
        return Submission((SupervisedProgram(program, max(MAX_RESTARTS, len(plan.faults)), plan.restart_delay_s),))

    def generator(self, run: Run, runtime: Runtime, arguments: Sequence[str]) -> Program:
        raise NotImplementedError("generator_on: was refused with the configuration")

    def while_starting(self, run: Run) -> Callable[[], None]:
        return lambda: None

    def on_ready(self, run: Run, runtime: Runtime) -> None:
        pass

    def sampler(self, run: Run) -> Sampler:
        return NoSampler()

    def state_guardian(self, run: Run) -> StateGuardian | None:
        return None

    def progress(self, run: Run) -> Progress:
        return TraceProgress(run.attempt.traces)

    def live_reader(self, run: Run) -> Callable[[], Traces]:
        return lambda: own.read_traces(run.attempt.folder) if run.attempt.traces.exists() else Traces("batch")

    def collect(self, run: Run) -> None:
        commits = own.commits_of(read_journal(run.attempt.traces))
        write_batches(run.attempt.folder, commits, method=run.plan.method, reached=commits[-1].ends if commits else {})

    def harvester(self, run: Run) -> Callable[[Path], None] | None:
        from faultline.engines.ground_truth.harvest import harvest

        return harvest

    def keep_logs(self, run: Run) -> None:
        """Nothing: it holds no memory once its process has ended."""

    def discard(self, run: Run) -> None:
        """Nothing: all it leaves are raw files."""

    def traces(self, folder: Path) -> Traces:
        return own.read_traces(folder) if (folder / own.TRACES_FILE).exists() else read_from_spark(folder)

    def is_evidence(self, log: str, line: str) -> bool:
        return True

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        return driver_exited(hit, traces)

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        return None


ENGINE: Engine = GroundTruthEngine()
