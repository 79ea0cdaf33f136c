"""Flink engine: SQL jobs, each in an application-mode cluster of its attempt."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faultline.engines.batches import write_batches
from faultline.engines.flink import traces as own
from faultline.engines.flink.conf_rules import check_conf
from faultline.engines.flink.distribution import VERSION, WORKLOADS, FlinkDistribution
from faultline.engines.flink.live import LiveTraces
from faultline.engines.flink.progress import CheckpointCommits, JobProgress, LoggedPositions
from faultline.engines.flink.sampler import CheckpointSampler
from faultline.engines.protocol import Capabilities, Engine, EngineEvent, Progress, Traces, VictimGroup
from faultline.engines.runtime import Runtime, Sampler, Submission, WithoutPrograms
from faultline.experiment.commit_modes import modes_of
from faultline.experiment.common_parameters import EXACTLY_ONCE, OF_ENGINE
from faultline.experiment.job_file import COUNT, ID, NEWEST, NOTHING, is_sql
from faultline.experiment.run import Run
from faultline.experiment.workloads.user_query import QueryParameters, jars_of, job_of
from faultline.system.endpoints import EMBEDDED, Endpoints
from faultline.system.errors import ConfigError
from faultline.system.journal import read_finished
from faultline.system.settings import Settings, free_port, load_settings

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration

# Commit modes with exactly-once checkpoints.
EXACTLY_ONCE_MODES = ("aligned", "unaligned-barriers")


class Flink(WithoutPrograms):
    """Flink engine; see `engines.protocol.Engine`.

    The role `driver` is the JobManager, and `executor` a TaskManager.
    """

    name = "flink"
    exclusive_workloads: frozenset[str] = frozenset()
    roles = frozenset({"executor", "driver", "kafka", "kafka_connection"})
    capabilities = Capabilities(
        commit_modes=modes_of("flink"),
        cycles=frozenset({"checkpoint"}),
        granularity=frozenset({"record"}),
        workloads=WORKLOADS,
    )
    packages: Mapping[str, str] = MappingProxyType({})
    parameters = frozenset(OF_ENGINE["flink"])
    programs: str | None = None
    replacer = "the workload supervisor"
    job_settings = "table."
    # An error in the SQL, with its line; else the root cause of an exception.
    error_line = re.compile(
        r"^(Caused by: )?[\w.]+\.(SqlParserException|ValidationException|TableException): "
        r"|^Caused by: (?!org\.apache\.(calcite|flink\.sql)\.)"
    )

    def build_settings(self) -> dict[str, str]:
        from faultline.engines.flink.cluster import BUILD_SETTINGS

        return dict(BUILD_SETTINGS)

    def settings(self, config: Configuration) -> dict[str, str]:
        from faultline.engines.flink.cluster import experiment_settings

        return experiment_settings(config)

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        from faultline.engines.flink.cluster import jvms

        return jvms(config)

    def tuples(self, config: Configuration) -> tuple[str, dict[str, Any]]:
        if isinstance(config.own, QueryParameters):
            method = config.kind.latency_method_of(config.own)
            # Without batches, counts are matched by rank.
            return own.METHOD if method == "batch" else method, {**config.kind.tuples(config.own), "ranked": True}
        return own.METHOD, {"tuples": "hashed_words"}

    def check(self, config: Configuration) -> None:
        if isinstance(config.own, QueryParameters):
            _check_query(config.own)
        if config.commit_mode == "none" and config.fault != "none":
            raise ConfigError(
                f"fault: got {config.fault}; expected none with commit_mode none on {self.name}, which could not "
                "restore its state"
            )
        if config.delivery_guarantee == EXACTLY_ONCE and config.commit_mode not in EXACTLY_ONCE_MODES:
            raise ConfigError(
                f"delivery_guarantee: got {EXACTLY_ONCE} with commit_mode {config.commit_mode}; expected commit_mode "
                f"{' or '.join(EXACTLY_ONCE_MODES)}"
            )
        check_conf(config.flink_conf or {})
        if config.target != EMBEDDED:
            raise ConfigError(f"target: got {config.target}; expected {EMBEDDED} with engine=flink")
        if load_settings().placement.is_spread:
            raise ConfigError(
                "engine: got flink; expected services on one host; fix: ./faultline down, then up --hosts 0"
            )
        settings = load_settings()
        FlinkDistribution(settings.home, settings.root).require()

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        return f"Flink {VERSION}", FlinkDistribution(settings.home, settings.root).identity()

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        return {name: free_port() for name in ("rpc", "rest", "blob")}

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        from faultline.engines.flink.submission import submit

        return submit(run, runtime)

    def sampler(self, run: Run) -> Sampler:
        return CheckpointSampler(run.attempt.id, _checkpoints(run), _input(run))

    def progress(self, run: Run) -> Progress:
        folder = _checkpoints(run)
        positions = run.plan.commit_mode == "none"
        read = LoggedPositions(run.attempt.engine_logs) if positions else CheckpointCommits(folder, _input(run))
        return JobProgress(folder, read)

    def live_reader(self, run: Run) -> Callable[[], Traces]:
        return LiveTraces(run.attempt).traces

    def collect(self, run: Run) -> None:
        attempt = run.attempt
        samples = [
            *read_finished(attempt.recorder_journal),
            *CheckpointSampler("", _checkpoints(run), _input(run)).sample(),
        ]
        logs = attempt.engine_logs
        commits = own.commits_of(own.read_logs(logs, own.JOB_MANAGER_LOGS), samples)
        if run.plan.commit_mode == "none":
            commits = own.positions_of(own.read_logs(logs, own.TASK_MANAGER_LOGS))
        write_batches(attempt.folder, commits, method=run.plan.method, reached=own.reached(commits))

    def harvester(self, run: Run) -> Callable[[Path], None] | None:
        return None

    def keep_logs(self, run: Run) -> None:
        """Do nothing: the logs are in the attempt's folder."""

    def discard(self, run: Run) -> None:
        from faultline.engines.flink.submission import folder_of

        shutil.rmtree(run.attempt.checkpoint, ignore_errors=True)
        shutil.rmtree(folder_of(run.attempt), ignore_errors=True)

    def traces(self, folder: Path) -> Traces:
        return own.read_traces(folder)

    def is_evidence(self, log: str, line: str) -> bool:
        return own.is_evidence(log, line)

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        return own.detect(hit, traces)

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        return own.without_effect(hit, traces)


def _check_query(query: QueryParameters) -> None:
    """Raise ConfigError for a job without a form in Flink's SQL."""
    if not is_sql(query.job or ""):
        raise ConfigError(f"job: got {query.job}; expected a SQL file (*.sql) with engine=flink")
    if jars_of(query.jars):
        raise ConfigError("jars: unsupported by the engine flink; fix: omit it")
    if job_of(query).reflects == NEWEST:
        raise ConfigError(f'job: {query.job}: got "reflects" "{NEWEST}"; expected {COUNT}, {ID} or {NOTHING} on flink')


def _checkpoints(run: Run) -> Path:
    from faultline.engines.flink.submission import checkpoints_of

    return checkpoints_of(run.attempt)


def _input(run: Run) -> str:
    return run.plan.topics["input"].name


ENGINE: Engine = Flink()
