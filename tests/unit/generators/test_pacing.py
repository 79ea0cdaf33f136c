"""The schedule keeps exact time, and the pacer sends all of it whatever happens."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.curve import NANOSECONDS, parse_curve
from generators.pacing import BURST, SHORTEST_SLEEP_NS, Schedule, Stripe, pace

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


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rates_and_lengths_are_refused(value: float) -> None:
    for rate, seconds in ((value, 1.0), (1.0, value)):
        with pytest.raises(ValueError, match="rate .* and seconds .* must be"):
            Schedule.over(rate, seconds)


def test_along_a_curve_the_count_is_its_area_and_records_are_due_along_it() -> None:
    step = parse_curve({"kind": "step", "at_s": 2.0, "to": 30.0}, base=10.0, low=0, high=100)
    schedule = Schedule.over(10.0, 4.05, step)
    assert schedule.count == 2 * 10 + 62  # 61.5 of them, rounded up: what is due before the end
    due = schedule.due_array(0, 1, schedule.count).tolist()
    assert due == [schedule.due_ns(k) for k in range(82)]
    assert due[:3] == [0, 100_000_000, 200_000_000] and due[23] == 2_100_000_000
    for k in (0, 1, 20, 23, 81):
        assert schedule.due_count(due[k] - 1) == k
        assert schedule.due_count(due[k]) == k + 1
    assert schedule.due_count(10**12) == 82
    assert schedule.due_count(-1) == 0


@given(RATES, st.lists(st.integers(0, 10**6), max_size=12))
def test_any_records_are_due_when_each_alone_is(rate: float, records: list[int]) -> None:
    schedule = Schedule(Fraction(str(rate)), 10**15)
    found = schedule.due_of(np.array(records, dtype=np.uint64))
    assert found.dtype == np.int64
    assert found.tolist() == [schedule.due_ns(k) for k in records]


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 20))
def test_evenly_spaced_records_are_looked_up_together(first: int, step: int, n: int) -> None:
    schedule = Schedule(Fraction(7), 10**9)
    records = np.arange(first, first + n * step, step, dtype=np.uint64)
    expected = schedule.due_array(first, step, n).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schedule, "due_ns", lambda self, k: pytest.fail("one by one"))
        assert schedule.due_of(records).tolist() == expected


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


@pytest.mark.parametrize("index", [2, -1])
def test_a_stripe_outside_the_crew_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=f"stripe {index} of 2"):
        Stripe(index, 2)


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


def _sleeps(rate: float, seconds: float, ahead_ns: int = 0) -> tuple[list[int], list[int]]:
    """What was slept, and what was left when idle was called, of which it takes all but `ahead_ns` (0: takes none)."""
    clock, slept, spare = FakeClock(1_000), [], []

    def idle(spare_ns: int) -> None:
        spare.append(spare_ns)
        clock.now += spare_ns - ahead_ns if ahead_ns else 0

    clock.sleep_ns = lambda duration_ns: (slept.append(duration_ns), FakeClock.sleep_ns(clock, duration_ns))  # type: ignore[method-assign,func-returns-value,assignment]
    pace(Schedule.over(rate, seconds), Stripe(), 1_000, clock, lambda a, b: None, idle)
    return slept, spare


def test_a_sleep_takes_what_is_left_but_neither_too_little_nor_too_much() -> None:
    assert _sleeps(50.0, 0.06) == ([20_000_000] * 2, [20_000_000] * 2)
    assert _sleeps(1_000.0, 0.009)[0] == [4_000_000] * 2  # what comes due meanwhile goes together
    assert _sleeps(8.0, 0.25) == ([50_000_000, 50_000_000, 25_000_000], [125_000_000, 75_000_000, 25_000_000])


def test_what_idle_took_is_taken_off_the_sleep() -> None:
    assert _sleeps(50.0, 0.04, ahead_ns=7_000_000) == ([7_000_000], [20_000_000])
    assert _sleeps(50.0, 0.04, ahead_ns=1) == ([4_000_000], [20_000_000])
    assert _sleeps(50.0, 0.04, ahead_ns=-1) == ([], [20_000_000])


def test_no_sleep_when_idle_took_all_of_it() -> None:
    clock, left = FakeClock(), []

    def idle(spare_ns: int) -> None:
        left.append(spare_ns)
        clock.now += spare_ns

    clock.sleep_ns = lambda duration_ns: pytest.fail("sleeps")  # type: ignore[method-assign]
    assert pace(Schedule.over(10.0, 0.2), Stripe(), 0, clock, lambda a, b: None, idle) == 2
    assert left == [100_000_000]


def test_what_is_late_goes_in_bursts_of_64() -> None:
    bursts: list[tuple[int, int]] = []
    pace(Schedule.over(150.0, 1.0), Stripe(), 0, FakeClock(10**9), lambda a, b: bursts.append((a, b)))
    assert bursts == [(0, 64), (64, 128), (128, 150)]


def test_pace_stops_when_asked() -> None:
    clock = FakeClock()
    sent = pace(Schedule.over(100.0, 100.0), Stripe(), 0, clock, lambda a, b: None, stopped=lambda: clock.now > 10**9)
    assert 100 <= sent <= 110


def test_due_array_survives_numbers_beyond_64_bits() -> None:
    schedule = Schedule.over(0.123456789012345, 1e6)
    assert schedule.due_array(5, 1, 3).dtype == np.int64
    assert schedule.due_array(5, 1, 3).tolist() == [schedule.due_ns(k) for k in (5, 6, 7)]
