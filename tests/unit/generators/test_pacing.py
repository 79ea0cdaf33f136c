"""The schedule keeps exact time, and the pacer sends all of it whatever happens."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.pacing import BURST, SHORTEST_SLEEP_NS, Schedule, Stripe, pace
from generators.piecewise import NANOSECONDS

RATES = st.one_of(
    st.integers(1, 500_000).map(float), st.floats(0.01, 500_000, allow_nan=False), st.sampled_from([0.1, 333.33, 1e-3])
)


class FakeClock:
    """Time that passes only by sleeping, or by what a send costs."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, duration_ns: int) -> None:
        self.now += duration_ns


@given(RATES, st.integers(0, 10**10))
def test_due_count_inverts_due_ns(rate: float, k: int) -> None:
    schedule = Schedule.over(rate, 1e9)
    k %= schedule.count
    due = schedule.due_ns(k)
    assert schedule.due_ns(k + 1) >= due
    assert schedule.due_count(due) >= k + 1
    assert schedule.due_count(due - 1) <= k or schedule.due_ns(k - 1) == due


@given(RATES, st.integers(0, 10**9))
def test_no_drift_however_long(rate: float, k: int) -> None:
    exact = Fraction(k) * NANOSECONDS / Fraction(str(rate))
    assert 0 <= exact - Schedule.over(rate, 1e9).due_ns(k) < 1


@given(st.integers(1, 100_000), st.integers(1, 10_000))
def test_count_is_rate_times_seconds(rate: int, seconds: int) -> None:
    schedule = Schedule.over(float(rate), float(seconds))
    assert schedule.count == rate * seconds
    assert schedule.due_ns(schedule.count - 1) < seconds * NANOSECONDS <= schedule.due_ns(schedule.count)
    assert schedule.due_count(10**15 * seconds) == schedule.count
    assert schedule.due_count(-1) == 0


def test_decimal_fractions_mean_what_they_say() -> None:
    assert Schedule.over(0.1, 10.0).count == 1
    assert Schedule.over(0.3, 10.0).count == 3
    assert Schedule.over(0.3, 9.0).count == 3  # due at 0, 3.3 and 6.7 s


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Schedule.over(rate, 1.0)


@given(RATES, st.integers(0, 10**12), st.integers(1, 8), st.integers(1, 50))
def test_due_array_is_due_ns(rate: float, first: int, step: int, n: int) -> None:
    schedule = Schedule(Fraction(str(rate)), 10**15)
    if schedule.due_ns(first + n * step) < 2**62:
        expected = [schedule.due_ns(first + j * step) for j in range(n)]
        assert schedule.due_array(first, step, n).tolist() == expected


@given(st.integers(1, 9), st.integers(0, 200))
def test_stripes_partition_the_schedule(of: int, count: int) -> None:
    stripes = [Stripe(index, of) for index in range(of)]
    parts = [stripe.records(0, stripe.share(count)).tolist() for stripe in stripes]
    assert sorted(sum(parts, [])) == list(range(count))
    assert all(stripe.record(j) == k for stripe, part in zip(stripes, parts, strict=True) for j, k in enumerate(part))


def test_a_stripe_outside_the_crew_is_refused() -> None:
    with pytest.raises(ValueError, match="stripe 2 of 2"):
        Stripe(2, 2)


@given(
    st.integers(1, 20_000),
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.integers(0, 200_000_000), max_size=20),
)
def test_pace_sends_all_in_order_and_never_early(rate: int, of: int, index: int, stalls: list[int]) -> None:
    schedule, stripe = Schedule(Fraction(rate), 400), Stripe(index % of, of)
    clock, start = FakeClock(1_000), 500_000_000
    sent: list[int] = []
    pending = list(stalls)

    def send(first: int, last: int) -> None:
        assert first == len(sent) and 0 < last - first <= BURST
        records = stripe.records(first, last - first)
        assert all(start + schedule.due_ns(int(k)) <= clock.now for k in records)
        sent.extend(records.tolist())
        clock.now += pending.pop() if pending else 1_000

    assert pace(schedule, stripe, start, clock, send) == len(sent)
    assert sent == list(range(stripe.index, 400, of))


def test_lateness_without_stalls_is_below_the_shortest_sleep() -> None:
    schedule, clock = Schedule.over(5000.0, 2.0), FakeClock()
    late: list[int] = []
    pace(schedule, Stripe(), 0, clock, lambda a, b: late.extend(clock.now - schedule.due_ns(k) for k in range(a, b)))
    assert len(late) == 10_000 and 0 <= min(late) and max(late) <= SHORTEST_SLEEP_NS


def test_pace_stops_when_asked() -> None:
    clock = FakeClock()
    sent = pace(Schedule.over(100.0, 100.0), Stripe(), 0, clock, lambda a, b: None, stopped=lambda: clock.now > 10**9)
    assert 100 <= sent <= 110


def test_due_array_survives_numbers_beyond_64_bits() -> None:
    schedule = Schedule.over(0.123456789012345, 1e6)
    assert schedule.due_array(5, 1, 3).dtype == np.int64
    assert schedule.due_array(5, 1, 3).tolist() == [schedule.due_ns(k) for k in (5, 6, 7)]
