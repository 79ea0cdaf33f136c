"""The engine's transport over a real broker: a consumer without a group, and an idempotent producer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from faultline.engines.known_truth.incarnation import Arrival
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.secrets import WORKLOAD
from generators.producer import PHASE

_AT_ONCE = 2000
_ANSWER_S = 10.0
_FLUSH_S = 60.0
# The output topic is read at a restart, before anything else happens: seconds, not minutes.
_READ_BACK_S = 30.0


class KafkaTransport:
    """`starts`: the first offset to read from each partition of the input topic."""

    def __init__(self, bootstrap: str, source: str, sink: str, starts: Mapping[int, int]) -> None:
        self._bootstrap, self._source, self._sink = bootstrap, source, sink
        self._consumer = _consumer(bootstrap)
        self._consumer.assign([TopicPartition(source, partition, offset) for partition, offset in starts.items()])
        self._failed = ""
        self._producer = Producer(
            {
                **kafka_client(bootstrap, user=WORKLOAD),
                "enable.idempotence": True,
                "acks": "all",
                # Nothing may wait in the queue: what a kill finds there was never emitted, yet is stamped.
                "linger.ms": 0,
                "delivery.report.only.error": True,
                "log_level": 3,
            }
        )

    def poll(self) -> Iterator[Arrival]:
        """What the consumer's thread has fetched. Raises InfrastructureError when it cannot go on."""
        while True:
            messages = self._consumer.consume(_AT_ONCE, 0)
            for message in messages:
                if (error := message.error()) is not None:
                    _refuse(error)
                    continue
                headers = message.headers() or []
                primer = any(name == PHASE for name, _ in headers)
                yield Arrival(message.partition(), message.offset(), message.timestamp()[1], primer)
            if len(messages) < _AT_ONCE:
                return

    def emit(self, key: bytes, value: bytes) -> None:
        """Sends one output record; librdkafka stamps it with the present."""
        while True:
            try:
                self._producer.produce(self._sink, value, key, on_delivery=self._on_failure)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        """Returns when every output is acknowledged. Raises InfrastructureError when one is not within 60 s."""
        left = self._producer.flush(_FLUSH_S)
        if left or self._failed:
            raise InfrastructureError(f"topic {self._sink}: {left} outputs not acknowledged {self._failed}".rstrip())

    def emitted(self) -> Mapping[bytes, int]:
        """How often each key lies in the output topic, read from its beginning to its present end."""
        return Counter(message.key() for message in read_topic(self._bootstrap, self._sink))

    def close(self) -> None:
        """Leaves the broker."""
        self._consumer.close()

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed = str(error)


def read_topic(bootstrap: str, topic: str) -> Iterator[Any]:
    """Every record between a topic's beginning and its present end, in order within each partition.

    Raises InfrastructureError when it cannot be read, or not within 30 s.
    """
    reader = _consumer(bootstrap)
    try:
        known = reader.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in known.partitions]
        ends = {
            place.partition: reader.get_watermark_offsets(place, timeout=_ANSWER_S, cached=False)[1] for place in places
        }
        open_ends = {partition: end for partition, end in ends.items() if end > 0}
        reader.assign([place for place in places if place.partition in open_ends])
        deadline = time.monotonic() + _READ_BACK_S
        while open_ends:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"topic {topic}: not read back within {_READ_BACK_S:g} s")
            for message in reader.consume(_AT_ONCE, 0.01):
                if (error := message.error()) is not None:
                    _refuse(error)
                    continue
                # A record that came since the ends were asked for is not of this reading.
                end = open_ends.get(message.partition(), 0)
                if message.offset() < end:
                    yield message
                if message.offset() + 1 >= end:
                    open_ends.pop(message.partition(), None)
    except KafkaException as error:
        raise InfrastructureError(f"topic {topic}: cannot be read back: {error.args[0]}") from None
    finally:
        reader.close()


def _consumer(bootstrap: str) -> Any:
    return Consumer(
        {
            **kafka_client(bootstrap, user=WORKLOAD),
            # Required, though partitions are assigned and nothing is committed to the broker.
            "group.id": "faultline-known-truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # A fetch answers as soon as there is a byte; the wait only bounds how long an idle one is held.
            "fetch.min.bytes": 1,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "log_level": 3,
        }
    )


def _refuse(error: Any) -> None:
    """Raises InfrastructureError for an error that does not pass by itself."""
    passing = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF)
    if error.fatal() or error.code() not in passing and not error.retriable():
        raise InfrastructureError(f"kafka: {error}; is the broker up, and does the topic exist?")
