"""Kafka producer: idempotent, fed through a loop that runs in C.

Acknowledgements. A Python call per delivery report costs throughput (312 instead of 453 thousand records/s in one trial
on a cold broker). With `delivery.report.only.error` confluent-kafka reports failures only. An idempotent producer
reports every record that it could not deliver, and records left after the last flush are still in its queue. So acked =
sent − failed − queued.

Records in flight. While five or more records of a partition are in flight, librdkafka (2.16) sends that partition no
others; after the linger time it polls for the acknowledgement without a pause. At 1,000 records/s this took 0.25 to
0.65 cores, which a busy broker then lacked. So records wait in `RecordSender` at no cost, and leave in one batch once
earlier ones are acknowledged.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from generators.kafka_credentials import load_credentials
from generators.send_progress import GeneratorError

PRIMER_KEY = "__faultline_primer__"
# Header of records outside the schedule: `primer` before T0, `closing` at the end. User records must not have it.
PHASE = "faultline-phase"
PRIMER, CLOSING = "primer", "closing"
# Header with a record's number in the schedule, if requested.
NUMBER = "faultline"
# Bounds the memory of records in flight: about 110 MB for 100,000 state keys.
QUEUE_RECORDS = 100_000
LINGER_MS = 5
BATCH_BYTES = 131_072
# From this number in flight, over all partitions, records wait; the client's own limit is per partition.
FEW_IN_FLIGHT = 5
# Above this number records do not wait: batches are full, and the client's own pipeline is faster.
MAX_WAITING = 2_000
# Longer than a broker restart with existing data; a record without acknowledgement after this time counts as unknown.
DELIVERY_TIMEOUT_MS = 120_000
FLUSH_TIMEOUT_S = 60.0
_METADATA_TIMEOUT_S = 15.0


def make_producer(bootstrap: str) -> Producer:
    """Return the producer of every generator: idempotent, all acknowledgements, reports for failures only."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            **load_credentials(),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "delivery.report.only.error": True,
            "log_level": 3,
        }
    )


Headers = list[tuple[str, bytes | None]]
Keys = Sequence[bytes | None]
Records = tuple[Sequence[bytes | None], Sequence[int], Sequence[int], Sequence[Headers] | None, Keys | None]


class RecordSender:
    """Sender of the records of one topic that accounts for every record."""

    def __init__(self, producer: Any, topic: str, check: Callable[[], None] = lambda: None) -> None:
        """Wrap a confluent-kafka Producer or a fake; `check` is called while waiting and may raise."""
        self._producer = producer
        self._topic = topic
        self._check = check
        self._waiting: deque[Records] = deque()
        self._waiting_count = 0
        self.sent = 0
        self.failed = 0
        self.last_error = ""

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed += 1
            self.last_error = str(error)

    def _await_room(self, n: int) -> None:
        while len(self._producer) > QUEUE_RECORDS - n:
            self._producer.poll(0.001)
            self._check()

    def send(
        self,
        payloads: Sequence[bytes | None],
        partitions: Sequence[int],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None = None,
        keys: Keys | None = None,
    ) -> None:
        """Accept records, by default without headers and keys; they leave at once or with a later call.

        Raises GeneratorError if a record can never be sent (too large, no such partition).
        """
        self._waiting.append((payloads, partitions, timestamps_ms, headers, keys))
        self._waiting_count += len(payloads)
        self.sent += len(payloads)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Pass on waiting records unless too many are in flight; the pacing loop calls this regularly."""
        self._producer.poll(0)
        if self._waiting_count and (self._waiting_count > MAX_WAITING or len(self._producer) < FEW_IN_FLIGHT):
            self._produce_all()

    def _produce_all(self) -> None:
        while self._waiting:
            records = self._waiting.popleft()
            self._waiting_count -= len(records[0])
            self._produce(*records)

    def _produce(
        self,
        payloads: Sequence[bytes | None],
        partitions: Sequence[int],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None,
        keys: Keys | None,
    ) -> None:
        """Queue records in the producer; wait while its queue is full."""
        self._await_room(len(payloads))
        rest = iter(payloads)
        try:
            deque(
                map(
                    self._producer.produce,
                    repeat(self._topic),
                    rest,
                    repeat(None) if keys is None else iter(keys),
                    partitions,
                    repeat(self._on_failure),
                    repeat(None),  # `on_delivery`, the second parameter for that callback
                    timestamps_ms,
                    # An extra argument per record costs throughput.
                    *(() if headers is None else (headers,)),
                ),
                maxlen=0,
            )
        except BufferError:
            # The queue is full by bytes, not by records. The failed record was already taken from the iterator.
            done = len(payloads) - operator.length_hint(rest) - 1
            self._producer.poll(0.01)
            self._check()
            left_headers = None if headers is None else headers[done:]
            left_keys = None if keys is None else keys[done:]
            self._produce(payloads[done:], partitions[done:], timestamps_ms[done:], left_headers, left_keys)
        except KafkaException as error:
            raise GeneratorError(f"topic {self._topic}: send failed: {error.args[0]}") from None

    def send_preload_record(
        self,
        value: bytes | None,
        number: int,
        partition: int,
        phase: str = PRIMER,
        *,
        ahead_s: float = 0.0,
        key: bytes | None = None,
        keyed: bool = True,
    ) -> None:
        """Queue one record outside the schedule: header PHASE and a timestamp `ahead_s` in the future.

        The record gets a reserved key; user data (`keyed` False) gets `key`.
        """
        self._produce_all()
        self._await_room(1)
        try:
            self._producer.produce(
                self._topic,
                value,
                key=f"{PRIMER_KEY}{number}" if keyed else key,
                partition=partition,
                on_delivery=self._on_failure,
                timestamp=time.time_ns() // 1_000_000 + round(ahead_s * 1000),
                headers=[(PHASE, phase.encode())],
            )
        except KafkaException as error:
            raise GeneratorError(f"topic {self._topic}: preload failed: {error.args[0]}") from None
        self.sent += 1

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> int:
        """Wait for acknowledgements; return the records without one after `timeout_s` (queued or failed)."""
        self._produce_all()
        deadline = time.monotonic() + timeout_s
        while len(self._producer) and time.monotonic() < deadline:
            self._check()
            self._producer.flush(0.1)
        return len(self._producer) + self.failed


class BrokerClient:
    """Broker queries of a generator."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **load_credentials(), "log_level": 3})

    def check_topic(self, topic: str, partitions: int) -> None:
        """Raise GeneratorError unless `topic` exists with this number of partitions."""
        try:
            found = self._admin.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise GeneratorError(f"broker {self._bootstrap}: query failed: {error.args[0]}; fix: start Kafka") from None
        if found.error is not None:
            raise GeneratorError(f"topic {topic}: {found.error}; fix: create it first")
        if len(found.partitions) != partitions:
            raise GeneratorError(f"topic {topic}: got {len(found.partitions)} partitions; expected {partitions}")

    def end_offsets(self, topic: str, partitions: int) -> dict[str, int]:
        """Return the end offset of each partition (partitions as strings)."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        requests = {TopicPartition(topic, partition): latest for partition in range(partitions)}
        try:
            replies = self._admin.list_offsets(requests, request_timeout=_METADATA_TIMEOUT_S)
            ends = {str(key.partition): int(future.result().offset) for key, future in replies.items()}
        except KafkaException as error:
            raise GeneratorError(f"topic {topic}: no end offsets: {error.args[0]}; fix: start Kafka") from None
        return dict(sorted(ends.items(), key=lambda item: int(item[0])))
