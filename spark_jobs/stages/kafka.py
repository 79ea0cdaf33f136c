"""Kafka access of the stages: topic ends, record ranges and producers, with one connection per process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

TIMEOUT_S = 30.0
CONTROL_TIMEOUT_S = 1.0
CHUNK_RECORDS = 50_000
# Environment variable with the path of a JSON object of librdkafka settings with credentials.
LOGIN = "FAULTLINE_KAFKA_LOGIN"


def connection(bootstrap: str) -> dict[str, Any]:
    """Return the client settings for broker and credentials."""
    file = os.environ.get(LOGIN)
    return {"bootstrap.servers": bootstrap, **(json.loads(Path(file).read_text()) if file else {})}


@dataclass(frozen=True)
class RecordRange:
    """Consecutive records of a partition."""

    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: list[int]
    timestamps_ms: list[int]


class TopicEnds:
    """End offsets of topics, read in one request. Raises KafkaException if the broker does not answer."""

    def __init__(self, bootstrap: str, topics: Iterable[str], partitions: int) -> None:
        self._admin = AdminClient(connection(bootstrap))
        self._wanted = {
            TopicPartition(topic, number): OffsetSpec.latest() for topic in topics for number in range(partitions)
        }

    def read(self) -> dict[str, dict[str, int]]:
        """Return topic -> partition -> end offset."""
        found: dict[str, dict[str, int]] = {}
        for place, future in self._admin.list_offsets(self._wanted, request_timeout=TIMEOUT_S).items():
            found.setdefault(place.topic, {})[str(place.partition)] = future.result(TIMEOUT_S).offset
        return found


class ControlSender:
    """Producer that tracks each record: `flush` reports those that were not acknowledged."""

    def __init__(self, bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._failed: list[str] = []
        settings = {**connection(bootstrap), "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**settings, "message.timeout.ms": round(timeout_s * 1000)})

    def send(self, topic: str, key: str | None, value: str | bytes, headers: Any = None) -> None:
        """Send one record; wait while the producer's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=self._delivered)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises ConnectionError if one fails.
        """
        left = self._producer.flush(self._timeout_s + 5)
        failed, self._failed = self._failed, []
        if left or failed:
            raise ConnectionError(f"kafka: {left + len(failed)} records not acknowledged: {(failed or ['timeout'])[0]}")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed.append(error.str())


@cache
def sender(bootstrap: str) -> ControlSender:
    """Return this process's sender of tuples."""
    return ControlSender(bootstrap)


@cache
def control_sender(bootstrap: str, stage: str) -> ControlSender:
    """Return this process's sender of a stage's control messages, with a short timeout.

    Each stage has its own, so that a flush reports only its own failures.
    """
    return ControlSender(bootstrap, CONTROL_TIMEOUT_S)


def read_range(bootstrap: str, topic: str, partition: int, first: int, end: int) -> Iterator[RecordRange]:
    """Yield records [first, end) in chunks.

    Raises KafkaException, also after 30 s without records.
    """
    consumer = _consumer(bootstrap)
    consumer.assign([TopicPartition(topic, partition, first)])
    try:
        while first < end:
            messages = consumer.consume(min(end - first, CHUNK_RECORDS), TIMEOUT_S)
            if not messages:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}:{partition}: no record {first}"))
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
            # The consumer may have read beyond the end.
            messages = [message for message in messages if message.offset() < end]
            if not messages:
                return
            yield RecordRange(
                [message.key() for message in messages],
                [message.value() for message in messages],
                [message.offset() for message in messages],
                [message.timestamp()[1] for message in messages],
            )
            first = messages[-1].offset() + 1
    finally:
        consumer.unassign()


@cache
def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            **connection(bootstrap),
            "group.id": "faultline-stage",  # unused: offsets come from Spark
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
    )


# Messages of the control topic: back-pressure signals and failed tuples.


VERSION = 1


@dataclass(frozen=True)
class Message:
    """Control message.

    `to`: the receiving stage. `act`: a `pressure.PressureSignal`, with the number of steps as `count`; or `failed` or
    `set_aside`, with the number of tuples.
    """

    to: str
    act: str
    count: int = 0


def encode(message: Message) -> bytes:
    """Return the message as JSON, with the version of the format."""
    return json.dumps({"version": VERSION, **vars(message)}, separators=(",", ":")).encode()


def decode(value: bytes | None) -> Message | None:
    """Return the message; None if it is invalid or of another version."""
    try:
        words = json.loads(value or b"")
        if words.pop("version") != VERSION:
            return None
        message = Message(**words)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    plain = isinstance(message.to, str) and isinstance(message.act, str)
    return message if plain and type(message.count) is int and message.count >= 0 else None
