"""One application-mode cluster per attempt: its configuration file and the command lines of its processes.

The JobManager runs the SQL script with Flink's `SqlDriver`; each TaskManager is a process of its own. A TaskManager
started without Flink's shell scripts needs every part of its memory in the configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.engines.flink.distribution import FlinkDistribution
from faultline.engines.gc_log import DRIVER_FILE, SUPERVISED_EXECUTOR_FILE, gc_option
from faultline.system.endpoints import HOST
from faultline.system.process_tags import run_option

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration

JOB_MANAGER_MAIN = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
TASK_MANAGER_MAIN = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
SQL_DRIVER = "org.apache.flink.table.runtime.application.SqlDriver"

# MiB of a TaskManager in addition to `executor_memory_mb`, which is heap and managed memory.
NETWORK_MB, FRAMEWORK_OFF_HEAP_MB, METASPACE_MB, OVERHEAD_MB = 64, 128, 192, 192
FRAMEWORK_HEAP_MB = 128
JOB_MANAGER_HEAP_MB, JOB_MANAGER_OFF_HEAP_MB, JOB_MANAGER_METASPACE_MB = 448, 128, 256

# Retained checkpoints: their offsets are read each second, and a slow reader must not miss one.
RETAINED_CHECKPOINTS = 20
# Job restarts by Flink itself for each fault; with the default heartbeats one lost TaskManager causes about 30. A job
# that always fails uses them up within about two minutes.
JOB_RESTARTS = 100
# Exit statuses of a JobManager that would only repeat itself: ClusterEntrypoint's RUNTIME_FAILURE_RETURN_CODE, and
# ApplicationStatus.FAILED modulo 256.
FINAL_STATUSES: Mapping[int, str] = {
    2: "Flink could not start or restore the job",
    1443 % 256: "Flink's job failed and its restart attempts are used up",
}

LOGGING_FILE = "log4j2.properties"
# Timestamps in UTC, with milliseconds.
LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p [%t] %c{1}: %m%n%throwable
logger.kafka.name=org.apache.kafka
logger.kafka.level=WARN
logger.connections.name=org.apache.kafka.clients.NetworkClient
logger.connections.level=INFO
logger.configuration.name=org.apache.flink.configuration.GlobalConfiguration
logger.configuration.level=WARN
"""
# Flink's own list in `bin/config.sh`.
_OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text", "java.time",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks",
)  # fmt: skip
MODULE_OPTIONS = (
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)


@dataclass(frozen=True)
class Memory:
    """Memory of a TaskManager in MiB; half of `executor_memory_mb` is managed memory, for RocksDB."""

    executor_mb: int

    @property
    def managed_mb(self) -> int:
        return self.executor_mb // 2

    @property
    def heap_mb(self) -> int:
        """Heap of tasks and framework."""
        return self.executor_mb - self.managed_mb

    @property
    def direct_mb(self) -> int:
        return NETWORK_MB + FRAMEWORK_OFF_HEAP_MB

    def settings(self) -> dict[str, str]:
        """Return Flink's settings of all parts."""
        parts = {
            "framework.heap.size": FRAMEWORK_HEAP_MB,
            "task.heap.size": self.heap_mb - FRAMEWORK_HEAP_MB,
            "managed.size": self.managed_mb,
            "network.min": NETWORK_MB,
            "network.max": NETWORK_MB,
            "framework.off-heap.size": FRAMEWORK_OFF_HEAP_MB,
            "task.off-heap.size": 0,
            "jvm-metaspace.size": METASPACE_MB,
            "jvm-overhead.min": OVERHEAD_MB,
            "jvm-overhead.max": OVERHEAD_MB,
        }
        return {f"taskmanager.memory.{name}": f"{size}m" for name, size in parts.items()}


@dataclass(frozen=True)
class Ports:
    """Ports of a JobManager, on loopback."""

    rpc: int
    rest: int
    blob: int


def job_id(attempt: str) -> str:
    """Return the id of the attempt's job, which a restarted JobManager keeps."""
    return hashlib.md5(attempt.encode(), usedforsecurity=False).hexdigest()


def experiment_settings(config: Configuration) -> dict[str, str]:
    """Return the settings of an experiment, as its record shows them, without those of one attempt."""
    return {**BUILD_SETTINGS, **_configured(config), **(config.flink_conf or {})}


BUILD_SETTINGS: Mapping[str, str] = {
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": str(RETAINED_CHECKPOINTS),
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "1s",
    "table.local-time-zone": "UTC",
    "traces.reporters": "slf4j",
    "traces.reporter.slf4j.factory.class": "org.apache.flink.traces.slf4j.Slf4jTraceReporterFactory",
    "web.submit.enable": "false",
    "web.cancel.enable": "false",
}

_MODES: Mapping[str, Mapping[str, str]] = {
    "aligned": {"execution.checkpointing.mode": "EXACTLY_ONCE"},
    "at-least-once": {"execution.checkpointing.mode": "AT_LEAST_ONCE"},
    "unaligned-barriers": {
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "true",
    },
    # TaskManagers log source positions, which replace commits. A restarted job would read the input again.
    "none": {
        "restart-strategy.type": "disable",
        "metrics.reporters": "slf4j",
        "metrics.reporter.slf4j.factory.class": "org.apache.flink.metrics.slf4j.Slf4jReporterFactory",
        "metrics.reporter.slf4j.filter.includes": "*:currentOffset:gauge",
    },
}


def _configured(config: Configuration) -> dict[str, str]:
    """Return the settings that follow from parameters."""
    slots = config.executors * config.executor_cores
    interval_ms = round(config.checkpoint_interval_s * 1000)
    interval = f"{interval_ms}ms"
    if config.commit_mode == "none":
        periodic = {"metrics.reporter.slf4j.interval": interval}
    else:
        # Without the pause, a slow checkpoint is followed by several at once.
        pause = f"{interval_ms // 2}ms"
        periodic = {"execution.checkpointing.interval": interval, "execution.checkpointing.min-pause": pause}
    return {
        "parallelism.default": str(slots),
        "restart-strategy.fixed-delay.attempts": str(JOB_RESTARTS * max(1, len(config.planned_faults()))),
        "taskmanager.numberOfTaskSlots": str(config.executor_cores),
        "taskmanager.cpu.cores": f"{config.executor_cores}.0",
        "state.backend.type": "rocksdb" if config.state_store == "rocksdb" else "hashmap",
        **Memory(config.executor_memory_mb).settings(),
        **periodic,
        **_MODES[config.commit_mode],
    }


def attempt_settings(checkpoints: Path, scratch: Path, ports: Ports) -> dict[str, str]:
    """Return the settings of one attempt: addresses and folders."""
    loopback = ("jobmanager.rpc.address", "jobmanager.bind-host", "rest.address", "rest.bind-address",
                "taskmanager.host", "taskmanager.bind-host")  # fmt: skip
    return {
        **dict.fromkeys(loopback, HOST),
        "jobmanager.rpc.port": str(ports.rpc),
        "rest.port": str(ports.rest),
        "rest.bind-port": str(ports.rest),
        "blob.server.port": str(ports.blob),
        "jobmanager.memory.heap.size": f"{JOB_MANAGER_HEAP_MB}m",
        "jobmanager.memory.off-heap.size": f"{JOB_MANAGER_OFF_HEAP_MB}m",
        "jobmanager.memory.jvm-metaspace.size": f"{JOB_MANAGER_METASPACE_MB}m",
        "execution.checkpointing.dir": checkpoints.as_uri(),
        "io.tmp.dirs": str(scratch),
    }


def write_configuration(folder: Path, settings: Mapping[str, str]) -> None:
    """Write `config.yaml`, which contains passwords, and the logging configuration."""
    file = folder / "config.yaml"
    file.touch(mode=0o600)
    # JSON text is valid YAML.
    file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in sorted(settings.items())))
    (folder / LOGGING_FILE).write_text(LOGGING)


@dataclass(frozen=True)
class JvmOptions:
    """Options of an attempt's JVMs.

    `mark`: process tag. `logging`: address of the logging configuration. `login`: file of the Kafka credentials.
    `collector`: option of the garbage collector; empty for the JVM's choice.
    """

    mark: str
    logging: str
    login: str
    scratch: str
    collector: str = "-XX:+UseSerialGC"

    def job_manager(self) -> list[str]:
        heap = (f"-Xms{JOB_MANAGER_HEAP_MB}m", f"-Xmx{JOB_MANAGER_HEAP_MB}m")
        return self._with(DRIVER_FILE, (*heap, f"-XX:MaxMetaspaceSize={JOB_MANAGER_METASPACE_MB}m"))

    def task_manager(self, memory: Memory) -> list[str]:
        sizes = (
            *(f"-Xms{memory.heap_mb}m", f"-Xmx{memory.heap_mb}m"),
            f"-XX:MaxDirectMemorySize={memory.direct_mb}m",
            f"-XX:MaxMetaspaceSize={METASPACE_MB}m",
        )
        return self._with(SUPERVISED_EXECUTOR_FILE, sizes)

    def _with(self, gc_file: str, sizes: tuple[str, ...]) -> list[str]:
        return [
            *(self.mark, *filter(None, (self.collector,)), *sizes, *MODULE_OPTIONS),
            *(f"-Dlog4j2.configurationFile={self.logging}", f"-Dlog4j.configurationFile={self.logging}"),
            f"-Djava.security.auth.login.config={self.login}",
            f"-Djava.io.tmpdir={self.scratch}",
            gc_option(gc_file),
        ]


def jvms(config: Configuration) -> dict[str, dict[str, Any]]:
    """Return the record's description of the JVMs by role: options with placeholders, and heap size."""
    options, memory = JvmOptions(run_option("ATTEMPT"), "FILE", "FILE", "SCRATCH"), Memory(config.executor_memory_mb)
    return {
        "driver": {"options": options.job_manager(), "heap_mb": JOB_MANAGER_HEAP_MB},
        "executors": {"options": options.task_manager(memory), "heap_mb": memory.heap_mb},
    }


@dataclass(frozen=True)
class JvmCommands:
    """Command lines of one attempt's JVMs, which start in the attempt's folder. `folder`: of the configuration."""

    java: Path
    flink: FlinkDistribution
    folder: Path
    options: JvmOptions

    def job_manager(self, job: str, script: Path) -> list[str]:
        """Return the JobManager's command, without a checkpoint to restore."""
        return [
            *(str(self.java), *self.options.job_manager(), "-cp", self.flink.classpath(), JOB_MANAGER_MAIN),
            *("--configDir", str(self.folder), "--job-classname", SQL_DRIVER, "--job-id", job),
            *("--scriptUri", script.as_uri()),
        ]

    def task_manager(self, memory: Memory) -> list[str]:
        """Return a TaskManager's command, without its resource id."""
        return [
            *(str(self.java), *self.options.task_manager(memory), "-cp", self.flink.classpath(), TASK_MANAGER_MAIN),
            *("--configDir", str(self.folder)),
        ]
