"""The delayed queue's entries in Memcached: they outlive this process, and may be gone at any time."""

from __future__ import annotations

import json
import uuid
import zlib
from collections import deque

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheError

from .persistence import Entry, QueueLost

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

    def put(self, entry: Entry) -> None:
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

    def take(self) -> list[Entry]:
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

    def _read(self, number: int, pieces: int) -> Entry:
        try:
            found = [self._client.get(self._key(number, index)) for index in range(pieces)]
        except (OSError, MemcacheError) as error:
            raise QueueLost(f"memcached: not reachable any more: {error!r}") from error
        if None in found:
            raise QueueLost("memcached: it lost results that were not written yet (restarted, or out of memory)")
        results, position = json.loads(zlib.decompress(b"".join(found)))
        return Entry(tuple((word, count) for word, count in results), position)

    def _key(self, number: int, piece: int) -> str:
        return f"{self._name}-{number}-{piece}"


def client(host: str, port: int) -> Client:
    """A connection that two threads can use, one after another. Raises OSError when nobody answers there."""
    found = PooledClient((host, port), connect_timeout=TIMEOUT_S, timeout=TIMEOUT_S, max_pool_size=2)
    found.version()
    return found
