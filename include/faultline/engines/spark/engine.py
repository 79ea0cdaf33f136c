"""Spark engine, the default engine for workloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faultline.engines.protocol import Capabilities, Engine, EngineEvent, Progress, Traces, VictimGroup
from faultline.engines.runtime import Program, Runtime, Sampler, StateGuardian, Submission
from faultline.engines.spark import collect, standalone
from faultline.engines.spark.jit_priority import link_java_archive
from faultline.engines.spark.live import LiveTraces
from faultline.engines.spark.progress import CheckpointProgress
from faultline.engines.spark.rest import DriverSampler
from faultline.engines.spark.shared_storage import CHECKPOINT, PROGRAMS, find_hdfs
from faultline.engines.spark.state_epochs import StateEpochManager
from faultline.engines.spark.traces import DETECTORS, detect, is_evidence, read_traces, without_effect
from faultline.experiment.commit_modes import modes_of
from faultline.experiment.common_parameters import OF_ENGINE
from faultline.experiment.run import Run
from faultline.system.endpoints import EMBEDDED, Endpoints
from faultline.system.errors import ConfigError
from faultline.system.files import read_document
from faultline.system.settings import Settings, free_port, workers_of
from faultline.system.target_registry import endpoints_at

if TYPE_CHECKING:
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration


class Spark:
    """Spark engine; see `engines.protocol.Engine`.

    Modules that read a configuration are imported locally, because recorder and workload supervisor must stay light.
    """

    name = "spark"
    exclusive_workloads: frozenset[str] = frozenset()
    roles = frozenset(DETECTORS)
    capabilities = Capabilities(
        commit_modes=modes_of("spark"),
        cycles=frozenset({"checkpoint", "snapshot"}),
        granularity=frozenset({"batch", "record"}),
    )
    packages: Mapping[str, str] = MappingProxyType({"pyspark": "Spark"})
    parameters = frozenset(OF_ENGINE["spark"])
    programs: str | None = PROGRAMS
    replacer = "the Spark Master"
    job_settings = "spark.sql."
    # An error class, such as `[UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS]`.
    error_line = re.compile(r"\[[A-Z][A-Z0-9]+(_[A-Z0-9]+)+(\.[A-Z0-9_]+)*\]")

    def build_settings(self) -> dict[str, str]:
        from faultline.engines.spark.settings import build_settings

        return build_settings()

    def settings(self, config: Configuration) -> dict[str, str]:
        from faultline.engines.spark.settings import experiment_settings

        return experiment_settings(config)

    def tuples(self, config: Configuration) -> tuple[str, dict[str, Any]]:
        return config.kind.latency_method_of(config.own), config.kind.tuples(config.own)

    def check_build(self, spec: BuildSpec, config: Configuration, key: str) -> None:
        from faultline.engines.spark.build_rules import check_build

        check_build(spec, config, key)

    def program_hashes(self, folder: Path) -> dict[str, str]:
        from faultline.engines.spark.build_rules import program_hashes

        return program_hashes(folder)

    def jvms(self, config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
        from faultline.engines.spark.settings import jvms

        return jvms(config, with_archive=with_archive)

    def check(self, config: Configuration) -> None:
        from faultline.engines.spark.conf_rules import check_conf

        check_conf(config)
        if config.spark_build is not None:
            from faultline.engines.spark.distributions import distribution, require_unchanged
            from faultline.system.settings import load_settings

            own = distribution(load_settings(), config.spark_build)
            assert own is not None
            require_unchanged(own)
        if config.target == EMBEDDED:
            standalone.check_capacity(config)
            standalone.check_tasks(config)
        if config.state_store == "memory" and config.commit_mode == "aligned-changelog":
            raise ConfigError(
                "commit_mode: got aligned-changelog; expected aligned with state_store=memory, because only RocksDB "
                "writes changelogs"
            )

    def alternate_build(self, settings: Settings, config: Configuration) -> tuple[str, str] | None:
        from faultline.engines.spark.distributions import distributions

        if config.spark_build is None:
            return None
        own = distributions(settings).get(config.spark_build)
        return None if own is None else (f"{own.name}, Spark {own.version}", own.sha256)

    def endpoints(self, settings: Settings, config: Configuration) -> Endpoints:
        from faultline.engines.spark.distributions import distribution

        own = distribution(settings, config.spark_build)
        usual = endpoints_at(settings, config.target)
        return usual if own is None else own.endpoints(usual)

    def startup_blocker(self, endpoints: Endpoints, config: Configuration) -> str | None:
        if not endpoints.engine_ui:  # YARN and Kubernetes do not report free slots
            return None
        is_free = standalone.has_free_slots(standalone.master_state(endpoints), config)
        return None if is_free else "Spark has too few free slots for the executors"

    def restart_delays(self, settings: Settings) -> dict[str, Path]:
        from faultline.engines.spark.distributions import readable_distributions

        def delays_of(ports: Mapping[str, int], service_name: Callable[[str], str]) -> dict[str, Path]:
            services = {number: service_name(f"spark-worker-{number}") for number in workers_of(ports)}
            return {
                f"{settings.placement.address(name)}:{ports[f'spark_worker_{number}']}": settings.restart_delay(name)
                for number, name in services.items()
            }

        found = delays_of(settings.ports, str)
        for one in readable_distributions(settings).values():
            found |= delays_of(one.ports, one.service)
        return found

    def addresses(self, endpoints: Endpoints) -> dict[str, Any]:
        port = free_port()
        return {"master": endpoints.engine, "ui": f"http://{endpoints.here}:{port}", "ui_port": port}

    def submit(self, run: Run, runtime: Runtime) -> Submission:
        from faultline.engines.spark.submission import submit

        return submit(run, runtime)

    def generator(self, run: Run, runtime: Runtime, arguments: Sequence[str]) -> Program:
        from faultline.engines.spark.submission import generator_job

        return generator_job(run, runtime, tuple(arguments))

    def while_starting(self, run: Run) -> Callable[[], None]:
        from faultline.engines.spark.jit_priority import JitPriority
        from faultline.engines.spark.program_check import ProgramCheck

        lower_priority = JitPriority(run.attempt).lower
        if read_document(run.attempt.folder / "workload.json")["ends_itself"]:
            return lower_priority
        # The program is not one of Faultline's, so its start is checked.
        check = ProgramCheck(run.attempt, _driver_ui(run), collect.input_topic(run.plan)).check

        def check_start() -> None:
            lower_priority()
            check()

        return check_start

    def on_ready(self, run: Run, runtime: Runtime) -> None:
        from faultline.engines.spark.jit_priority import JitPriority

        JitPriority(run.attempt).restore()
        link_java_archive(run.attempt, runtime)

    def sampler(self, run: Run) -> Sampler:
        return DriverSampler(run.attempt.id, _driver_ui(run))

    def state_guardian(self, run: Run) -> StateGuardian | None:
        return StateEpochManager(run.attempt, _driver_ui(run)) if run.plan.commit_mode == "none" else None

    def progress(self, run: Run) -> Progress:
        hdfs = find_hdfs(run.attempt)
        return CheckpointProgress(
            run.attempt.checkpoint,
            run.attempt.listener_journal,
            None if hdfs is None else hdfs / CHECKPOINT,
            collect.input_topic(run.plan),
        )

    def live_reader(self, run: Run) -> Callable[[], Traces]:
        return LiveTraces(run).traces

    def collect(self, run: Run) -> None:
        collect.gather(run)

    def harvester(self, run: Run) -> Callable[[Path], None] | None:
        if run.plan.paced:
            return None
        from faultline.engines.tables import harvest

        return harvest

    def keep_logs(self, run: Run) -> None:
        collect.keep_logs(run.attempt)

    def discard(self, run: Run) -> None:
        collect.discard(run.attempt, run.settings)

    def traces(self, folder: Path) -> Traces:
        return read_traces(folder)

    def is_evidence(self, log: str, line: str) -> bool:
        return is_evidence(log, line)

    def detect(self, hit: VictimGroup, traces: Traces) -> EngineEvent | None:
        return detect(hit, traces)

    def without_effect(self, hit: VictimGroup, traces: Traces) -> str | None:
        return without_effect(hit, traces)


def _driver_ui(run: Run) -> str:
    return str(run.plan.engine.addresses["ui"])


ENGINE: Engine = Spark()
