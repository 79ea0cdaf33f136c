"""One Nexmark query on Spark: a driver and one executor with two cores, on the standalone cluster."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

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
from faultline.engines.spark.engine import ENGINE
from faultline.engines.spark.settings import (
    DRIVER,
    DRIVER_MEMORY_MB,
    EXECUTORS,
    NEXMARK_SETTINGS,
    ROCKSDB,
    driver_settings,
    kafka_classes,
    logging_option,
    program,
    spark_environment,
)
from faultline.engines.spark.shared_storage import PROGRAMS
from faultline.engines.supervisor_journal import exit_reason
from faultline.installation.java import find_java
from faultline.installation.spark import spark_submit
from faultline.system.child_environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_options
from faultline.system.process_ledger import end_processes, processes_with_mark
from faultline.system.process_tags import RUN_MARK
from faultline.system.secrets import HARNESS, jaas_file, login_file
from faultline.system.settings import Settings
from generators.kafka_credentials import CREDENTIALS_ENV

POLL_S = 0.5
_STATE, _JVM_OPTIONS = "spark.sql.streaming.stateStore.", "spark.executor.extraJavaOptions"


class SparkSide:
    """Spark with micro-batches that take about LATENCY_S."""

    name = "spark"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._java_home = find_java(settings.home / "java.json").home

    def fill(self, query: str, topic: EventTopic, folder: Path) -> dict[str, Any]:
        """Process the topic to its end and leave the checkpoint in `folder`."""
        recording = folder / "worker.jfr"
        with self._run(query, topic, folder, {}, recording_options(recording)) as running:
            running.await_end()
            report = running.report()
        found = profile(self._java_home, recording, report["settled"])
        return {"batch_events": report["batch_events"], "profile": found}

    def measure(self, query: str, topic: EventTopic, state: Path, made: Mapping[str, Any], folder: Path) -> Measured:
        """Continue from a copy of the checkpoint in fresh processes, and process the topic to its end."""
        shutil.copytree(state / "checkpoint", folder / "checkpoint")
        with self._run(query, topic, folder, {"batch_events": made["batch_events"], "most_s": MOST_S}) as running:
            work = FixedWork(running.await_processes(), topic.broker())
            with work.sampler:
                running.await_end(work.end)
            report = running.report()
        batches = [one for one in report["batches"] if one["numInputRows"]]
        work.begin(topic.filled, _start_of(batches[0]))
        position = topic.filled
        for one in batches:
            position += one["events"]
            work.reached(position, _start_of(one) + one["durationMs"]["triggerExecution"] / 1000)
        commits = [{"s": one["durationMs"]["triggerExecution"] / 1000} for one in batches]
        return work.measured(_rows(batches), commits, report["plan"].replace(str(folder), "."))

    @contextlib.contextmanager
    def _run(
        self, query: str, topic: EventTopic, folder: Path, own: Mapping[str, Any], options: Sequence[str] = ()
    ) -> Iterator[SparkRun]:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "query": query,
            "topic": topic.name,
            "bootstrap": topic.bootstrap,
            "kafka_options": kafka_options(self._settings),
            "checkpoint": str(folder / "checkpoint"),
            "ends": topic.ends(),
            "executors": 1,
            "watermark_s": WATERMARK_S,
            "trigger_s": LATENCY_S,
            "report": str(folder / "report.json"),
            **own,
        }
        file = folder / "config.json"
        file.write_text(json.dumps(config))
        mark = f"{topic.name}-{query}"
        conf = {**spark_conf(self._settings), f"spark.executorEnv.{RUN_MARK}": mark}
        conf[_JVM_OPTIONS] = " ".join((conf[_JVM_OPTIONS], *options))
        master = self._settings.endpoints.engine
        command = spark_submit(
            self._settings, conf, program(self._settings, "nexmark_fixed_work"), "--config", str(file),
            master=master, name=mark,
        )  # fmt: skip
        environment = {
            **clean_environment(),
            **spark_environment(self._settings, self._java_home),
            CREDENTIALS_ENV: str(login_file(self._settings.logins, HARNESS)),
        }
        with (folder / "spark.log").open("wb") as log:
            process = psutil.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield SparkRun(process, mark, folder)
        finally:
            end_processes((process, *processes_with_mark(RUN_MARK, mark)))
            process.wait()


class SparkRun:
    """A running program: its driver, its executor, and its report."""

    def __init__(self, process: psutil.Popen, mark: str, folder: Path) -> None:
        self._process, self._mark, self._folder = process, mark, folder

    def await_processes(self) -> dict[str, list[psutil.Process]]:
        """Wait for the executor; return driver and executor."""
        while not (found := processes_with_mark(RUN_MARK, self._mark)):
            if self._process.poll() is not None:
                self.await_end()
            time.sleep(POLL_S)
        parents = [one for one in found if one.ppid() not in {other.pid for other in found}]
        return {DRIVER: [self._process], EXECUTORS: parents}

    def await_end(self, note: Any = lambda: None) -> None:
        """Wait for the report, call `note`, and wait for the end. Raises InfrastructureError if the program fails."""
        noted = False
        while self._process.poll() is None:
            if not noted and (self._folder / "report.json").exists():
                noted = True
                note()
            time.sleep(POLL_S / 5)
        if not noted:
            note()
        if self._process.returncode != 0:
            log = self._folder / "spark.log"
            raise InfrastructureError(f"spark: {exit_reason(log, ENGINE.error_line)}; see {log}")

    def report(self) -> Any:
        return json.loads((self._folder / "report.json").read_text())


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return the settings of the query: resources as Flink's, changelog, and a snapshot each CHECKPOINT_S."""
    options = f"{logging_option(settings)} -Djava.security.auth.login.config={jaas_file(settings.logins, HARNESS)}"
    return {
        **driver_settings(settings.endpoints.here),
        **kafka_classes(settings),
        **NEXMARK_SETTINGS,
        "spark.cores.max": str(CORES),
        "spark.executor.cores": str(CORES),
        "spark.executor.memory": f"{WORKER_MB}m",
        "spark.driver.memory": f"{DRIVER_MEMORY_MB}m",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        f"{_STATE}providerClass": ROCKSDB,
        f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
        f"{_STATE}rocksdb.boundedMemoryUsage": "true",
        f"{_STATE}rocksdb.maxMemoryUsageMB": str(WORKER_MB),
        f"{_STATE}minDeltasForSnapshot": str(round(CHECKPOINT_S / LATENCY_S)),
        f"{_STATE}maintenanceInterval": f"{round(CHECKPOINT_S)}s",
        "spark.driver.extraJavaOptions": options,
        _JVM_OPTIONS: options,
        "spark.executorEnv.PYTHONPATH": str(settings.root / PROGRAMS),
        f"spark.executorEnv.{CREDENTIALS_ENV}": str(login_file(settings.logins, HARNESS)),
    }


def _start_of(batch: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(batch["timestamp"]).replace("Z", "+00:00")).timestamp()


def _rows(batches: list[Any]) -> int:
    """Return the results that all batches emitted."""
    found = 0
    for one in batches:
        results = one["observedMetrics"]["results"]
        found += int(results["rows"] if isinstance(results, dict) else results[0])
    return found
