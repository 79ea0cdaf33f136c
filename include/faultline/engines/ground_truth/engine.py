"""Ground-truth engine: its capabilities, progress and evidence."""

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
    Submission,
    SupervisedProgram,
    WithoutPrograms,
    write_program_configuration,
)
from faultline.engines.spark.traces import read_traces as read_from_spark
from faultline.engines.supervisor_journal import driver_exited
from faultline.experiment.run import Run
from faultline.system.endpoints import Endpoints
from faultline.system.journal import JournalReader, Line, read_journal
from faultline.system.process_tags import run_token
from faultline.system.settings import Settings

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration


# `fault.identity` recognises the victim by this name in the command line.
PROGRAM = "faultline.engines.ground_truth"

# Interval between two reads while waiting for a cycle.
CYCLE_POLL_S = 0.02


class TraceProgress:
    """Progress from the engine's journal; each call reads only new lines.

    See `faultline.engines.protocol.Progress`.
    """

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
        """Return at most 1, because a restarted process continues the work of the killed one."""
        return min(1, len(self._commits()))

    def last_commit_ns(self) -> int:
        commits = self._commits()
        return commits[-1].committed_ns if commits else 0

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """Return the first commit at or after `not_before_ns`; each commit starts a cycle.

        This is called only after the first injection of a run: the script plans the first fault, and the configuration
        rejects faults that target a phase of a cycle.
        """
        while time.monotonic_ns() < until_mono_ns:
            began = next((one for one in self._commits() if one.committed_ns >= not_before_ns), None)
            if began is not None:
                return began.committed_ns
            time.sleep(CYCLE_POLL_S)
        return None

    def _commits(self) -> list[Commit]:
        self._lines += self._reader.poll()
        return own.commits_of(self._lines)


class GroundTruthEngine(WithoutPrograms):
    """Engine of one process that needs no cluster and keeps no state on disk.

    See `faultline.engines.protocol.Engine`. Attempts without a trace journal hold synthetic Spark files and are read as
    attempts of Spark.
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

    def tuples(self, config: Configuration) -> tuple[str, dict[str, Any]]:
        return config.kind.latency_method_of(config.own), config.kind.tuples(config.own)

    def check(self, config: Configuration) -> None:
        """Do nothing: the configuration has already rejected settings that contradict its script."""

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        return None

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        return {}

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        from faultline.experiment.common_parameters import MAX_RESTARTS

        attempt, plan = run.attempt, run.plan
        config_file = write_program_configuration(run, {"schedule_s": plan.window_s, "load_end": str(attempt.load_end)})
        command = (sys.executable, "-P", "-m", PROGRAM, "--config", str(config_file), run_token(attempt.id))
        program = Program("driver", command, {})
        return Submission((SupervisedProgram(program, max(MAX_RESTARTS, len(plan.faults)), plan.restart_delay_s),))

    def sampler(self, run: Run) -> Sampler:
        return NoSampler()

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
        """Do nothing: no memory is held once the process has ended."""

    def discard(self, run: Run) -> None:
        """Do nothing: all files are raw files of the attempt."""

    def traces(self, folder: Path) -> Traces:
        return own.read_traces(folder) if (folder / own.TRACES_FILE).exists() else read_from_spark(folder)

    def is_evidence(self, log: str, line: str) -> bool:
        return True

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        return driver_exited(hit, traces)

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        return None


ENGINE: Engine = GroundTruthEngine()
