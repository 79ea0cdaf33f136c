"""Open-loop schedule: record k is due at start + k / P, independent of earlier records.

With a varying rate, record k is due when the integral of the rate passes k. All instants are integer nanoseconds and
the rate is an exact fraction, so errors do not accumulate. `pace` sends everything that is due in small bursts and
never skips a record: after a stall the following records are late, and their schedule lag is measured.
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

# Maximum records per burst. The clock is read once after each burst, so the schedule lag of its first records is
# overestimated by the time to queue the burst: 0.1 ms for 64 records, up to 5 ms if waiting records are queued with it.
BURST = 64
# Records due within this time are sent together: a wake-up costs 0.3 ms of CPU here and as much in the broker, which
# the workload would lack. This time also bounds the schedule lag that it adds.
MIN_SLEEP_NS = 4_000_000
# A longer sleep would delay a stop request.
MAX_SLEEP_NS = 50_000_000


class Clock(Protocol):
    """Clock of the pacing loop; tests use a fake."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Return after `duration_ns`, or a little later."""


class DueTimes(Protocol):
    """Due times of records 0 … `count` − 1, in nanoseconds after the start."""

    @property
    def count(self) -> int:
        """Number of records."""

    def due_ns(self, k: int) -> int:
        """Return the due time of record `k`."""

    def due_count(self, elapsed_ns: int) -> int:
        """Return the number of records k with due_ns(k) ≤ elapsed_ns."""

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Return the due times of records first, first + step, …; shape (n,)."""


@dataclass(frozen=True)
class SendSchedule:
    """Due times of records 0 … `count` − 1 at `rate` records per second (an exact fraction), or along `shape`.

    `shape`: the rate over time if it varies; `rate` is then its base.
    """

    rate: Fraction
    count: int
    shape: PiecewiseLinear | None = None

    @classmethod
    def for_duration(cls, rate: float, seconds: float, curve: Curve | None = None) -> SendSchedule:
        """Return the records due in [0, seconds): exactly P·T, rounded up.

        With a curve, its integral replaces P·T. Floats are read in decimal form, so 0.1 is one tenth. Raises ValueError
        unless both are finite and positive.
        """
        try:
            exact_rate, exact_seconds = Fraction(str(rate)), Fraction(str(seconds))
        except ValueError:
            raise ValueError(f"rate: got {rate!r} and seconds {seconds!r}; expected finite numbers") from None
        if exact_rate <= 0 or exact_seconds <= 0:
            raise ValueError(f"rate: got {rate!r} and seconds {seconds!r}; expected positive numbers")
        if curve is not None and curve.is_varying:
            return cls(exact_rate, curve.shape.area_up(round(exact_seconds * NANOSECONDS)), curve.shape)
        return cls(exact_rate, -(-(exact_rate * exact_seconds) // 1))

    @cached_property
    def _records(self) -> PiecewiseLinear:
        return constant_function(self.rate) if self.shape is None else self.shape

    def due_ns(self, k: int) -> int:
        """Return the nanoseconds after the start at which record `k` is due, rounded down.

        Raises ValueError for a record that a rate fallen to zero never reaches.
        """
        return self._records.reach(k)

    def due_count(self, elapsed_ns: int) -> int:
        """Return the number of records k with due_ns(k) ≤ elapsed_ns."""
        return 0 if elapsed_ns < 0 else min(self.count, self._records.area_up(elapsed_ns + 1))

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Return `due_ns` of the records first, first + step, …; shape (n,), nanoseconds."""
        return self._records.reach_array(first, step, n)

    def due_of(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return `due_ns` of any records; shape (n,), nanoseconds. Fast if evenly spaced, as in a shard."""
        n = len(records)
        if n > 1 and records[1] > records[0]:
            first, step = int(records[0]), int(records[1] - records[0])
            if np.array_equal(records, np.arange(n, dtype=np.uint64) * np.uint64(step) + np.uint64(first)):
                return self.due_array(first, step, n)
        return np.array([self.due_ns(k) for k in records.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """The records of process `index` of `count`: k ≡ index (mod count), numbered 0, 1, … locally."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard: got index {self.index}; expected 0 … {self.count - 1}")

    def record(self, local: int) -> int:
        """Return the record's number in the whole schedule."""
        return self.index + local * self.count

    def share(self, count: int) -> int:
        """Return how many of the first `count` records of the schedule belong to this shard."""
        return -(-(count - self.index) // self.count)

    def records(self, first: int, n: int) -> NDArray[np.uint64]:
        """Return the schedule numbers of local records first … first + n − 1; shape (n,)."""
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
    """Send on schedule until its end or until `is_stopped`; return the number of records sent.

    `send(first, last)` sends the local records first … last − 1 of the shard: at most BURST, and only due ones.
    `idle(spare_ns)` is called before a sleep with the time until the next record, for preparations; the sleep is
    shorter by its duration. `load_end(now_ns)` returns the instant after which nothing is due, or None for the
    schedule's own end.
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


# Recorded schedule: original send times, repeated, faster or slower by a factor.


MS = 1_000_000


class RecordedSchedule:
    """Due times of records 0 … `count` − 1 from a recording; same interface as `SendSchedule`."""

    def __init__(self, times_ns: NDArray[np.int64], cycle_ns: int, count: int) -> None:
        """Set the times of one cycle, from 0 and ascending, and the time between cycle starts."""
        self._times, self._cycle_ns, self.count = times_ns, cycle_ns, count
        self._list = times_ns.tolist()

    @classmethod
    def for_duration(cls, times_ms: Sequence[int], cycle_ms: int, speed: float, seconds: float) -> Self:
        """Return the records due in [0, seconds); `cycle_ms`: time between cycle starts."""
        times = np.asarray(times_ms, dtype=np.int64)
        times_ns = np.rint((times - times[0]) * (MS / speed)).astype(np.int64)
        schedule = cls(times_ns, max(1 + int(times_ns[-1]), round(cycle_ms * MS / speed)), 0)
        schedule.count = schedule._count_before(round(seconds * NANOSECONDS))
        return schedule

    def due_ns(self, k: int) -> int:
        """Return the nanoseconds after the start at which record `k` is due."""
        cycle, index = divmod(k, len(self._list))
        return int(cycle * self._cycle_ns + self._list[index])

    def due_count(self, elapsed_ns: int) -> int:
        """Return the number of records due at or before `elapsed_ns`."""
        return 0 if elapsed_ns < 0 else min(self.count, self._count_before(elapsed_ns + 1))

    def _count_before(self, at_ns: int) -> int:
        cycle, rest = divmod(at_ns, self._cycle_ns)
        return cycle * len(self._list) + bisect.bisect_left(self._list, rest)

    def due_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Return `due_ns` of records first, first + step, …; shape (n,), nanoseconds."""
        return self.due_of((np.arange(n, dtype=np.int64) * step + first).astype(np.uint64))

    def due_of(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return `due_ns` of any records; shape (n,), nanoseconds."""
        numbers = records.astype(np.int64)
        cycle, index = np.divmod(numbers, len(self._list))
        due: NDArray[np.int64] = cycle * self._cycle_ns + self._times[index]
        return due
