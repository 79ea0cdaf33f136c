"""The last stage: results go to the store, at once or by way of the delayed queue, and are acknowledged to the output.

An acknowledgement is a record of the output topic: sent when a result stands in the store, or, with the queue, in
memory. A start begins where the store's position stands, so what was acknowledged and not yet written comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from .kafka import sender
from .memcached import MemcachedBacklog
from .persistence import DelayedQueue, FlushRules, MemoryBacklog
from .stores import PostgresStore, Result, SqliteStore, Store

LINEAGE = [("lineage", b"0")]
Write = Callable[[Sequence[Result], dict[str, int]], None]


def open_store(plan: dict[str, Any]) -> Store:
    """`plan`: {"kind": "sqlite", "path"} or {"kind": "postgresql", "address", "schema"}; `delay_s`."""
    if plan["kind"] == "postgresql":
        return PostgresStore(plan["address"], plan["schema"], plan["delay_s"])
    return SqliteStore(plan["path"], plan["delay_s"])


class Persisting:
    """What `foreachBatch` of the last stage does with its rows."""

    def __init__(self, store: Store, bootstrap: str, output: str, plan: dict[str, Any]) -> None:
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
