"""The schedule is exact, and the pacing loop sends all of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.pacing import MIN_SLEEP_NS, SendSchedule, Shard, pace


class FakeClock:
    """A clock that advances only by sleeping or by the cost of a send."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, duration_ns: int) -> None:
        self.now += duration_ns


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rates_and_lengths_are_refused(value: float) -> None:
    for rate, seconds in ((value, 1.0), (1.0, value)):
        with pytest.raises(ValueError, match="^rate: "):
            SendSchedule.for_duration(rate, seconds)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 20))
def test_evenly_spaced_records_use_one_lookup(first: int, step: int, n: int) -> None:
    schedule = SendSchedule(Fraction(7), 10**9)
    records = np.arange(first, first + n * step, step, dtype=np.uint64)
    expected = schedule.due_array(first, step, n).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SendSchedule, "due_ns", lambda self, k: pytest.fail("one by one"))
        assert schedule.due_of(records).tolist() == expected


@given(st.integers(1, 9), st.integers(0, 200))
def test_shards_partition_the_schedule(of: int, count: int) -> None:
    stripes = [Shard(index, of) for index in range(of)]
    parts = [shard.records(0, shard.share(count)).tolist() for shard in stripes]
    assert sorted(sum(parts, [])) == list(range(count))
    assert all(shard.record(j) == k for shard, part in zip(stripes, parts, strict=True) for j, k in enumerate(part))
    for outside in (of, -1):
        with pytest.raises(ValueError, match="^shard: "):
            Shard(outside, of)


def test_schedule_lag_without_stalls_is_below_the_minimum_sleep() -> None:
    schedule, clock = SendSchedule.for_duration(5000.0, 2.0), FakeClock()
    late: list[int] = []
    pace(schedule, Shard(), 0, clock, lambda a, b: late.extend(clock.now - schedule.due_ns(k) for k in range(a, b)))
    assert len(late) == 10_000 and 0 <= min(late) and max(late) <= MIN_SLEEP_NS


def _sleeps(rate: float, seconds: float, ahead_ns: int = 0) -> tuple[list[int], list[int]]:
    """Return the sleeps, and the spare times of idle calls, which use all but `ahead_ns` (0: nothing)."""
    clock, slept, spare = FakeClock(1_000), [], []

    def idle(spare_ns: int) -> None:
        spare.append(spare_ns)
        clock.now += spare_ns - ahead_ns if ahead_ns else 0

    clock.sleep_ns = lambda duration_ns: (slept.append(duration_ns), FakeClock.sleep_ns(clock, duration_ns))  # type: ignore[method-assign,func-returns-value,assignment]
    pace(SendSchedule.for_duration(rate, seconds), Shard(), 1_000, clock, lambda a, b: None, idle)
    return slept, spare


def test_sleep_lengths_are_bounded() -> None:
    assert _sleeps(50.0, 0.06) == ([20_000_000] * 2, [20_000_000] * 2)
    assert _sleeps(1_000.0, 0.009)[0] == [4_000_000] * 2  # records due meanwhile are sent together
    assert _sleeps(8.0, 0.25) == ([50_000_000, 50_000_000, 25_000_000], [125_000_000, 75_000_000, 25_000_000])


def test_idle_time_is_deducted_from_the_sleep() -> None:
    assert _sleeps(50.0, 0.04, ahead_ns=7_000_000) == ([7_000_000], [20_000_000])
    assert _sleeps(50.0, 0.04, ahead_ns=1) == ([4_000_000], [20_000_000])
    assert _sleeps(50.0, 0.04, ahead_ns=-1) == ([], [20_000_000])


def test_late_records_are_sent_in_bursts_of_64() -> None:
    bursts: list[tuple[int, int]] = []
    pace(SendSchedule.for_duration(150.0, 1.0), Shard(), 0, FakeClock(10**9), lambda a, b: bursts.append((a, b)))
    assert bursts == [(0, 64), (64, 128), (128, 150)]


def test_pace_stops_on_request() -> None:
    clock = FakeClock()
    sent = pace(
        SendSchedule.for_duration(100.0, 100.0),
        Shard(),
        0,
        clock,
        lambda a, b: None,
        is_stopped=lambda: clock.now > 10**9,
    )
    assert 100 <= sent <= 110


def test_decimal_fractions_are_exact_beyond_64_bits() -> None:
    counts = [
        SendSchedule.for_duration(rate, seconds).count for rate, seconds in ((0.1, 10.0), (0.3, 10.0), (0.3, 9.0))
    ]
    assert counts == [1, 3, 3]
    schedule = SendSchedule.for_duration(0.123456789012345, 1e6)
    assert schedule.due_array(5, 1, 3).dtype == np.int64
    assert schedule.due_array(5, 1, 3).tolist() == [schedule.due_ns(k) for k in (5, 6, 7)]
