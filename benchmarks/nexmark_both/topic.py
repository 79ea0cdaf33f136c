"""Topic with Nexmark events that both engines read."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.speed.spark_job import run_job, submit_command
from fault.identity import KAFKA
from faultline.experiment.config import parse_configuration
from faultline.installation.supervision import marked_processes
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import KafkaEndOffsets, kafka_client, kafka_options
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until

PARTITIONS = 2
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class EventTopic:
    """Topic `name` that ends with event `events`; the states were made of the first `filled`."""

    settings: Settings
    name: str
    filled: int
    events: int

    @property
    def bootstrap(self) -> str:
        return self.settings.endpoints.kafka

    def ends(self) -> dict[str, int]:
        """Return the end offset of each partition."""
        return {str(number): self.events // PARTITIONS for number in range(PARTITIONS)}

    def require(self) -> None:
        """Write the events that the topic lacks. Raises InfrastructureError if it holds others."""
        held = self._held()
        if held == self.events:
            return
        if held not in (0, self.filled):  # an interrupted call wrote them
            self.delete()
            held = self._held()
        self._write(held)
        if (held := self._held()) != self.events:
            raise InfrastructureError(f"topic {self.name}: got {held:,} events; expected {self.events:,}")

    def broker(self) -> psutil.Process:
        """Return the broker's process."""
        found = [one for one in marked_processes(self.settings) if KAFKA.main in one.cmdline()]
        if len(found) != 1:
            raise InfrastructureError(f"kafka: got {len(found)} brokers; expected one")
        return found[0]

    def delete(self) -> None:
        """Delete the topic, if it exists."""
        if self._exists():
            admin = self._admin()  # must outlive its answer
            admin.delete_topics([self.name])[self.name].result(_TIMEOUT_S)
            wait_until(lambda: not self._exists(), timeout_s=_TIMEOUT_S, what=f"kafka: the end of {self.name}")

    def _admin(self) -> AdminClient:
        return AdminClient(kafka_client(self.bootstrap))

    def _exists(self) -> bool:
        return self.name in self._admin().list_topics(timeout=_TIMEOUT_S).topics

    def _held(self) -> int:
        if not self._exists():
            admin, topic = self._admin(), NewTopic(self.name, PARTITIONS, 1, config={"retention.ms": "-1"})
            admin.create_topics([topic])[self.name].result(_TIMEOUT_S)
        return sum(KafkaEndOffsets(self.bootstrap, self.name).read(_TIMEOUT_S).values())

    def _write(self, first: int) -> None:
        rules = parse_configuration({"workload": "nexmark", "query": "q0"}).input_source()["rules"]
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "config.json"
            config = {
                "rules": {**rules, "curve": []},
                "first": first,
                "last": self.events,
                "partitions": PARTITIONS,
                "topic": self.name,
                "bootstrap": self.bootstrap,
                "kafka_options": kafka_options(self.settings),
            }
            file.write_text(json.dumps(config))
            command = submit_command(self.settings, "nexmark_topic", ["--config", str(file)])
            run_job(self.settings, command, Path(scratch))
