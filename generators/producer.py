"""Records to Kafka: an idempotent producer, fed through a loop that runs in C.

How acknowledgements are counted. A Python call per delivery report costs rate (312 against 453
thousand records/s in one trial on a cold broker). With `delivery.report.only.error`
confluent-kafka calls back for failures only. An idempotent producer
reports every record that it could not deliver, and those it
still holds after the last flush
are in its queue, so acked = handed over − failed − still queued is the same truth for less.

How much is on its way. While five records or more of a partition are on their way, librdkafka (2.16) sends no others
to it, and once the linger of those is over it polls for the acknowledgement without a pause. Beside a busy broker
that took 0.25 to 0.65 cores for 1,000 records/s, from the very broker that was to answer. So records
wait here instead, where waiting costs nothing, and leave in one batch when those before them are acknowledged.
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
# The header that tells records beside the schedule from its own: `primer` before the gate, `closing` at the end. No
# user's record has one of this name.
PHASE = "faultline-phase"
PRIMER, CLOSING = "primer", "closing"
# The header that holds a record's number in the schedule, where one was asked for.
NUMBER = "faultline"
# The queue bounds the memory of records on their way: 100,000 of them, about 110 MB of filler words at worst.
QUEUE_RECORDS = 100_000
LINGER_MS = 5
BATCH_BYTES = 131_072
# From here on what is on its way is waited for, in all partitions together; the client's own limit is for each.
FEW_IN_FLIGHT = 5
# More than this does not wait: batches are then full, and the client's own pipeline is faster.
MAX_WAITING = 2_000
# Longer than a broker needs to come back on its data; what is not delivered by then is unknown.
DELIVERY_TIMEOUT_MS = 120_000
FLUSH_TIMEOUT_S = 60.0
_METADATA_TIMEOUT_S = 15.0


def make_producer(bootstrap: str) -> Producer:
    """The producer that every generator uses: idempotent, all acknowledgements, reports for failures only."""
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
    """Hands records of one topic to a producer and accounts for every one of them."""

    def __init__(self, producer: Any, topic: str, check: Callable[[], None] = lambda: None) -> None:
        """`producer`: confluent-kafka's Producer, or a fake; `check` is called while waiting and may raise."""
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
        """Takes records, by default without headers and keys; none is dropped. They leave at once, or with a later
        call.

        Raises GeneratorError when a record can never be sent (too large, no such partition).
        """
        self._waiting.append((payloads, partitions, timestamps_ms, headers, keys))
        self._waiting_count += len(payloads)
        self.sent += len(payloads)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Hands over what waits, unless too much is on its way. Whoever paces calls this now and then."""
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
        """Queues records in the producer; waits while its queue is full."""
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
                    repeat(None),  # the same callback under its other name
                    timestamps_ms,
                    # An argument more for each record costs rate, so there is none where there is no header.
                    *(() if headers is None else (headers,)),
                ),
                maxlen=0,
            )
        except BufferError:
            # Full by size, not by number. The record that failed was taken from the iterator.
            done = len(payloads) - operator.length_hint(rest) - 1
            self._producer.poll(0.01)
            self._check()
            left_headers = None if headers is None else headers[done:]
            left_keys = None if keys is None else keys[done:]
            self._produce(payloads[done:], partitions[done:], timestamps_ms[done:], left_headers, left_keys)
        except KafkaException as error:
            raise GeneratorError(f"topic {self._topic}: a record was refused: {error.args[0]}") from None

    def send_primer(
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
        """Queues one record beside the schedule: header PHASE, `ahead_s` after the present, a reserved key unless it
        is one of a user's data (`keyed` false), which keeps its `key`."""
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
            raise GeneratorError(f"topic {self._topic}: a primer was refused: {error.args[0]}") from None
        self.sent += 1

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> int:
        """Waits until all is acknowledged; returns how many are not after `timeout_s` (still queued or failed)."""
        self._produce_all()
        deadline = time.monotonic() + timeout_s
        while len(self._producer) and time.monotonic() < deadline:
            self._check()
            self._producer.flush(0.1)
        return len(self._producer) + self.failed


class BrokerClient:
    """The few questions a generator asks the broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **load_credentials(), "log_level": 3})

    def check_topic(self, topic: str, partitions: int) -> None:
        """Raises GeneratorError unless `topic` exists with just that many partitions."""
        try:
            found = self._admin.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise GeneratorError(f"broker {self._bootstrap}: {error.args[0]}; is Kafka up?") from None
        if found.error is not None:
            raise GeneratorError(f"topic {topic}: {found.error}; provision it first")
        if len(found.partitions) != partitions:
            raise GeneratorError(f"topic {topic}: has {len(found.partitions)} partitions, not {partitions}")

    def end_offsets(self, topic: str, partitions: int) -> dict[str, int]:
        """The end offset of each partition (partitions as strings)."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, partition): latest for partition in range(partitions)}
        try:
            answers = self._admin.list_offsets(asked, request_timeout=_METADATA_TIMEOUT_S)
            ends = {str(key.partition): int(future.result().offset) for key, future in answers.items()}
        except KafkaException as error:
            raise GeneratorError(f"topic {topic}: no end offsets: {error.args[0]}; is Kafka up?") from None
        return dict(sorted(ends.items(), key=lambda item: int(item[0])))
