"""Sink of the last stage: results are stored, directly or through the delayed queue, and acknowledged.

An acknowledgement is a record of the output topic, sent once a result is in the store or, with the queue, in memory. A
restart begins at the store's position, so acknowledged but unwritten results are computed again.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheError
from pyspark.sql import DataFrame

from .delayed_queue import DelayedQueue, FlushRules, MemoryBacklog, QueuedBatch, QueueLost
from .kafka import sender
from .stores import PostgresStore, Result, ResultStore, SqliteStore

LINEAGE = [("lineage", b"0")]
Write = Callable[[Sequence[Result], dict[str, int]], None]


def open_store(plan: dict[str, Any]) -> ResultStore:
    """Return the store of {"kind": "sqlite", "path"} or {"kind": "postgresql", "address", "schema"}; `delay_s`."""
    if plan["kind"] == "postgresql":
        return PostgresStore(plan["address"], plan["schema"], plan["delay_s"])
    return SqliteStore(plan["path"], plan["delay_s"])


class PersistSink:
    """Function for `foreachBatch` of the last stage."""

    def __init__(self, store: ResultStore, bootstrap: str, output: str, plan: dict[str, Any]) -> None:
        """Create it.

        `plan`: {"queue": null, "memory" or "memcached", "flush_every_s", "flush_length", "address", "by_tuple"}.
        """
        self._store, self._bootstrap, self._output = store, bootstrap, output
        self._by_tuple = bool(plan["by_tuple"])
        self._position = self.position
        self._queue: DelayedQueue | None = None
        if plan["queue"] is not None:
            backlog = MemcachedBacklog(*plan["address"]) if plan["queue"] == "memcached" else MemoryBacklog()
            self._queue = DelayedQueue(backlog, store, FlushRules(plan["flush_every_s"], plan["flush_length"]))
            self._queue.start()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Store one batch, in the order of its partitions."""
        rows = batch.select("text", "number", "part", "at").collect()
        if not rows:
            return
        for row in rows:
            place = str(row.part)
            self._position[place] = max(self._position.get(place, 0), row.at + 1)
        results = [(row.text, row.number) for row in rows]
        position = dict(self._position)
        if self._queue is not None:
            self._queue.put(results, position)
            self._acknowledge(results)
        elif self._by_tuple:
            self._store.write_each(results, position, lambda result: self._acknowledge([result]))
        else:
            self._store.write(results, position)
            self._acknowledge(results)
        sender(self._bootstrap).flush()

    @property
    def position(self) -> dict[str, int]:
        """Position of the store: end offsets by partition; {} before the first write."""
        return self._store.position() or {}

    def stored(self) -> dict[str, int]:
        """Return all stored results, and remove a schema that the run created."""
        found = self._store.results()
        self._store.drop()
        return found

    def check(self) -> None:
        """Raise the error of the queue: its acknowledged results must be computed again."""
        if self._queue is not None:
            self._queue.check()

    def close(self) -> None:
        """Write queued results."""
        if self._queue is not None:
            self._queue.close()

    def _acknowledge(self, results: Sequence[Result]) -> None:
        to = sender(self._bootstrap)
        for word, count in results:
            to.send(self._output, word, str(count), LINEAGE)


# Memcached's default limit of a value is 1 MiB, including its key and some overhead.
CHUNK_BYTES = 1_000_000
TIMEOUT_S = 5.0


class MemcachedBacklog:
    """Queue in Memcached, which survives this process but may lose entries at any time.

    Each entry is one or more values. Names are new at each start, because the store's position makes older entries
    obsolete.
    """

    def __init__(self, host: str, port: int) -> None:
        self._client = client(host, port)
        self._name = uuid.uuid4().hex
        self._next = 0
        # Number, chunks and results of each queued entry.
        self._queued: deque[tuple[int, int, int]] = deque()

    def put(self, entry: QueuedBatch) -> None:
        """Append an entry.

        Raises QueueLost if Memcached rejects it.
        """
        text = zlib.compress(json.dumps([entry.results, entry.position], separators=(",", ":")).encode(), 1)
        pieces = [text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES)]
        try:
            for index, piece in enumerate(pieces):
                if not self._client.set(self._key(self._next, index), piece, noreply=False):
                    raise QueueLost("memcached: write failed: rejected; fix: raise its memory (-m)")
        except (OSError, MemcacheError) as error:
            raise QueueLost(f"memcached: unreachable: {error!r}") from error
        self._queued.append((self._next, len(pieces), len(entry.results)))
        self._next += 1

    def take(self) -> list[QueuedBatch]:
        """Return all entries, the oldest first.

        Raises QueueLost if one was evicted or Memcached is unreachable.
        """
        return [self._read(number, pieces) for number, pieces, _ in list(self._queued)]

    def drop(self, entries: int) -> None:
        """Remove the oldest entries."""
        for _ in range(entries):
            number, pieces, _ = self._queued.popleft()
            try:
                for index in range(pieces):
                    self._client.delete(self._key(number, index), noreply=True)
            except (OSError, MemcacheError):
                pass  # the entries are stored and their names are never read again

    def __len__(self) -> int:
        return sum(results for _, _, results in list(self._queued))

    def _read(self, number: int, pieces: int) -> QueuedBatch:
        try:
            found = [self._client.get(self._key(number, index)) for index in range(pieces)]
        except (OSError, MemcacheError) as error:
            raise QueueLost(f"memcached: unreachable: {error!r}") from error
        if None in found:
            raise QueueLost("memcached: lost unwritten results (restart or eviction)")
        results, position = json.loads(zlib.decompress(b"".join(found)))
        return QueuedBatch(tuple((word, count) for word, count in results), position)

    def _key(self, number: int, piece: int) -> str:
        return f"{self._name}-{number}-{piece}"


def client(host: str, port: int) -> Client:
    """Return a connection for two alternating threads.

    Raises OSError if the server does not answer.
    """
    found = PooledClient((host, port), connect_timeout=TIMEOUT_S, timeout=TIMEOUT_S, max_pool_size=2)
    found.version()
    return found
