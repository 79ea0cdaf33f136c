"""Delayed persistence queue (Lu et al. 2020, algorithm 3).

Results are acknowledged once they are in memory. A separate thread writes them to the store in batches, when a timer
expires or the queue is long enough.

In contrast to the paper, a crash loses nothing: each flush also stores the input position that it reaches, in the same
transaction, and a restart begins there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .stores import Result, ResultStore

JOIN_S = 60.0
# Maximum number of full flushes in the queue, so that a blocked store does not exhaust memory.
MAX_QUEUED_FLUSHES = 10


@dataclass(frozen=True)
class QueuedBatch:
    """Results of one batch, and the input position after it: end offsets by partition."""

    results: tuple[Result, ...]
    position: dict[str, int]


class Backlog(Protocol):
    """Ordered queue of batches. `take` removes nothing; `drop` removes entries once they are stored."""

    def put(self, entry: QueuedBatch) -> None:
        """Append an entry.

        Raises QueueLost if it cannot be kept.
        """

    def take(self) -> list[QueuedBatch]:
        """Return all entries, the oldest first.

        Raises QueueLost if one is missing.
        """

    def drop(self, entries: int) -> None:
        """Remove the oldest entries."""

    def __len__(self) -> int:
        """Return the number of queued results."""


class QueueLost(RuntimeError):
    """The queue lost acknowledged results: the stage must restart from the store's position."""


class MemoryBacklog:
    """Queue in this process."""

    def __init__(self) -> None:
        self._entries: deque[QueuedBatch] = deque()
        self._lock = threading.Lock()
        self._queued = 0

    def put(self, entry: QueuedBatch) -> None:
        """Append an entry."""
        with self._lock:
            self._entries.append(entry)
            self._queued += len(entry.results)

    def take(self) -> list[QueuedBatch]:
        """Return all entries, the oldest first."""
        with self._lock:
            return list(self._entries)

    def drop(self, entries: int) -> None:
        """Remove the oldest entries."""
        with self._lock:
            for _ in range(entries):
                self._queued -= len(self._entries.popleft().results)

    def __len__(self) -> int:
        return self._queued


@dataclass(frozen=True)
class FlushRules:
    """Rules of a flush: `every_s` after the last one, or as soon as `length` results are queued."""

    every_s: float = 1.0
    length: int = 10_000

    def due(self, now_s: float, last_s: float, length: int) -> bool:
        """Return whether a flush is due by the two conditions of algorithm 3; never for an empty queue."""
        return length > 0 and (length >= self.length or now_s - last_s >= self.every_s)


class DelayedQueue:
    """Queue that writes results to the store in its own thread."""

    def __init__(
        self, backlog: Backlog, store: ResultStore, rules: FlushRules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backlog, self._store, self._rules, self._clock = backlog, store, rules, clock
        self._wake = threading.Condition()
        self._ends = False
        self._error: Exception | None = None
        self._last_s = clock()
        self._thread = threading.Thread(target=self._run, name="processor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, results: Sequence[Result], position: dict[str, int]) -> None:
        """Queue `results`; return once they are in memory, which may wait for a flush.

        Raises the error of the thread.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._error is not None or not self._is_full())
        self.check()
        self._backlog.put(QueuedBatch(tuple(results), position))
        with self._wake:
            self._wake.notify()

    def flush(self) -> int:
        """Write all queued results and their position in one transaction; return the number of results."""
        entries = self._backlog.take()
        if not entries:
            return 0
        # Counts only grow, so the newest count of a word suffices.
        newest = {word: count for entry in entries for word, count in entry.results}
        self._store.write(list(newest.items()), entries[-1].position)
        self._backlog.drop(len(entries))
        self._last_s = self._clock()
        return len(newest)

    def close(self) -> None:
        """Flush the rest and stop the thread.

        Raises its error.
        """
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join(JOIN_S)
        self.check()
        if self._thread.is_alive():
            raise TimeoutError(f"delayed queue: last flush failed: not complete within {JOIN_S:g} s")

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    if not self._ends:
                        self._wake.wait(self._rules.every_s / 4)
                    ends = self._ends
                if ends or self._rules.due(self._clock(), self._last_s, len(self._backlog)):
                    self.flush()
                    with self._wake:
                        self._wake.notify_all()
                if ends:
                    return
        except Exception as error:  # raised by the next `put`, to stop acknowledgements
            with self._wake:
                self._error = error
                self._wake.notify_all()

    def _is_full(self) -> bool:
        return len(self._backlog) >= MAX_QUEUED_FLUSHES * self._rules.length
