"""Synthetic input and output topics of an experiment, filled in seconds.

The model engine works without delay and error, in update mode: at the end of each batch it emits one output per result
that the batch changed, with the total count so far. One batch is emitted twice, as after a kill. The expected harvest
of these topics is therefore known.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from json import loads
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from faultline.engines.protocol import Commit
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.stock import StockParameters
from faultline.installation.kafka import delete_topics
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_client
from generators.counter_rng import Words, hash_int, hash_long, initial_hashes
from generators.producer import QUEUE_RECORDS, RecordSender, make_producer
from generators.spec import GeneratorSpec
from generators.stock import LATE_MS, OPEN
from generators.stream import make_source

# Time from the planning of a batch to the start of its emission, duration of the emission, and time until the repeated
# emission after a kill.
EMIT_AFTER_MS, EMIT_FOR_MS, AGAIN_AFTER_MS = 300, 10, 1000
STATE_EPOCH_HEADERS = [("lineage", b"0")]


@dataclass(frozen=True)
class Emission:
    """Output of a batch: key, value, and number of tuples that it is the first to reflect."""

    key: str
    value: str
    tuples: int


class ModelEngine(Protocol):
    """Counter of the records of batches, in order."""

    # Total count over all keys, which the audit expects.
    counted: int

    def batch(self, payloads: Sequence[bytes], due_ms: Sequence[int]) -> list[Emission]:
        """Process a batch whose records are due `due_ms` after T0; return its outputs."""


class WordCountModel:
    """Word count with checksums of word positions, as in `spark_jobs/word_count.py`."""

    def __init__(self, partitions: int) -> None:
        self.counted = 0
        self._partitions = partitions
        self._taken = 0
        # By word: count, and checksums of the upper and lower halves.
        self._totals: dict[str, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(3, dtype=np.int64))

    def batch(self, payloads: Sequence[bytes], due_ms: Sequence[int]) -> list[Emission]:
        """Return one output per distinct word of the batch."""
        lines = [payload.decode().split(" ") for payload in payloads]
        lengths = [len(line) for line in lines]
        records = np.repeat(np.arange(self._taken, self._taken + len(lines), dtype=np.uint64), lengths)
        positions = np.concatenate([np.arange(length, dtype=np.uint64) for length in lengths])
        distinct, codes = np.unique(np.array([word for line in lines for word in line]), return_inverse=True)
        grown = np.zeros((len(distinct), 3), dtype=np.int64)
        np.add.at(grown[:, 0], codes, 1)
        for column, half in enumerate(_halves(_tuple_hashes(records, positions, self._partitions)), start=1):
            np.add.at(grown[:, column], codes, half)
        self._taken += len(lines)
        self.counted += len(codes)
        for word, row in zip(distinct.tolist(), grown, strict=True):
            self._totals[word] += row
        return [
            Emission(word, " ".join(map(str, self._totals[word].tolist())), n)
            for word, n in zip(distinct.tolist(), grown[:, 0].tolist(), strict=True)
        ]


def _tuple_hashes(records: Words, positions: Words, partitions: int) -> Words:
    """Return the hashes of words by record and position; record k is in partition k mod `partitions`."""
    by = np.uint64(partitions)
    return hash_int(positions, hash_long(records // by, hash_int(records % by, initial_hashes(len(records)))))


def _halves(hashes: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the upper and the lower half of each hash, as signed numbers."""
    signed = hashes.view(np.int64)
    return signed >> 32, signed << 32 >> 32


class StockJoinModel:
    """Join of positions with the quotes of their stock in sliding windows, summed by user."""

    def __init__(self, config: Configuration) -> None:
        self.counted = 0
        own = config.own
        assert isinstance(own, StockParameters)
        self._window_ms, self._slide_ms = round(own.window_s * 1000), round(own.slide_s * 1000)
        # By window and stock: number and sum of the quotes; positions likewise by user.
        self._quotes: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
        self._held: dict[tuple[int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        # By user and window: number and sum of the pairs.
        self._totals: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])

    def batch(self, payloads: Sequence[bytes], due_ms: Sequence[int]) -> list[Emission]:
        """Return one output per user's window that got a pair from the batch; late records are dropped."""
        changed: set[tuple[int, int]] = set()
        for payload, due in zip(payloads, due_ms, strict=True):
            event = loads(payload)
            at = round(datetime.fromisoformat(event["eventTime"]).timestamp() * 1000)
            if OPEN_MS + due - at >= LATE_MS:
                continue
            for start in range(at // self._slide_ms * self._slide_ms, at - self._window_ms, -self._slide_ms):
                changed.update(self._add((start, event["szcode"]), event))
        return [
            Emission(f"{user}|{start}", f"{pairs} {cents // 100}.{cents % 100:02d}", 1)
            for user, start in sorted(changed)
            for pairs, cents in (self._totals[user, start],)
        ]

    def _add(self, place: tuple[int, str], event: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """Add one event to its stock's window; yield the totals that it changes."""
        if event["stream"] == "STOCK":
            cents = round(event["lastPrice"] * 100)
            self._quotes[place][0] += 1
            self._quotes[place][1] += cents
            for user, (n, shares) in self._held[place].items():
                yield self._count(user, place[0], n, cents * shares)
            return
        held = self._held[place][event["userID"]]
        held[0] += 1
        held[1] += event["openInterest"]
        n, cents = self._quotes[place]
        if n:
            yield self._count(event["userID"], place[0], n, cents * event["openInterest"])

    def _count(self, user: int, start: int, pairs: int, cents: int) -> tuple[int, int]:
        total = self._totals[user, start]
        total[0] += pairs
        total[1] += cents
        self.counted += pairs
        return user, start


OPEN_MS = int(OPEN.astype("int64"))


@dataclass(frozen=True)
class FilledTopics:
    """Content of two filled topics: the committed batches, and the expected harvest.

    `emitted_ms`: sum over all tuples of the time after T0 at which the first output reflects them.
    """

    batches: list[Commit]
    records: int
    outputs: int
    tuples: int
    counted: int
    reemitted: int
    emitted_ms: int
    t0_ms: int


def fill_topics(bootstrap: str, topics: Sequence[str], config: Configuration, records: int) -> FilledTopics:
    """Fill input and output topic with `records` records at the configuration's rate, the last one just before now.

    Raises InfrastructureError if the broker does not acknowledge all of them.
    """
    seconds = records / config.rate
    spec = GeneratorSpec.model_validate(
        {"bootstrap": bootstrap, "topic": topics[0], "partitions": config.partitions, "rate": config.rate,
         "seconds": seconds, "seed": config.seed, **config.input_source()}
    )  # fmt: skip
    made, schedule = make_source(spec), spec.rate_schedule
    assert schedule is not None
    engine: ModelEngine = (
        StockJoinModel(config) if config.workload == "stock_join" else WordCountModel(config.partitions)
    )
    producer = make_producer(bootstrap)
    inputs, outputs = RecordSender(producer, topics[0]), 0
    t0_ms = time.time_ns() // 1_000_000 - round(seconds * 1000) - 10_000
    interval_ms = round(config.checkpoint_interval_s * 1000)
    tuples = reemitted = emitted_ms = 0
    bounds = batch_bounds(records, config.rate, config.checkpoint_interval_s)
    for batch, (first, last) in enumerate(bounds):
        numbers = np.arange(first, last, dtype=np.uint64)
        due_ms = (schedule.due_of(numbers) // 1_000_000).tolist()
        payloads = made.payloads(numbers)
        inputs.send(payloads, (numbers % np.uint64(config.partitions)).tolist(), [t0_ms + due for due in due_ms])
        emissions = engine.batch(payloads, due_ms)
        instants = emission_instants(len(emissions), (batch + 1) * interval_ms)
        tuples += sum(one.tuples for one in emissions)
        emitted_ms += sum(one.tuples * at for one, at in zip(emissions, instants, strict=True))
        _emit(producer, topics[1], emissions, [t0_ms + at for at in instants])
        outputs += len(emissions)
        if batch == len(bounds) // 2:
            _emit(producer, topics[1], emissions, [t0_ms + at + AGAIN_AFTER_MS for at in instants])
            outputs += len(emissions)
            reemitted = len(emissions)
    missing = inputs.flush()
    if missing:
        raise InfrastructureError(f"broker {bootstrap}: {missing} records were not acknowledged; is Kafka up?")
    batches = commits_of(bounds, config.partitions, t0_ms, interval_ms)
    return FilledTopics(batches, records, outputs, tuples, engine.counted, reemitted, emitted_ms, t0_ms)


def batch_bounds(records: int, rate: float, checkpoint_interval_s: float) -> list[tuple[int, int]]:
    """Return first and last (exclusive) record of each batch, one per interval."""
    size = max(1, round(rate * checkpoint_interval_s))
    return [(first, min(first + size, records)) for first in range(0, records, size)]


def emission_instants(outputs: int, planned_ms: int) -> list[int]:
    """Return the emission time of each output of a batch, spread evenly over EMIT_FOR_MS."""
    return [planned_ms + EMIT_AFTER_MS + number * EMIT_FOR_MS // outputs for number in range(outputs)]


def commits_of(bounds: Sequence[tuple[int, int]], partitions: int, t0_ms: int, interval_ms: int) -> list[Commit]:
    """Return the commits of the batches; record k is in partition k mod `partitions`."""
    found = []
    for batch, (_, last) in enumerate(bounds):
        planned_ms = t0_ms + (batch + 1) * interval_ms
        done_ms = planned_ms + EMIT_AFTER_MS + EMIT_FOR_MS
        ends = {str(partition): -(-(last - partition) // partitions) for partition in range(partitions)}
        found.append(Commit(0, batch, planned_ms * 1_000_000, done_ms * 1_000_000, ends))
    return found


def _emit(producer: Any, topic: str, emissions: Sequence[Emission], at_ms: Sequence[int]) -> None:
    """Queue outputs; outputs of a key go to one partition."""
    while len(producer) > max(0, QUEUE_RECORDS - len(emissions)):
        producer.poll(0.001)
    for one, at in zip(emissions, at_ms, strict=True):
        producer.produce(topic, one.value, key=one.key, timestamp=at, headers=STATE_EPOCH_HEADERS)
    producer.poll(0)


@contextmanager
def fresh_topics(bootstrap: str, partitions: int, number: int) -> Iterator[list[str]]:
    """Create topics with unique names; delete them afterwards.

    Raises InfrastructureError if a topic cannot be created or deleted.
    """
    admin = AdminClient(kafka_client(bootstrap, {"log_level": 3}))
    run = uuid.uuid4().hex[:12]
    names = [f"faultline-bench-{run}-{one}" for one in range(number)]
    settings = {"message.timestamp.type": "CreateTime", "retention.ms": str(24 * 3_600_000)}
    made: list[str] = []
    try:
        topics = [NewTopic(one, partitions, 1, config=settings) for one in names]
        for name, future in admin.create_topics(topics).items():
            try:
                future.result()
            except KafkaException as error:
                raise InfrastructureError(f"broker {bootstrap}: topic creation failed: {error.args[0]}") from None
            made.append(name)
        yield names
    finally:
        delete_topics(admin, made)
