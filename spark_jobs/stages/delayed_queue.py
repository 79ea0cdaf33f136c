"""The delayed persistence queue (Lu et al. 2020, algorithm 3): results are acknowledged once they stand in memory, and
a processor of its own writes them to the store in batches, when a timer runs out or the queue is long enough.

Beyond the paper, a crash loses nothing. With each flush the store also takes the position in the input that the flush
reaches, in one transaction, and whoever starts again begins there.
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
# A stage waits when so many flushes of the greatest length are due: a store that hangs must not fill the memory.
MOST_FLUSHES = 10


@dataclass(frozen=True)
class QueuedBatch:
    """Results of one batch, and where the input stood behind it: end offsets by partition."""

    results: tuple[Result, ...]
    position: dict[str, int]


class Backlog(Protocol):
    """Where entries wait, in order. `take` removes nothing: entries leave with `drop`, once they are in the store."""

    def put(self, entry: QueuedBatch) -> None:
        """Adds an entry at the end. Raises QueueLost when it cannot be kept."""

    def take(self) -> list[QueuedBatch]:
        """All entries, the oldest first. Raises QueueLost when one is gone."""

    def drop(self, entries: int) -> None:
        """Forgets the oldest ones."""

    def __len__(self) -> int:
        """Results that wait."""


class QueueLost(RuntimeError):
    """The queue lost results that were acknowledged: the stage must start again from what the store holds."""


class MemoryBacklog:
    """A queue in this process."""

    def __init__(self) -> None:
        self._entries: deque[QueuedBatch] = deque()
        self._lock = threading.Lock()
        self._waiting = 0

    def put(self, entry: QueuedBatch) -> None:
        """Adds an entry at the end."""
        with self._lock:
            self._entries.append(entry)
            self._waiting += len(entry.results)

    def take(self) -> list[QueuedBatch]:
        """All entries, the oldest first."""
        with self._lock:
            return list(self._entries)

    def drop(self, entries: int) -> None:
        """Forgets the oldest ones."""
        with self._lock:
            for _ in range(entries):
                self._waiting -= len(self._entries.popleft().results)

    def __len__(self) -> int:
        return self._waiting


@dataclass(frozen=True)
class FlushRules:
    """`every_s`: a flush is due so long after the last one. `length`: or as soon as so many results wait."""

    every_s: float = 1.0
    length: int = 10_000

    def due(self, now_s: float, last_s: float, length: int) -> bool:
        """Whether to flush now: algorithm 3's two conditions. An empty queue is never flushed."""
        return length > 0 and (length >= self.length or now_s - last_s >= self.every_s)


class DelayedQueue:
    """Takes results from the stage, and writes them to the store from a thread of its own."""

    def __init__(
        self, backlog: Backlog, store: ResultStore, rules: FlushRules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backlog, self._store, self._rules, self._clock = backlog, store, rules, clock
        self._wake = threading.Condition()
        self._ends = False
        self._trouble: Exception | None = None
        self._last_s = clock()
        self._thread = threading.Thread(target=self._run, name="processor", daemon=True)

    def start(self) -> None:
        """Starts the processor."""
        self._thread.start()

    def put(self, results: Sequence[Result], position: dict[str, int]) -> None:
        """Acknowledges `results`: returns once they wait in memory, which may take until others are written.

        Raises what the processor failed with.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._trouble is not None or not self._is_full())
        self.check()
        self._backlog.put(QueuedBatch(tuple(results), position))
        with self._wake:
            self._wake.notify()

    def flush(self) -> int:
        """Writes everything that waits, in one transaction with the position it reaches; results written."""
        entries = self._backlog.take()
        if not entries:
            return 0
        # Counts only grow, so of a word that waits several times the newest is enough.
        newest = {word: count for entry in entries for word, count in entry.results}
        self._store.write(list(newest.items()), entries[-1].position)
        self._backlog.drop(len(entries))
        self._last_s = self._clock()
        return len(newest)

    def close(self) -> None:
        """Flushes what is left and ends the processor. Raises what it failed with."""
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join(JOIN_S)
        self.check()
        if self._thread.is_alive():
            raise TimeoutError(f"delayed queue: its last flush took more than {JOIN_S:g} s")

    def check(self) -> None:
        """Raises what the processor failed with."""
        if self._trouble is not None:
            raise self._trouble

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
        except Exception as error:  # reported to whoever puts next, who must not go on acknowledging
            with self._wake:
                self._trouble = error
                self._wake.notify_all()

    def _is_full(self) -> bool:
        return len(self._backlog) >= MOST_FLUSHES * self._rules.length
