"""The open-loop schedule: record k is due at start + k / P, whatever happened to those before it.

With a rate that moves, record k is due when the integral of the rate passes k, which is the same for a constant one.

All instants are integer nanoseconds, and the rate is an exact fraction, so that no error adds up
over a long run. `pace` sends everything that is due in small bursts and never skips a record: a
stall makes the records behind it late, and their lateness is measured, not hidden.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from generators.curve import NANOSECONDS, Curve, PiecewiseLinear, constant_function

# Records of one burst at most. The clock is read once after each burst, so this bounds how much the lateness of its
# first records is overestimated: 64 records take about 0.1 ms to hand over, and 5 ms with all that may have waited.
BURST = 64
# What comes due within this time is sent together: waking up costs some 0.3 ms of processor time, whatever is sent,
# and the broker as much again, which the workload beside it would lack. It is also all that the records are late.
MIN_SLEEP_NS = 4_000_000
# Sleeping longer than this would make a request to stop wait.
MAX_SLEEP_NS = 50_000_000


class Clock(Protocol):
    """Time as the pacer sees it; a test puts a fake here."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Returns after `duration_ns`, or a little later."""


class DueTimes(Protocol):
    """When records 0 … `count` − 1 are due, in nanoseconds after the start."""

    @property
    def count(self) -> int:
        """How many there are."""

    def due_ns(self, k: int) -> int:
        """Of record `k`."""

    def due_count(self, elapsed_ns: int) -> int:
        """How many are due at or before then: those k with due_ns(k) ≤ elapsed_ns."""

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Of the records first, first + step, …; shape (n,)."""


@dataclass(frozen=True)
class SendSchedule:
    """Due times of records 0 … `count` − 1 at `rate` records per second (an exact fraction), or along `shape`.

    `shape` is the rate over the time when it moves; `rate` is then what it moves around.
    """

    rate: Fraction
    count: int
    shape: PiecewiseLinear | None = None

    @classmethod
    def for_duration(cls, rate: float, seconds: float, curve: Curve | None = None) -> SendSchedule:
        """The records due in [0, seconds): exactly P·T of them, rounded up when P·T is not whole.

        With a curve, its integral takes the place of P·T. The decimal form of a float is what its writer meant, so
        0.1 is one tenth. Raises ValueError unless both are finite and positive.
        """
        try:
            exact_rate, exact_seconds = Fraction(str(rate)), Fraction(str(seconds))
        except ValueError:
            raise ValueError(f"rate {rate!r} and seconds {seconds!r} must be finite numbers") from None
        if exact_rate <= 0 or exact_seconds <= 0:
            raise ValueError(f"rate {rate!r} and seconds {seconds!r} must be positive")
        if curve is not None and curve.is_varying:
            return cls(exact_rate, curve.shape.area_up(round(exact_seconds * NANOSECONDS)), curve.shape)
        return cls(exact_rate, -(-(exact_rate * exact_seconds) // 1))

    @cached_property
    def _records(self) -> PiecewiseLinear:
        return constant_function(self.rate) if self.shape is None else self.shape

    def due_ns(self, k: int) -> int:
        """Return the nanoseconds after the start at which record `k` is due, rounded down.

        Raises ValueError for a record beyond the schedule at which a rate that fell to zero never arrives.
        """
        return self._records.reach(k)

    def due_count(self, elapsed_ns: int) -> int:
        """Return how many records are due at or before `elapsed_ns`: those k with due_ns(k) ≤ elapsed_ns."""
        return 0 if elapsed_ns < 0 else min(self.count, self._records.area_up(elapsed_ns + 1))

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Return `due_ns` of the records first, first + step, …; shape (n,), nanoseconds."""
        return self._records.reach_array(first, step, n)

    def due_of(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """`due_ns` of any records; shape (n,), nanoseconds. Fast when evenly spaced, as in a shard."""
        n = len(records)
        if n > 1 and records[1] > records[0]:
            first, step = int(records[0]), int(records[1] - records[0])
            if np.array_equal(records, np.arange(n, dtype=np.uint64) * np.uint64(step) + np.uint64(first)):
                return self.due_array(first, step, n)
        return np.array([self.due_ns(k) for k in records.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """The share of process `index` of `of`: the records k ≡ index (mod of), numbered 0, 1, … locally."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self.index} of {self.count}: the index must lie in 0 … {self.count - 1}")

    def record(self, local: int) -> int:
        """The record's number in the whole schedule."""
        return self.index + local * self.count

    def share(self, count: int) -> int:
        """How many of the first `count` records of the schedule belong to this shard."""
        return -(-(count - self.index) // self.count)

    def records(self, first: int, n: int) -> NDArray[np.uint64]:
        """Numbers in the whole schedule of the local records first … first + n − 1; shape (n,)."""
        return np.arange(n, dtype=np.uint64) * np.uint64(self.count) + np.uint64(self.record(first))


def pace(
    schedule: DueTimes,
    shard: Shard,
    start_ns: int,
    clock: Clock,
    send: Callable[[int, int], None],
    idle: Callable[[int], None] = lambda spare_ns: None,
    is_stopped: Callable[[], bool] = lambda: False,
    load_end: Callable[[int], int | None] = lambda now_ns: None,
) -> int:
    """Keeps the schedule until its end or until `stopped`; returns the number of records sent.

    `ends`: given the time, the instant after which nothing is due any more, or None while the schedule says it.

    `send(first, last)` sends the local records first … last − 1 of the shard, at most BURST of
    them, all due. `idle(spare_ns)` is called before a sleep with the time left until the next
    record is due, for work that may be done ahead; its own duration is taken off the sleep.
    """
    total = shard.share(schedule.count)
    sent = 0
    while sent < total and not is_stopped():
        now_ns = clock.now_ns()
        end_ns = load_end(now_ns)
        if end_ns is not None:
            total = max(sent, shard.share(schedule.due_count(end_ns - start_ns)))
            if sent == total:
                break
        due = min(total, shard.share(schedule.due_count(now_ns - start_ns)))
        if due > sent:
            last = min(due, sent + BURST)
            send(sent, last)
            sent = last
            continue
        next_ns = start_ns + schedule.due_ns(shard.record(sent))
        idle(next_ns - clock.now_ns())
        spare_ns = next_ns - clock.now_ns()
        if spare_ns > 0:
            clock.sleep_ns(min(max(spare_ns, MIN_SLEEP_NS), MAX_SLEEP_NS))
    return sent


# A schedule that was recorded: each record is due when it was, over and over, faster or slower by a factor.


MS = 1_000_000


class RecordedSchedule:
    """Due times of records 0 … `count` − 1; see `generators.pacing.SendSchedule`, whose place it takes."""

    def __init__(self, times_ns: NDArray[np.int64], cycle_ns: int, count: int) -> None:
        """`times_ns`: of one round, from 0, never falling. `cycle_ns`: from one beginning to the next."""
        self._times, self._cycle_ns, self.count = times_ns, cycle_ns, count
        self._list = times_ns.tolist()

    @classmethod
    def for_duration(cls, times_ms: Sequence[int], cycle_ms: int, speed: float, seconds: float) -> Self:
        """The records due in [0, seconds). `cycle_ms`: from the beginning of one round to that of the next."""
        times = np.asarray(times_ms, dtype=np.int64)
        times_ns = np.rint((times - times[0]) * (MS / speed)).astype(np.int64)
        made = cls(times_ns, max(1 + int(times_ns[-1]), round(cycle_ms * MS / speed)), 0)
        made.count = made._count_before(round(seconds * NANOSECONDS))
        return made

    def due_ns(self, k: int) -> int:
        """Nanoseconds after the start at which record `k` is due."""
        cycle, place = divmod(k, len(self._list))
        return int(cycle * self._cycle_ns + self._list[place])

    def due_count(self, elapsed_ns: int) -> int:
        """Records due at or before `elapsed_ns` after the start."""
        return 0 if elapsed_ns < 0 else min(self.count, self._count_before(elapsed_ns + 1))

    def _count_before(self, at_ns: int) -> int:
        cycle, rest = divmod(at_ns, self._cycle_ns)
        return cycle * len(self._list) + bisect.bisect_left(self._list, rest)

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """`due_ns` of the records first, first + step, …; shape (n,), nanoseconds."""
        return self.due_of((np.arange(n, dtype=np.int64) * step + first).astype(np.uint64))

    def due_of(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """`due_ns` of any records; shape (n,), nanoseconds."""
        numbers = records.astype(np.int64)
        cycle, place = np.divmod(numbers, len(self._list))
        due: NDArray[np.int64] = cycle * self._cycle_ns + self._times[place]
        return due
