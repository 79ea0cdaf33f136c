"""The last stage: results go to the store, at once or by way of the delayed queue, and are acknowledged to the output.

An acknowledgement is a record of the output topic: sent when a result stands in the store, or, with the queue, in
memory. A start begins where the store's position stands, so what was acknowledged and not yet written comes again.
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
    """`plan`: {"kind": "sqlite", "path"} or {"kind": "postgresql", "address", "schema"}; `delay_s`."""
    if plan["kind"] == "postgresql":
        return PostgresStore(plan["address"], plan["schema"], plan["delay_s"])
    return SqliteStore(plan["path"], plan["delay_s"])


class PersistSink:
    """What `foreachBatch` of the last stage does with its rows."""

    def __init__(self, store: ResultStore, bootstrap: str, output: str, plan: dict[str, Any]) -> None:
        """`plan`: {"queue": null, "memory" or "memcached", "flush_every_s", "flush_length", "address", "by_tuple"}."""
        self._store, self._bootstrap, self._output = store, bootstrap, output
        self._by_tuple = bool(plan["by_tuple"])
        self._position = self.position
        self._queue: DelayedQueue | None = None
        if plan["queue"] is not None:
            backlog = MemcachedBacklog(*plan["address"]) if plan["queue"] == "memcached" else MemoryBacklog()
            self._queue = DelayedQueue(backlog, store, FlushRules(plan["flush_every_s"], plan["flush_length"]))
            self._queue.start()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Takes one batch, in the order in which its partitions hold it."""
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
        """Where the store stands: end offsets by partition; {} before the first write."""
        return self._store.position() or {}

    def stored(self) -> dict[str, int]:
        """All that the store holds, read back from it; a schema that the run made is gone afterwards."""
        found = self._store.results()
        self._store.drop()
        return found

    def check(self) -> None:
        """Raises what the queue's processor failed with: what it had acknowledged must be taken in again."""
        if self._queue is not None:
            self._queue.check()

    def close(self) -> None:
        """Writes what waits."""
        if self._queue is not None:
            self._queue.close()

    def _acknowledge(self, results: Sequence[Result]) -> None:
        to = sender(self._bootstrap)
        for word, count in results:
            to.send(self._output, word, str(count), LINEAGE)


# The delayed queue's entries in Memcached: they outlive this process, and may be gone at any time.


# Memcached takes values up to 1 MiB, with their key and some bytes of its own.
PIECE_BYTES = 1_000_000
TIMEOUT_S = 5.0


class MemcachedBacklog:
    """Each entry is a value, or several pieces of one. The names are new with each start: what an earlier process left
    is never read, since the store knows where to begin again."""

    def __init__(self, host: str, port: int) -> None:
        self._client = client(host, port)
        self._name = uuid.uuid4().hex
        self._next = 0
        # Of each entry that waits: its number, its pieces, and its results.
        self._waiting: deque[tuple[int, int, int]] = deque()

    def put(self, entry: QueuedBatch) -> None:
        """Adds an entry at the end. Raises QueueLost when Memcached does not take it."""
        text = zlib.compress(json.dumps([entry.results, entry.position], separators=(",", ":")).encode(), 1)
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        try:
            for index, piece in enumerate(pieces):
                if not self._client.set(self._key(self._next, index), piece, noreply=False):
                    raise QueueLost("memcached: it refused results; raise its memory (-m)")
        except (OSError, MemcacheError) as error:
            raise QueueLost(f"memcached: not reachable any more: {error!r}") from error
        self._waiting.append((self._next, len(pieces), len(entry.results)))
        self._next += 1

    def take(self) -> list[QueuedBatch]:
        """All entries, the oldest first. Raises QueueLost when one was evicted, or Memcached is gone."""
        return [self._read(number, pieces) for number, pieces, _ in list(self._waiting)]

    def drop(self, entries: int) -> None:
        """Forgets the oldest ones."""
        for _ in range(entries):
            number, pieces, _ = self._waiting.popleft()
            try:
                for index in range(pieces):
                    self._client.delete(self._key(number, index), noreply=True)
            except (OSError, MemcacheError):
                pass  # they are in the store; nobody reads these names again

    def __len__(self) -> int:
        return sum(results for _, _, results in list(self._waiting))

    def _read(self, number: int, pieces: int) -> QueuedBatch:
        try:
            found = [self._client.get(self._key(number, index)) for index in range(pieces)]
        except (OSError, MemcacheError) as error:
            raise QueueLost(f"memcached: not reachable any more: {error!r}") from error
        if None in found:
            raise QueueLost("memcached: it lost results that were not written yet (restarted, or out of memory)")
        results, position = json.loads(zlib.decompress(b"".join(found)))
        return QueuedBatch(tuple((word, count) for word, count in results), position)

    def _key(self, number: int, piece: int) -> str:
        return f"{self._name}-{number}-{piece}"


def client(host: str, port: int) -> Client:
    """A connection that two threads can use, one after another. Raises OSError when nobody answers there."""
    found = PooledClient((host, port), connect_timeout=TIMEOUT_S, timeout=TIMEOUT_S, max_pool_size=2)
    found.version()
    return found
