"""Toy engine for the walk-through "add an engine": one process, whose `Traces` are a JSON file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from faultline.engines.batches import write_batches
from faultline.engines.protocol import Capabilities, Commit, EngineEvent, ProcessRun, StateEpoch, Traces
from faultline.engines.runtime import NoSampler, Program, Submission, SupervisedProgram, write_program_configuration
from faultline.engines.supervisor_journal import SUPERVISOR_JOURNAL, driver_exited, process_runs_of
from faultline.engines.work import Batch, Totals
from faultline.system.journal import read_finished

SLATE = "slate.json"
# Class of each entry in a list of the traces.
ENTRY_CLASSES = {
    "commits": Commit,
    "events": EngineEvent,
    "process_runs": ProcessRun,
    "epochs": StateEpoch,
    "batches": Batch,
    "totals": Totals,
}


def read_slate(folder: Path) -> Traces:
    values = json.loads((folder / SLATE).read_text())
    return Traces(
        **{**values, **{name: tuple(kind(**one) for one in values[name]) for name, kind in ENTRY_CLASSES.items()}}
    )


class SlateProgress:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _commits(self) -> tuple[Commit, ...]:
        return read_slate(self._folder).commits if (self._folder / SLATE).exists() else ()

    def committed(self) -> Any:
        commits = self._commits()
        return commits[-1].ends if commits else {}

    def covering(self, offsets: Any) -> int:
        return sum(commit.covers(offsets) for commit in self._commits())

    def runs(self) -> int:
        return min(1, len(self._commits()))

    def last_commit_ns(self) -> int:
        return max((commit.committed_ns for commit in self._commits()), default=0)

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        return None


class Slate:
    name = "slate"
    exclusive_workloads = frozenset({"word_count"})
    roles = frozenset({"driver", "executor"})
    capabilities = Capabilities(
        commit_modes=frozenset({"aligned"}), cycles=frozenset(), granularity=frozenset({"batch"})
    )
    packages: Mapping[str, str] = MappingProxyType({"chalk": "Chalk"})
    parameters: frozenset[str] = frozenset()
    programs = None
    replacer = "none"
    job_settings = "slate."
    error_line = re.compile("chalk failed")

    def build_settings(self) -> dict[str, str]:
        return {"slate.chalk": "white"}

    def settings(self, config: Any) -> dict[str, str]:
        return {**self.build_settings(), "slate.executors": str(config.executors)}

    def tuples(self, config: Any) -> tuple[str, dict[str, Any]]:
        return config.kind.latency_method_of(config.own), config.kind.tuples(config.own)

    def check_build(self, spec: Any, config: Any, key: str) -> None:
        from faultline.system.errors import ConfigError

        raise ConfigError(f"{key}: unsupported by engine slate; fix: remove it")

    def program_hashes(self, folder: Any) -> dict[str, str]:
        return {}

    def jvms(self, config: Any, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        return {}

    def check(self, config: Any) -> None:
        from faultline.system.errors import ConfigError

        if config.executors > 2:
            raise ConfigError(f"executors: got {config.executors}; expected at most 2")

    def alternate_build(self, settings: Any, config: Any) -> tuple[str, str] | None:
        return None

    def endpoints(self, settings: Any, config: Any) -> Any:
        return settings.endpoints

    def startup_blocker(self, endpoints: Any, config: Any) -> str | None:
        return None if Path(endpoints.engine).is_dir() else "slate: folder missing"

    def restart_delays(self, settings: Any) -> dict[str, Path]:
        return {"wall": settings.restart_delay("wall")}

    def addresses(self, endpoints: Any) -> dict[str, Any]:
        return {"wall": endpoints.engine}

    def submit(self, run: Any, runtime: Any) -> Submission:
        path = write_program_configuration(run, {"slate": str(run.attempt.folder / SLATE)})
        program = "import json, sys; open(json.load(open(sys.argv[1]))['slate'] + '.began', 'w'); sys.exit(3)"
        command = (sys.executable, "-c", program, str(path))
        return Submission(
            (SupervisedProgram(Program("driver", command, {"CHALK": "white"}), max_restarts=1, restart_delay_s=0),)
        )

    def generator(self, *_: Any) -> Program:
        raise NotImplementedError

    def while_starting(self, run: Any) -> Callable[[], None]:
        return lambda: None

    def on_ready(self, run: Any, runtime: Any) -> None:
        pass

    def sampler(self, run: Any) -> NoSampler:
        return NoSampler()

    def state_guardian(self, run: Any) -> None:
        return None

    def progress(self, run: Any) -> SlateProgress:
        return SlateProgress(run.attempt.folder)

    def live_reader(self, run: Any) -> Callable[[], Traces]:
        return lambda: read_slate(run.attempt.folder)

    def collect(self, run: Any) -> None:
        found = read_slate(run.attempt.folder)
        write_batches(run.attempt.folder, found.commits, method=run.plan.method, reached=found.reached)

    def harvester(self, run: Any) -> None:
        return None  # its output goes through Kafka like that of other engines

    def keep_logs(self, run: Any) -> None:
        return None

    def discard(self, run: Any) -> None:
        (run.attempt.folder / f"{SLATE}.began").unlink(missing_ok=True)

    def traces(self, folder: Path) -> Traces:
        found = read_slate(folder)
        assert found.process_runs == process_runs_of(read_finished(folder / SUPERVISOR_JOURNAL))
        return found

    def is_evidence(self, log: str, line: str) -> bool:
        return True

    def detect(self, hit: Any, traces: Traces) -> EngineEvent | None:
        lost = (one for one in traces.events_of("lost") if hit.span.contains(one.wall_ns))
        return driver_exited(hit, traces) if hit.role == "driver" else next(lost, None)

    def without_effect(self, hit: Any, traces: Traces) -> str | None:
        return None


ENGINE = Slate()
