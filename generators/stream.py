"""The records of one process: a source, its share of the schedule, and a bounded buffer ahead of time; replays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import partition_of, stream_key
from generators.data_files import Data
from generators.nexmark import NexmarkEvents, rules_of
from generators.pacing import DueTimes, Shard
from generators.producer import NUMBER, Headers
from generators.send_progress import InputError
from generators.source import ConstantLines, Ids, Source, TextLines
from generators.spec import GeneratorSpec
from generators.state_preload import StateKeys
from generators.stock import Market, StockStreams, closes_of
from generators.zipf import MovingExponent, ZipfLines

# Chunks kept ready. With 20 chunks a second (below) this is 0.2 s of the schedule.
CHUNKS_AHEAD = 4
_LARGEST_CHUNK = 4096
_SMALLEST_CHUNK = 64


def make_source(spec: GeneratorSpec) -> Source:
    """The source that `spec` names. Raises InputError when its corpus or price file is not usable."""
    if spec.source == "zipf":
        moving = _moving_exponent(spec)
        return ZipfLines(spec.skew, spec.vocabulary, spec.words_per_line, spec.seed, spec.repetition, moving)
    if spec.source == "constant":
        return ConstantLines(b"x" * spec.payload_bytes)
    if spec.source == "ids":
        return Ids(spec.iterations)
    if spec.source == "stock":
        return _make_stock(spec)
    if spec.source == "nexmark":
        return make_nexmark(spec)
    if spec.source == "data":
        return Replay(spec.load_data(), spec.seed, spec.repetition)
    return TextLines.load(spec.corpus, spec.words_per_line, spec.seed, spec.repetition)


def make_nexmark(spec: GeneratorSpec) -> NexmarkEvents:
    """The source `nexmark`. Raises InputError for rules that it does not know, or lacks."""
    try:
        return NexmarkEvents(rules_of(spec.rules or {}), spec.rate_schedule, spec.primer_lines)
    except TypeError as error:
        raise InputError(f"rules: {error}") from None


def _make_stock(spec: GeneratorSpec) -> StockStreams:
    schedule = spec.rate_schedule
    if schedule is None:
        raise InputError("rate: the source stock takes its event times from the schedule; give a rate")
    return StockStreams(
        Market(spec.stocks, closes_of(spec.prices)),
        schedule,
        streams=spec.streams,
        users=spec.users,
        skew=spec.skew,
        moving=_moving_exponent(spec),
        watermark_s=spec.watermark_s,
        disorder=spec.disorder,
        late=spec.late,
        seed=spec.seed,
        repetition=spec.repetition,
    )


def _moving_exponent(spec: GeneratorSpec) -> MovingExponent | None:
    curve, schedule = spec.skew_exponents, spec.rate_schedule
    return MovingExponent(curve, schedule) if curve is not None and schedule is not None and curve.is_varying else None


def make_state_keys(spec: GeneratorSpec) -> StateKeys:
    """The filler words that `spec` asks for."""
    return StateKeys(spec.state_mb, spec.state_touch, spec.seed, spec.repetition)


@dataclass(frozen=True)
class RecordChunk:
    """Consecutive local records, ready to send. The lists and `due_ns` have one entry per record."""

    payloads: list[bytes]
    partitions: list[int]
    due_ns: NDArray[np.int64]  # after the start; zeros without a schedule
    headers: list[Headers] | None = None  # None: none of them has any
    keys: list[bytes | None] | None = None  # likewise

    def slice(self, first: int, last: int) -> RecordChunk:
        """The records `first` … `last` − 1, counted within this chunk."""
        if first == 0 and last >= len(self.payloads):
            return self
        headers = None if self.headers is None else self.headers[first:last]
        keys = None if self.keys is None else self.keys[first:last]
        return RecordChunk(
            self.payloads[first:last], self.partitions[first:last], self.due_ns[first:last], headers, keys
        )


class Stream:
    """The local records 0, 1, … of one shard, in order, prepared in chunks.

    At most CHUNKS_AHEAD chunks are held, whatever the length of the schedule. There is no thread:
    `prepare` is called when there is time to spare, and a thread would compete for Python's lock
    with the loop that must be punctual.
    """

    def __init__(self, source: Source, state_keys: StateKeys, spec: GeneratorSpec, shard: Shard) -> None:
        self._source = source
        self._state_keys = state_keys
        self._schedule: DueTimes | None = spec.schedule
        self._shard = shard
        self._partitions = np.uint64(spec.partitions)
        self._numbered = spec.numbered
        self.total = shard.share(spec.total)
        # Preparing a chunk delays the record behind it: small chunks for slow schedules.
        per_second = spec.total / spec.seconds / shard.count if spec.seconds else float("inf")
        self._size = int(min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, per_second / 20)))
        self._chunks: deque[RecordChunk] = deque()
        self._next = 0  # first local record that is not prepared
        self._used = 0  # records of the first chunk that were taken

    def prepare(self) -> bool:
        """Prepares one chunk; False when the buffer is full or all is prepared."""
        if len(self._chunks) >= CHUNKS_AHEAD or self._next >= self.total:
            return False
        n = min(self._size, self.total - self._next)
        records = self._shard.records(self._next, n)
        payloads = self._source.payloads(records)
        self._state_keys.append_to(payloads, records)
        if self._schedule is None:
            due = np.zeros(n, dtype=np.int64)
        else:
            due = self._schedule.due_array(self._shard.record(self._next), self._shard.count, n)
        headers: list[Headers] | None = (
            [[(NUMBER, b"%d" % number)] for number in records.tolist()] if self._numbered else None
        )
        partitions, keys = (records % self._partitions).tolist(), None
        if isinstance(self._source, Replay):
            keys, own = self._source.keys(records), self._source.headers(records)
            if keys is not None:
                partitions = self._partitions_of(keys, partitions)
            if own is not None:
                headers = own if headers is None else [a + b for a, b in zip(own, headers, strict=True)]
        self._chunks.append(RecordChunk(payloads, partitions, due, headers, keys))
        self._next += n
        return True

    def _partitions_of(self, keys: list[bytes | None], without: list[int]) -> list[int]:
        """Partitions of records with these keys; those `without` a key stay where they were to be."""
        assert isinstance(self._source, Replay)
        place, number = self._source.partition, int(self._partitions)
        return [one if key is None else place(key, number) for key, one in zip(keys, without, strict=True)]

    def take(self, n: int) -> RecordChunk:
        """The next records, at least one and at most `n`. Raises IndexError after the last."""
        if not self._chunks and not self.prepare():
            raise IndexError("the schedule has no further record")
        chunk = self._chunks[0]
        last = min(len(chunk.payloads), self._used + n)
        part = chunk.slice(self._used, last)
        self._used = last
        if last == len(chunk.payloads):
            self._chunks.popleft()
            self._used = 0
        return part


# A source that replays data of the user's, over and over when the run is longer than the data.


class Replay:
    """Record k is the one at place (offset + k) mod L of the data.

    Data without times begins at a place that is drawn from seed and repetition, as a text does; data with times begins
    at its beginning, and of each further round the times that values carry are moved by the length of one.
    """

    def __init__(self, data: Data, seed: int, repetition: int) -> None:
        """`data`: at least one record."""
        self._data = data
        self.offset = 0 if data.times_ms else stream_key("replay", seed, repetition) % len(data)
        self._partitions: dict[bytes, int] = {}

    def payloads(self, records: NDArray[np.uint64]) -> list[Any]:
        """The values, bytes or None, of the given records (numbers in the schedule, shape (n,))."""
        rounds, places = self._places(records)
        return [self._data.value(place, round_) for round_, place in zip(rounds.tolist(), places.tolist(), strict=True)]

    def keys(self, records: NDArray[np.uint64]) -> list[bytes | None] | None:
        """Their keys; None when the data has none."""
        keys = self._data.keys
        return [keys[place] for place in self._places(records)[1].tolist()] if keys else None

    def headers(self, records: NDArray[np.uint64]) -> list[Headers] | None:
        """Their headers; None when the data has none."""
        headers = self._data.headers
        return [headers[place] for place in self._places(records)[1].tolist()] if any(headers) else None

    def partition(self, key: bytes, partitions: int) -> int:
        """Where records with this key lie."""
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = partition_of(key, partitions)
        return found

    def primer(self, n: int) -> Iterator[Any]:
        """n values to get warm by. Of data with times all have the first one: what comes after is not late for it."""
        values = self._data.values
        return (values[0 if self._data.times_ms else number % len(values)] for number in range(n))

    def primer_key(self, number: int) -> bytes | None:
        """The key of the primer's record of this number."""
        keys = self._data.keys
        return keys[0 if self._data.times_ms else number % len(keys)] if keys else None

    def _places(self, records: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rounds, places = np.divmod(records.astype(np.int64) + self.offset, len(self._data))
        return rounds, places
