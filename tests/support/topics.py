"""Reader of topics, independent of the programs under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from faultline.system.kafka import kafka_client
from faultline.system.settings import Settings
from generators.producer import PHASE


def client(settings: Settings) -> dict[str, Any]:
    """Return client settings to log in at an installation's broker as its harness."""
    return kafka_client(settings.endpoints.kafka, secrets=settings.secrets)


@dataclass(frozen=True)
class Found:
    """One record of a topic."""

    key: str
    value: str
    timestamp_ms: int
    primer: bool


def read_topic(settings: Settings, topic: str) -> list[Found]:
    """Return all records of a topic, by partition and offset."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**client(settings), "group.id": "independent", "enable.auto.commit": False})
    partitions = sorted(consumer.list_topics(topic, timeout=120).topics[topic].partitions)
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=120)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found: dict[int, list[Found]] = {p: [] for p in partitions}
    left = sum(ends.values())
    while left:
        for message in consumer.consume(num_messages=min(left, 1000), timeout=120):
            assert message.error() is None
            primer = any(key == PHASE for key, _ in message.headers() or [])
            key, value = (part.decode() if part else "" for part in (message.key(), message.value()))
            found[message.partition()].append(Found(key, value, message.timestamp()[1], primer))
            left -= 1
    consumer.close()
    # Sort by partition, since the consumer interleaves partitions differently in each run.
    return [one for p in partitions for one in found[p]]
