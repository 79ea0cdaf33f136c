"""Step-by-step back-pressure: bounded rates, one reaction per excess, no oscillation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.stages.admission import AdmissionLimits, RateBudget
from spark_jobs.stages.pressure import (
    MAX_DIVISION,
    MAX_WAIT_S,
    MIN_PERIOD_S,
    PressureRules,
    PressureSignal,
    PressureWatch,
    Throttle,
)

factors = st.floats(0.51, 0.99)
divisors = st.floats(1.1, 8.0)


class Chain:
    """A stage below one that sends at `demand` unless throttled, in time steps of 0.25 s.

    `deaf`: looks whose signal does not reach the stage above.
    """

    STEP_S = 0.25

    def __init__(
        self, rules: PressureRules, demand: float, capacity: float, deaf: frozenset[int] = frozenset()
    ) -> None:
        self.watch, self.throttle = PressureWatch(rules), Throttle(rules.divisor)
        self.demand, self.capacity, self.deaf = demand, capacity, deaf
        self.queue, self.now_s, self.looks, self.sign_s = 0.0, 0.0, 0, 0.0
        self.signals: list[tuple[float, PressureSignal]] = []
        self.limits: set[float | None] = set()

    @property
    def rate(self) -> float:
        return min(self.demand, self.throttle.limit or math.inf)

    def run(self, seconds: float) -> Chain:
        for _ in range(round(seconds / self.STEP_S)):
            self.now_s += self.STEP_S
            self.looks += 1
            self.throttle.check(self.now_s)
            self.queue = max(0.0, self.queue + (self.rate - self.capacity) * self.STEP_S)
            act = self.watch.evaluate(self.now_s, int(self.queue), self.rate)
            if act:
                self.watch.confirm(act, self.now_s, int(self.queue))
                self.signals.append((self.now_s, act))
            if (act or (self.watch.steps and self.now_s - self.sign_s >= 2)) and self.looks not in self.deaf:
                self.sign_s = self.now_s
                self.throttle.apply(self.watch.steps, self.now_s, self.rate)
            self.limits.add(self.throttle.limit)
        return self


@given(factors, divisors, st.integers(100, 100_000), st.floats(10, 10_000), st.floats(10, 10_000))
def test_pressure_keeps_the_rate_in_bounds_and_signals_at_most_once_a_period(
    load_factor: float, divisor: float, capacity: int, demand: float, served: float
) -> None:
    rules = PressureRules(capacity, load_factor, divisor)
    chain = Chain(rules, demand, served).run(120)
    assert all(limit is None or demand / MAX_DIVISION * 0.99 <= limit <= demand for limit in chain.limits)
    times = [at for at, _ in chain.signals]
    assert all(later - earlier >= MIN_PERIOD_S for earlier, later in zip(times, times[1:], strict=False))
    if demand <= served:
        assert not chain.signals


@given(factors, divisors, st.integers(100, 100_000), st.floats(1.1, 20))
def test_the_first_rate_returns_after_an_overload(
    load_factor: float, divisor: float, capacity: int, overload: float
) -> None:
    chain = Chain(PressureRules(capacity, load_factor, divisor), demand=1000 * overload, capacity=1000).run(60)
    chain.demand = 500.0
    # Each step may wait for the maximum time, after the queue is processed.
    chain.run(capacity / 500 + (math.log(MAX_DIVISION, divisor) + 3) * MAX_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


@given(factors, st.floats(1.5, 4.0), st.integers(1000, 20_000), st.floats(1.2, 5))
def test_constant_overload_causes_no_oscillation(
    load_factor: float, divisor: float, capacity: int, overload: float
) -> None:
    chain = Chain(PressureRules(capacity, load_factor, divisor), demand=1000 * overload, capacity=1000).run(1800)
    eased = [at for at, act in chain.signals if act is PressureSignal.EASE]
    # After settling, tries are rare, with the maximum wait.
    late = [at for at in eased if at > 900]
    assert len(late) <= 900 / MAX_WAIT_S + 2
    assert chain.queue <= capacity + 2 * chain.demand


@given(st.integers(1000, 20_000), st.floats(1.2, 5), st.frozensets(st.integers(1, 400), max_size=400))
def test_lost_signals_have_no_lasting_effect(capacity: int, overload: float, deaf: frozenset[int]) -> None:
    chain = Chain(PressureRules(capacity), demand=1000 * overload, capacity=1000, deaf=deaf).run(100).run(10)
    assert (chain.throttle.limit is None) == (chain.watch.steps == 0)
    assert (chain.throttle.limit or 0) * 2**chain.watch.steps <= 1000 * overload * 1.001
    chain.demand = 500.0
    chain.run(chain.queue / 500 + (math.log2(MAX_DIVISION) + 3) * MAX_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


@given(
    st.integers(500, 5000), st.floats(10, 500),
    st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), min_size=50, max_size=300),
)  # fmt: skip
def test_at_most_one_signal_a_sensitivity_period(capacity: int, rate: float, queues: list[tuple[int, bool]]) -> None:
    """Whatever the queue does: equation 1, at the queue and the rate of the signal, is the least time to the next, and
    what cannot be seen yet is answered only if it is an excess after a step back.
    """
    rules, watch, quiet_until = PressureRules(capacity), PressureWatch(PressureRules(capacity)), 0.0
    before: tuple[float, PressureSignal] | None = None
    for look, (queue, seen) in enumerate(queues):
        now_s = look * 0.25
        act = watch.evaluate(now_s, queue, rate, seen=seen)
        if act is not None:
            assert now_s >= quiet_until
            if before is not None and not seen and now_s - before[0] < MAX_WAIT_S:
                assert (before[1], act) == (PressureSignal.EASE, PressureSignal.SLOW)
            watch.confirm(act, now_s, queue)
            before, quiet_until = (now_s, act), now_s + rules.sensitivity_s(queue, rate)


@given(factors, st.integers(1, 10**9), st.floats(0, 1000))
def test_the_output_of_one_batch_causes_no_pressure(load_factor: float, capacity: int, fan_out: float) -> None:
    rules = PressureRules(capacity, load_factor)
    most = rules.batch_most(fan_out)
    assert most >= 1 and (most == 1 or most * fan_out <= rules.high * (1 + 1e-9))


class BatchChain:
    """Two stages with back-to-back batches: the upper one takes what its limit has
    earned, `room` at most; the lower one all that waits.
    """

    STEP_S = 0.25

    def __init__(self, rules: PressureRules, demand: float, capacity: float, fixed_s: tuple[float, float]) -> None:
        self.watch, self.throttle, self.allowance = PressureWatch(rules), Throttle(rules.divisor), RateBudget()
        self.room, self.demand, self.capacity, self.fixed_s = rules.batch_most(1.0), demand, capacity, fixed_s
        self.now_s, self.waiting, self.queue, self.most = 0.0, 0.0, 0, 0
        self.work: list[tuple[float, int]] = [(0.0, 0), (0.0, 0)]
        self.batches, self.marked = [0, 0], (0, 0)
        self.signals: list[tuple[float, PressureSignal, tuple[int, int]]] = []

    def run(self, seconds: float) -> BatchChain:
        for _ in range(round(seconds / self.STEP_S)):
            self.now_s += self.STEP_S
            self.waiting += self.demand * self.STEP_S
            if self.now_s >= self.work[0][0]:
                self.queue += self.work[0][1]
                limit = self.allowance.take(self.now_s, AdmissionLimits(self.throttle.limit, room=self.room))
                took = min(int(self.waiting), self.room if limit is None else limit)
                self.waiting -= took
                self.batches[0] += 1
                self.work[0] = self.now_s + self.fixed_s[0], took
            if self.now_s >= self.work[1][0]:
                self.batches[1] += 1
                self.work[1] = self.now_s + self.fixed_s[1] + self.queue / self.capacity, self.queue
                self.queue = 0
            self.most = max(self.most, self.queue)
            above, own = self.batches
            seen = above >= self.marked[0] + 2 and own >= self.marked[1] + 1
            act = self.watch.evaluate(self.now_s, self.queue, self.demand, seen=seen)
            if act:
                self.watch.confirm(act, self.now_s, self.queue)
                self.signals.append((self.now_s, act, (above, own)))
                self.marked = above, own
                self.throttle.apply(self.watch.steps, self.now_s, self.demand)
        return self


batch_times = st.tuples(st.floats(0.3, 5), st.floats(0.3, 5))


@given(st.integers(1000, 20_000), st.floats(1.5, 20), batch_times)
def test_an_excess_causes_one_signal_per_visible_change(
    capacity: int, overload: float, fixed_s: tuple[float, float]
) -> None:
    chain = BatchChain(PressureRules(capacity), 1000 * overload, 1000, fixed_s).run(300)
    for (at, first, before), (later, second, then) in zip(chain.signals, chain.signals[1:], strict=False):
        if (first, second) == (PressureSignal.SLOW, PressureSignal.SLOW) and later - at < MAX_WAIT_S:
            assert then[0] >= before[0] + 2 and then[1] >= before[1] + 1


@given(st.integers(1000, 20_000), st.floats(1.5, 20), batch_times)
def test_batches_restore_the_first_rate_after_an_overload(
    capacity: int, overload: float, fixed_s: tuple[float, float]
) -> None:
    chain = BatchChain(PressureRules(capacity), 1000 * overload, 1000, fixed_s).run(60)
    chain.demand = 10.0
    chain.run((chain.waiting + chain.queue + capacity) / 500 * (1 + fixed_s[0] + fixed_s[1]) + 9 * 2 * MAX_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


SLOW, EASE = PressureSignal.SLOW, PressureSignal.EASE
GROWING = [(look * 0.25, 45_000 + 500 * look, None) for look in range(1, 40)]


@pytest.mark.parametrize(
    ("capacity", "rate", "seen", "unseen"),
    [
        # Until the first batch planned with the lower rate has ended.
        pytest.param(50_000, 2e4, [(0.0, 45_000, SLOW)], GROWING, id="an excess is answered once until it is seen"),
        pytest.param(1000, 1000.0, [(0.0, 900, SLOW), (60.0, 10, None), (120.0, 10, EASE)],
                     [(120.0 + MIN_PERIOD_S, 900, SLOW)], id="an excess after a step back is answered at once"),
        # The third one is a variation within a batch.
        pytest.param(50_000, 1e3, [(0.0, 300_000, SLOW), (60.0, 45_000, None), (120.0, 56_000, None)],
                     [(121.0, 57_000, SLOW)], id="a queue that grows again is signalled below its old length"),
        pytest.param(100, 10.0, [(0.0, 95, SLOW), (5.0, 90, None), (5.0, 96, SLOW)], [], id="one that shrinks is not"),
    ],
)  # fmt: skip
def test_signals_of_a_sequence_of_queue_lengths(
    capacity: int,
    rate: float,
    seen: list[tuple[float, int, PressureSignal | None]],
    unseen: list[tuple[float, int, PressureSignal | None]],
) -> None:
    watch = PressureWatch(PressureRules(capacity))
    for number, (at, queue, act) in enumerate([*seen, *unseen]):
        assert watch.evaluate(at, queue, rate, seen=number < len(seen)) is act, at
        if act:
            watch.confirm(act, at, queue)


def test_a_signal_is_due_until_it_is_confirmed() -> None:
    watch = PressureWatch(PressureRules(100))
    assert [watch.evaluate(at, 90, 10.0) for at in (0.0, 0.1)] == [
        SLOW
    ] * 2  # the control topic did not take the first one
    watch.confirm(SLOW, 0.1, 90)
    assert [watch.evaluate(at, 95, 10.0) for at in (0.2, 0.1 + MIN_PERIOD_S)] == [None, SLOW]


def test_equation_1_gives_half_the_time_until_the_queue_is_full() -> None:
    assert PressureRules(1000).sensitivity_s(800, 50.0) == pytest.approx(2.0)
    assert PressureRules(1000).sensitivity_s(1200, 50.0) == MIN_PERIOD_S
    assert PressureRules(1000).sensitivity_s(0, 0.001) == MAX_WAIT_S


def test_a_limit_expires_without_signals() -> None:
    throttle = Throttle(2.0, lease_s=10.0)
    throttle.apply(1, 0.0, 100.0)
    assert throttle.limit == 50.0
    throttle.apply(1, 8.0, 50.0)
    assert not throttle.check(17.0)
    assert throttle.limit == 50.0
    assert throttle.check(18.0)
    assert throttle.limit is None


@given(divisors, st.integers(1, 200), st.floats(1.0, 1e6))
def test_equally_many_easings_and_signals_restore_the_first_rate(divisor: float, signals: int, rate: float) -> None:
    throttle = Throttle(divisor)
    for steps in range(signals):
        throttle.apply(steps + 1, 0.0, rate)
        assert throttle.limit is not None and rate / MAX_DIVISION <= throttle.limit < rate
    for steps in reversed(range(signals)):
        assert throttle.limit is not None
        throttle.apply(steps, 0.0, rate)
    assert throttle.limit is None
