"""Records of one process: a source, its shard of the schedule, a bounded buffer, and the replay of data."""

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

# Prepared chunks. At 20 chunks per second (below) this is 0.2 s of the schedule.
CHUNKS_AHEAD = 4
_LARGEST_CHUNK = 4096
_SMALLEST_CHUNK = 64


def make_source(spec: GeneratorSpec) -> Source:
    """Return the source of `spec`. Raises InputError if its corpus or price file is not usable."""
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
    """Return the source `nexmark`. Raises InputError for unknown or missing rules."""
    try:
        return NexmarkEvents(rules_of(spec.rules or {}), spec.rate_schedule, spec.primer_lines)
    except TypeError as error:
        raise InputError(f"rules: {error}") from None


def _make_stock(spec: GeneratorSpec) -> StockStreams:
    schedule = spec.rate_schedule
    if schedule is None:
        raise InputError("rate: missing; the source stock needs a schedule")
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
    """Return the state keys of `spec`."""
    return StateKeys(spec.state_mb, spec.state_touch, spec.seed, spec.repetition)


@dataclass(frozen=True)
class RecordChunk:
    """Consecutive local records, ready to send; lists and `due_ns` have one entry per record."""

    payloads: list[bytes]
    partitions: list[int]
    due_ns: NDArray[np.int64]  # after the start; zeros without a schedule
    headers: list[Headers] | None = None  # None: no record has headers
    keys: list[bytes | None] | None = None  # None: no record has a key

    def slice(self, first: int, last: int) -> RecordChunk:
        """Return the records `first` … `last` − 1, counted within this chunk."""
        if first == 0 and last >= len(self.payloads):
            return self
        headers = None if self.headers is None else self.headers[first:last]
        keys = None if self.keys is None else self.keys[first:last]
        return RecordChunk(
            self.payloads[first:last], self.partitions[first:last], self.due_ns[first:last], headers, keys
        )


class Stream:
    """Local records 0, 1, … of one shard, in order, prepared in chunks.

    At most CHUNKS_AHEAD chunks are held. `prepare` is called in spare time; a thread would compete for the GIL with the
    loop that must send on time.
    """

    def __init__(self, source: Source, state_keys: StateKeys, spec: GeneratorSpec, shard: Shard) -> None:
        self._source = source
        self._state_keys = state_keys
        self._schedule: DueTimes | None = spec.schedule
        self._shard = shard
        self._partitions = np.uint64(spec.partitions)
        self._numbered = spec.numbered
        self.total = shard.share(spec.total)
        # Preparing a chunk delays the next record, so slow schedules use small chunks.
        per_second = spec.total / spec.seconds / shard.count if spec.seconds else float("inf")
        self._size = int(min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, per_second / 20)))
        self._chunks: deque[RecordChunk] = deque()
        self._next = 0  # first unprepared local record
        self._used = 0  # taken records of the first chunk

    def prepare(self) -> bool:
        """Prepare one chunk; return False if the buffer is full or everything is prepared."""
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
            keys, data_headers = self._source.keys(records), self._source.headers(records)
            if keys is not None:
                partitions = self._partitions_of(keys, partitions)
            if data_headers is not None:
                headers = (
                    data_headers if headers is None else [a + b for a, b in zip(data_headers, headers, strict=True)]
                )
        self._chunks.append(RecordChunk(payloads, partitions, due, headers, keys))
        self._next += n
        return True

    def _partitions_of(self, keys: list[bytes | None], defaults: list[int]) -> list[int]:
        """Return the partitions of records by their keys; those of records without a key come from `defaults`."""
        assert isinstance(self._source, Replay)
        choose, count = self._source.partition, int(self._partitions)
        return [default if key is None else choose(key, count) for key, default in zip(keys, defaults, strict=True)]

    def take(self, n: int) -> RecordChunk:
        """Return the next records, at least one and at most `n`. Raises IndexError after the last."""
        if not self._chunks and not self.prepare():
            raise IndexError("stream: got a request after the last record")
        chunk = self._chunks[0]
        last = min(len(chunk.payloads), self._used + n)
        part = chunk.slice(self._used, last)
        self._used = last
        if last == len(chunk.payloads):
            self._chunks.popleft()
            self._used = 0
        return part


class Replay:
    """A source of user data, repeated in cycles: record k is at index (offset + k) mod L of the L records.

    Data without times starts at an index drawn from seed and repetition. Data with times starts at its beginning, and
    cycle n (from 0) shifts the times in the values by n cycle lengths.
    """

    def __init__(self, data: Data, seed: int, repetition: int) -> None:
        """Store `data`, at least one record."""
        self._data = data
        self.offset = 0 if data.times_ms else stream_key("replay", seed, repetition) % len(data)
        self._partitions: dict[bytes, int] = {}

    def payloads(self, records: NDArray[np.uint64]) -> list[Any]:
        """Return the values, bytes or None, of the given records (numbers in the schedule, shape (n,))."""
        cycles, indices = self._positions(records)
        return [self._data.value(index, cycle) for cycle, index in zip(cycles.tolist(), indices.tolist(), strict=True)]

    def keys(self, records: NDArray[np.uint64]) -> list[bytes | None] | None:
        """Return the keys, or None if the data has none."""
        keys = self._data.keys
        return [keys[index] for index in self._positions(records)[1].tolist()] if keys else None

    def headers(self, records: NDArray[np.uint64]) -> list[Headers] | None:
        """Return the headers, or None if the data has none."""
        headers = self._data.headers
        return [headers[index] for index in self._positions(records)[1].tolist()] if any(headers) else None

    def partition(self, key: bytes, partitions: int) -> int:
        """Return the partition of a key."""
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = partition_of(key, partitions)
        return found

    def preload(self, n: int) -> Iterator[Any]:
        """Yield n preload values; with times, copies of the first one, so later records are not late."""
        values = self._data.values
        return (values[0 if self._data.times_ms else number % len(values)] for number in range(n))

    def preload_key(self, number: int) -> bytes | None:
        """Return the key of a preload record."""
        keys = self._data.keys
        return keys[0 if self._data.times_ms else number % len(keys)] if keys else None

    def _positions(self, records: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cycle of each record, and its index in the data; shapes (n,)."""
        cycles, indices = np.divmod(records.astype(np.int64) + self.offset, len(self._data))
        return cycles, indices
