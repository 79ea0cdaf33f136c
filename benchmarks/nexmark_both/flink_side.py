"""One Nexmark query on a Flink cluster: JobManager and one TaskManager with two slots, controlled by REST."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import math
import re
import shutil
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.nexmark_both import flink_queries
from benchmarks.nexmark_both.profile import profile, recording_options
from benchmarks.nexmark_both.topic import PARTITIONS, EventTopic
from benchmarks.nexmark_both.work import (
    CHECKPOINT_S,
    CORES,
    LATENCY_S,
    MOST_S,
    WATERMARK_S,
    WORKER_MB,
    FixedWork,
    Measured,
)
from faultline.engines.flink.cluster import (
    LOGGING_FILE,
    JvmCommands,
    JvmOptions,
    Memory,
    Ports,
    attempt_settings,
    job_id,
    write_configuration,
)
from faultline.engines.flink.distribution import FlinkDistribution
from faultline.engines.flink.tls import make_stores, rest_certificate
from faultline.installation.java import find_java
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_options
from faultline.system.process_ledger import end_processes
from faultline.system.process_tags import run_option
from faultline.system.secrets import HARNESS, jaas_file
from faultline.system.settings import Settings, free_port

START_S, POLL_S = 120.0, 1.0
# Bound of a mini-batch, above the events of two seconds.
MINI_BATCH_ROWS = 400_000
MINI_BATCH: Mapping[str, str] = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": f"{LATENCY_S:g}s",
    "table.exec.mini-batch.size": str(MINI_BATCH_ROWS),
}
COMMON: Mapping[str, str] = {
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.interval": f"{CHECKPOINT_S:g}s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    # Only one checkpoint is needed, as on Spark.
    "execution.checkpointing.num-retained": "1",
    "execution.state-recovery.claim-mode": "CLAIM",
    # Positions are read each second.
    "metrics.fetcher.update-interval": "1000",
    "parallelism.default": str(CORES),
    "restart-strategy.type": "disable",
    "state.backend.type": "rocksdb",
    "table.local-time-zone": "UTC",
    "taskmanager.cpu.cores": f"{CORES}.0",
    "taskmanager.numberOfTaskSlots": str(CORES),
    "web.submit.enable": "false",
}


class FlinkSide:
    """Flink with mini-batches, or without them, its default."""

    def __init__(self, settings: Settings, *, mini_batch: bool) -> None:
        self.name = "flink" if mini_batch else "flink_per_record"
        self._settings, self._tuning = settings, MINI_BATCH if mini_batch else {}

    def fill(self, query: str, topic: EventTopic, folder: Path) -> dict[str, Any]:
        """Process the topic to its end and leave the state in `folder`, as a savepoint."""
        recording = folder / "worker.jfr"
        with self._cluster(query, topic, folder / "cluster", None, recording_options(recording)) as cluster:
            cluster.await_position(topic.events)
            place = cluster.savepoint(folder)
        shutil.rmtree(folder / "cluster")
        java_home = find_java(self._settings.home / "java.json").home
        return {"savepoint": place.name, "profile": profile(java_home, recording)}

    def measure(self, query: str, topic: EventTopic, state: Path, made: Mapping[str, Any], folder: Path) -> Measured:
        """Restore a copy of the state in fresh processes, and process the topic to its end."""
        savepoint = folder / "savepoint"
        shutil.copytree(state / made["savepoint"], savepoint)
        with self._cluster(query, topic, folder / "cluster", savepoint) as cluster:
            work = FixedWork(cluster.processes(), topic.broker())
            with work.sampler:
                work.begin(topic.filled)
                if cluster.await_position(topic.events, work.reached, MOST_S):
                    cluster.checkpoint()
                    work.reached(topic.events)
                work.end()
                results = cluster.results()
            return work.measured(results, cluster.checkpoints(), cluster.plan())

    @contextlib.contextmanager
    def _cluster(
        self, query: str, topic: EventTopic, folder: Path, savepoint: Path | None, jvm_options: Sequence[str] = ()
    ) -> Iterator[FlinkCluster]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        script = folder / "job.sql"
        options = {name.removeprefix("kafka."): value for name, value in kafka_options(self._settings).items()}
        client = {"bootstrap.servers": topic.bootstrap, "group.id": topic.name, **options}
        source = {
            "connector": "kafka",
            "topic": topic.name,
            **{f"properties.{name}": value for name, value in client.items()},
            "scan.startup.mode": "earliest-offset",
            "scan.topic-partition-discovery.interval": "0",
            "format": "json",
        }
        script.write_text(flink_queries.script(query, source, {"connector": "blackhole"}, WATERMARK_S))
        cluster = FlinkCluster(self._settings, folder, topic.name)
        try:
            cluster.start({**COMMON, **self._tuning}, script, savepoint, jvm_options)
            cluster.await_running()
            yield cluster
        finally:
            cluster.stop()


@dataclass
class FlinkCluster:
    """Processes of one job, with their files in `folder`. `mark`: name that tags them."""

    settings: Settings
    folder: Path
    mark: str
    _started: dict[str, psutil.Popen] = field(default_factory=dict)

    def start(
        self, own: Mapping[str, str], script: Path, savepoint: Path | None, jvm_options: Sequence[str] = ()
    ) -> None:
        """Start both processes; `jvm_options` are further ones of the TaskManager's JVM."""
        flink = FlinkDistribution(self.settings.home, self.settings.root)
        flink.require()
        self._ports = Ports(free_port(), free_port(), free_port())
        checkpoints, scratch = self.folder / "checkpoints", self.folder / "scratch"
        self.folder.mkdir(exist_ok=True, mode=0o700)
        for one in (checkpoints, scratch, self.folder / "spark-logs"):
            one.mkdir()
        memory = Memory(2 * WORKER_MB)
        addresses = attempt_settings(checkpoints, scratch, self._ports)
        write_configuration(self.folder, {**own, **memory.settings(), **addresses, **make_stores(self.folder)})
        login = str(jaas_file(self.settings.logins, HARNESS))
        options = JvmOptions(
            run_option(self.mark), (self.folder / LOGGING_FILE).as_uri(), login, str(scratch), collector=""
        )
        java = find_java(self.settings.home / "java.json").executable
        commands = JvmCommands(Path(java), flink, self.folder, options)
        manager = commands.job_manager(job_id(self.mark), script)
        if savepoint is not None:
            at = manager.index("--scriptUri")
            manager[at:at] = ["--fromSavepoint", savepoint.as_uri()]
        executable, *rest = commands.task_manager(memory)
        worker = [executable, *jvm_options, *rest, "-Dtaskmanager.resource-id=worker"]
        environment = {"PATH": "/usr/bin:/bin", "FLINK_CONF_DIR": str(self.folder), **flink.environment()}
        for role, command in (("driver", manager), ("executors", worker)):
            with (self.folder / f"{role}.log").open("wb") as log:
                self._started[role] = psutil.Popen(
                    command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT,
                )  # fmt: skip

    def stop(self) -> None:
        """End both processes."""
        end_processes(self._started.values())
        for process in self._started.values():
            process.wait()

    def await_end(self) -> int:
        """Wait until a job with bounded input has ended; return the JobManager's exit status."""
        return int(self._started["driver"].wait())

    def processes(self) -> Mapping[str, list[psutil.Process]]:
        return {role: [process] for role, process in self._started.items()}

    def await_position(self, events: int, note: Any = lambda position: None, most_s: float = math.inf) -> bool:
        """Wait until each source has read this many events, or for `most_s`; return whether they have.

        `note` gets the position of the slowest.
        """
        last = time.monotonic() + most_s
        sources = [one["id"] for one in self._job()["vertices"] if one["name"].startswith("Source:")]
        while True:
            # Each value is the offset of the last record that a partition's reader has passed on.
            values = [self._metrics(source, r"\.currentOffset$") for source in sources]
            if all(len(one) == PARTITIONS for one in values):
                position = min(sum(offset + 1 for offset in one) for one in values)
                note(position)
                if position >= events or time.monotonic() > last:
                    return position >= events
            self._require_alive()
            time.sleep(POLL_S)

    def results(self) -> int:
        """Return the number of changes that the sink has received."""
        vertices = (one["id"] for one in self._job()["vertices"])
        return sum(sum(self._metrics(vertex, r"\.results\[\d+\]__Writer\.numRecordsIn$")) for vertex in vertices)

    def _metrics(self, vertex: str, pattern: str) -> list[int]:
        """Return the values of the vertex's metrics whose names match."""
        path = f"/jobs/{self.job}/vertices/{vertex}/metrics"
        names = [one["id"] for one in self.get(path) if re.search(pattern, one["id"])]
        wanted = urllib.parse.quote(",".join(names))
        return [int(one["value"]) for one in self.get(f"{path}?get={wanted}")] if names else []

    def checkpoint(self) -> None:
        """Take a checkpoint and wait for it: everything read before is processed then."""
        path = f"/jobs/{self.job}/checkpoints"
        self._await_operation(path, self.post(path, {"checkpointType": "CONFIGURED"})["request-id"])

    def savepoint(self, folder: Path) -> Path:
        """Take a native savepoint in `folder` and return its place."""
        asked = self.post(f"/jobs/{self.job}/savepoints", {"target-directory": folder.as_uri(), "formatType": "NATIVE"})
        done = self._await_operation(f"/jobs/{self.job}/savepoints", asked["request-id"])
        return Path(done["operation"]["location"].removeprefix("file:"))

    def checkpoints(self) -> list[dict[str, float]]:
        """Return bytes and seconds of each completed checkpoint."""
        history = self.get(f"/jobs/{self.job}/checkpoints")["history"]
        return [
            {"bytes": one["checkpointed_size"], "s": one["end_to_end_duration"] / 1000}
            for one in history
            if one["status"] == "COMPLETED"
        ]

    def plan(self) -> str:
        """Return the descriptions of the job's vertices."""
        nodes = self.get(f"/jobs/{self.job}/plan")["plan"]["nodes"]
        return "\n".join(one["description"].replace("<br/>", "\n").replace("&gt;", ">") for one in nodes)

    @property
    def job(self) -> str:
        return job_id(self.mark)

    def get(self, path: str) -> Any:
        return self._ask(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask(path, json.dumps(body).encode())

    @functools.cached_property
    def _connection(self) -> http.client.HTTPSConnection:
        """Connection that stays open, so that polling costs the engine little."""
        certificate = rest_certificate(self.folder)
        context = ssl.create_default_context(cafile=str(certificate))
        context.load_cert_chain(certificate)
        return http.client.HTTPSConnection("127.0.0.1", self._ports.rest, timeout=30, context=context)

    def _ask(self, path: str, body: bytes | None) -> Any:
        try:
            self._connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise InfrastructureError(f"flink: no answer of {path}: {error}") from None
        if answer.status >= 400:
            raise InfrastructureError(f"flink: {path}: status {answer.status}: {content[:300]!r}")
        return json.loads(content)

    def _await_operation(self, path: str, trigger: str) -> Any:
        while True:
            found = self.get(f"{path}/{trigger}")
            if found["status"]["id"] == "COMPLETED":
                operation = found.get("operation") or {}
                if cause := operation.get("failure-cause") or operation.get("failureCause"):
                    raise InfrastructureError(f"flink: {path}: {str(cause)[:500]}")
                return found
            self._require_alive()
            time.sleep(POLL_S / 5)

    def _job(self) -> Any:
        return self.get(f"/jobs/{self.job}")

    def await_running(self) -> None:
        """Wait until all tasks run. Raises InfrastructureError if they do not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self._require_alive()
            with contextlib.suppress(InfrastructureError):
                vertices = self._job()["vertices"]
                if vertices and all(one["status"] == "RUNNING" for one in vertices):
                    return
            time.sleep(POLL_S / 5)
        raise InfrastructureError(f"flink: tasks not running after {START_S:g} s; see {self.folder}/driver.log")

    def _require_alive(self) -> None:
        for role, process in self._started.items():
            if process.poll() is not None:
                raise InfrastructureError(f"flink: {role} ended; see {self.folder}/{role}.log")
