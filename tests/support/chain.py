"""The program of the workload `topology` on a real broker and a local Spark; the test sends its input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from faultline.engines.spark.checkpoint import latest_offsets
from faultline.engines.spark.settings import kafka_classes
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.config import parse_configuration
from faultline.experiment.prerequisites import Prepared
from faultline.installation.java import find_java
from faultline.installation.spark import spark_home
from faultline.system.journal import read_journal
from faultline.system.kafka import kafka_options
from faultline.system.secrets import HARNESS, jaas_file, login_file
from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until
from generators.kafka_credentials import CREDENTIALS_ENV
from tests.support.installation import Installation
from tests.support.processes import words_of
from tests.support.spark_session import local_settings
from tests.support.topics import client

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
LIMIT_S = 240.0
MOST_STARTS = 6


@dataclass
class ChainRun:
    """One chain of stages under test; restarts a killed program like the supervisor.

    `values`: its configuration.
    """

    installation: Installation
    folder: Path
    values: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    sent: int = 0
    starts: int = 0

    def __post_init__(self) -> None:
        self.config = parse_configuration({"workload": "topology", "partitions": 1, **self.values})
        self.attempt = Attempt(self.folder / "20261122T000000Z-c0ffee")
        self.attempt.folder.mkdir(parents=True)
        partitions = self.config.kind.topics(self.config.own, self.config)
        self.topics = {role: f"{self.folder.name}-{role}" for role in ("input", "output", *partitions)}
        self.bootstrap = self.installation.settings.endpoints.kafka
        admin = AdminClient(client(self.installation.settings))
        new = [
            NewTopic(name, num_partitions=partitions.get(role, 1), replication_factor=1)
            for role, name in self.topics.items()
        ]
        for future in admin.create_topics(new).values():
            future.result()
        prepared = Prepared(self.attempt, self.topics, {"memcached": 1}, 0)
        write_json(
            self.attempt.folder / "config.json",
            {
                **self.config.kind.program_configuration(prepared, self.config.own, self.config),
                "bootstrap": self.bootstrap,
                "kafka_options": kafka_options(self.installation.settings),
                "input_topic": self.topics["input"],
                "output_topic": self.topics["output"],
                "checkpoint": str(self.attempt.checkpoint),
                "listener_log": str(self.attempt.listener_journal),
                "checkpoint_interval_s": self.config.checkpoint_interval_s,
                "stop_file": str(self.attempt.stop_file),
                "executors": 0,  # the driver's own JVM
                "primer": {"records": 0, "batches": 1},
            },
        )

    def start(self) -> None:
        """Start the program, from its checkpoint if there is one."""
        secrets = self.installation.settings.secrets
        settings = {
            **local_settings(self.folder),
            "spark.master": f"local[{self.config.executor_cores}]",
            "spark.scheduler.mode": "FAIR",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": str(self.config.shuffle_partitions),
            **kafka_classes(self.installation.settings),
            "spark.driver.extraJavaOptions": f"-Djava.security.auth.login.config={jaas_file(secrets, HARNESS)}",
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        program = str(ROOT / "spark_jobs" / "topology.py")
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java(self.folder / "java.json").home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(ROOT / "spark_jobs"),
            "PYSPARK_PYTHON": sys.executable,
            CREDENTIALS_ENV: str(login_file(secrets, HARNESS)),
        }
        with (self.folder / "program.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-submit"), *options, program, "--config", self._config],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    @property
    def _config(self) -> str:
        return str(self.attempt.folder / "config.json")

    def send(self, lines: Iterable[str]) -> None:
        """Send lines to the input topic."""
        producer = Producer(client(self.installation.settings))
        for line in lines:
            producer.produce(self.topics["input"], line)
            self.sent += 1
        assert not producer.flush(30)

    def await_through(self) -> None:
        """Wait until the chain has processed all input; restart the program if it ends."""
        wait_until(
            self.is_through, timeout_s=LIMIT_S, what=lambda: f"the chain: {self.sent} lines; {self._exit_reason()}"
        )

    def is_through(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            self.starts += 1
            assert self.starts <= MOST_STARTS, self._exit_reason()
            self.start()
        return latest_offsets(self.attempt.checkpoint).get("0", 0) >= self.sent

    def finish(self) -> int:
        """Stop the program and return its status."""
        assert self.process is not None
        self.attempt.stop_file.touch()
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        """Kill the program and its children if it runs."""
        if self.process is not None and self.process.poll() is None:
            victims = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for victim in victims:
                victim.kill()
            self.process.wait(120)

    def planners(self) -> list[psutil.Process]:
        """Return the planner processes, one for each stage, once all have started."""
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if PLANNER in " ".join(words_of(child.pid)):
                found.append(child)
        return sorted(found, key=lambda one: one.pid)

    def journal(self, event: str) -> list[dict[str, Any]]:
        """Return the journal entries of this event."""
        return [line for line in read_journal(self.attempt.folder / "topology.jsonl") if line["event"] == event]

    def _exit_reason(self) -> str:
        text = (self.folder / "program.log").read_text(errors="replace")
        return " / ".join(line for line in text.splitlines() if "Error" in line or "Exception" in line)[-600:]
