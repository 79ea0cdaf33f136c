"""The rules of the dynamic topology under any course of events: pressure, admission, replay, replacement, frontier."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.dynamic.admission import Allowance, Orders, advance, asked, asked_at, note_asked
from spark_jobs.dynamic.control import Message, decode, encode
from spark_jobs.dynamic.frontier import Frontier, Reached
from spark_jobs.dynamic.pressure import (
    LEAST_PERIOD_S,
    LONGEST_WAIT_S,
    MOST_DIVISION,
    Act,
    PressureRules,
    Throttle,
    Watch,
)
from spark_jobs.dynamic.replacement import ReplacementRules, Ring, dispersion, groups_of, mean, task_of
from spark_jobs.dynamic.replay import EDEN, SPACES, Position, places, plan

factors = st.floats(0.51, 0.99)
divisors = st.floats(1.1, 8.0)


class Chain:
    """A stage below one that sends at `demand` unless it is throttled; both told the time in steps of 0.25 s.

    `deaf`: looks whose signal does not reach the stage above.
    """

    STEP_S = 0.25

    def __init__(
        self, rules: PressureRules, demand: float, capacity: float, deaf: frozenset[int] = frozenset()
    ) -> None:
        self.watch, self.throttle = Watch(rules), Throttle(rules.divisor)
        self.demand, self.capacity, self.deaf = demand, capacity, deaf
        self.queue, self.now_s, self.looks, self.sign_s = 0.0, 0.0, 0, 0.0
        self.signals: list[tuple[float, Act]] = []
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
            act = self.watch.look(self.now_s, int(self.queue), self.rate)
            if act:
                self.watch.sent(act, self.now_s, int(self.queue))
                self.signals.append((self.now_s, act))
            if (act or (self.watch.steps and self.now_s - self.sign_s >= 2)) and self.looks not in self.deaf:
                self.sign_s = self.now_s
                self.throttle.hear(self.watch.steps, self.now_s, self.rate)
            self.limits.add(self.throttle.limit)
        return self


@given(factors, divisors, st.integers(100, 100_000), st.floats(10, 10_000), st.floats(10, 10_000))
def test_pressure_keeps_the_rate_in_bounds_and_signals_at_most_once_a_period(
    load_factor: float, divisor: float, capacity: int, demand: float, served: float
) -> None:
    rules = PressureRules(capacity, load_factor, divisor)
    chain = Chain(rules, demand, served).run(120)
    assert all(limit is None or demand / MOST_DIVISION * 0.99 <= limit <= demand for limit in chain.limits)
    times = [at for at, _ in chain.signals]
    assert all(later - earlier >= LEAST_PERIOD_S for earlier, later in zip(times, times[1:], strict=False))
    if demand <= served:
        assert not chain.signals


@given(factors, divisors, st.integers(100, 100_000), st.floats(1.1, 20))
def test_the_first_rate_returns_after_an_overload_and_the_limit_is_gone(
    load_factor: float, divisor: float, capacity: int, overload: float
) -> None:
    chain = Chain(PressureRules(capacity, load_factor, divisor), demand=1000 * overload, capacity=1000).run(60)
    chain.demand = 500.0
    # Each of the steps may have to wait for the longest time, and the queue has to be worked off first.
    chain.run(capacity / 500 + (math.log(MOST_DIVISION, divisor) + 3) * LONGEST_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


@given(factors, st.floats(1.5, 4.0), st.integers(1000, 20_000), st.floats(1.2, 5))
def test_a_load_that_stays_makes_no_oscillation(
    load_factor: float, divisor: float, capacity: int, overload: float
) -> None:
    chain = Chain(PressureRules(capacity, load_factor, divisor), demand=1000 * overload, capacity=1000).run(1800)
    eased = [at for at, act in chain.signals if act is Act.EASE]
    # After a settling time a try is made once in a while, and its waits have grown to their end.
    late = [at for at in eased if at > 900]
    assert len(late) <= 900 / LONGEST_WAIT_S + 2
    assert chain.queue <= capacity + 2 * chain.demand


@given(st.integers(1000, 20_000), st.floats(1.2, 5), st.frozensets(st.integers(1, 400), max_size=400))
def test_signals_that_are_lost_do_no_lasting_harm(capacity: int, overload: float, deaf: frozenset[int]) -> None:
    chain = Chain(PressureRules(capacity), demand=1000 * overload, capacity=1000, deaf=deaf).run(100).run(10)
    assert (chain.throttle.limit is None) == (chain.watch.steps == 0)
    assert (chain.throttle.limit or 0) * 2**chain.watch.steps <= 1000 * overload * 1.001
    chain.demand = 500.0
    chain.run(chain.queue / 500 + (math.log2(MOST_DIVISION) + 3) * LONGEST_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


@given(
    st.integers(500, 5000), st.floats(10, 500),
    st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), min_size=50, max_size=300),
)  # fmt: skip
def test_at_most_one_signal_a_sensitivity_period(capacity: int, rate: float, queues: list[tuple[int, bool]]) -> None:
    """Whatever the queue does: equation 1, at the queue and the rate of the signal, is the least time to the next, and
    what cannot be seen yet is answered only if it is an excess after a step back.
    """
    rules, watch, quiet_until = PressureRules(capacity), Watch(PressureRules(capacity)), 0.0
    before: tuple[float, Act] | None = None
    for look, (queue, seen) in enumerate(queues):
        now_s = look * 0.25
        act = watch.look(now_s, queue, rate, seen=seen)
        if act is not None:
            assert now_s >= quiet_until
            if before is not None and not seen and now_s - before[0] < LONGEST_WAIT_S:
                assert (before[1], act) == (Act.EASE, Act.SLOW)
            watch.sent(act, now_s, queue)
            before, quiet_until = (now_s, act), now_s + rules.sensitivity_s(queue, rate)


@given(factors, st.integers(1, 10**9), st.floats(0, 1000))
def test_what_comes_of_one_batch_brings_no_pressure(load_factor: float, capacity: int, fan_out: float) -> None:
    rules = PressureRules(capacity, load_factor)
    most = rules.batch_most(fan_out)
    assert most >= 1 and (most == 1 or most * fan_out <= rules.high * (1 + 1e-9))


class BatchChain:
    """Two stages that work in batches, one beginning as the one before it ends: the upper one takes what its limit has
    earned, `room` at most; the lower one all that waits.
    """

    STEP_S = 0.25

    def __init__(self, rules: PressureRules, demand: float, capacity: float, fixed_s: tuple[float, float]) -> None:
        self.watch, self.throttle, self.allowance = Watch(rules), Throttle(rules.divisor), Allowance()
        self.room, self.demand, self.capacity, self.fixed_s = rules.batch_most(1.0), demand, capacity, fixed_s
        self.now_s, self.waiting, self.queue, self.most = 0.0, 0.0, 0, 0
        self.work: list[tuple[float, int]] = [(0.0, 0), (0.0, 0)]
        self.batches, self.marked = [0, 0], (0, 0)
        self.signals: list[tuple[float, Act, tuple[int, int]]] = []

    def run(self, seconds: float) -> BatchChain:
        for _ in range(round(seconds / self.STEP_S)):
            self.now_s += self.STEP_S
            self.waiting += self.demand * self.STEP_S
            if self.now_s >= self.work[0][0]:
                self.queue += self.work[0][1]
                limit = self.allowance.take(self.now_s, Orders(self.throttle.limit, room=self.room))
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
            act = self.watch.look(self.now_s, self.queue, self.demand, seen=seen)
            if act:
                self.watch.sent(act, self.now_s, self.queue)
                self.signals.append((self.now_s, act, (above, own)))
                self.marked = above, own
                self.throttle.hear(self.watch.steps, self.now_s, self.demand)
        return self


batch_times = st.tuples(st.floats(0.3, 5), st.floats(0.3, 5))


@given(st.integers(1000, 20_000), st.floats(1.5, 20), batch_times)
def test_an_excess_is_answered_once_for_each_time_it_can_be_seen(
    capacity: int, overload: float, fixed_s: tuple[float, float]
) -> None:
    chain = BatchChain(PressureRules(capacity), 1000 * overload, 1000, fixed_s).run(300)
    for (at, first, before), (later, second, then) in zip(chain.signals, chain.signals[1:], strict=False):
        if (first, second) == (Act.SLOW, Act.SLOW) and later - at < LONGEST_WAIT_S:
            assert then[0] >= before[0] + 2 and then[1] >= before[1] + 1


@given(st.integers(1000, 20_000), st.floats(1.5, 20), batch_times)
def test_batches_bring_the_first_rate_back_after_an_overload(
    capacity: int, overload: float, fixed_s: tuple[float, float]
) -> None:
    chain = BatchChain(PressureRules(capacity), 1000 * overload, 1000, fixed_s).run(60)
    chain.demand = 10.0
    chain.run((chain.waiting + chain.queue + capacity) / 500 * (1 + fixed_s[0] + fixed_s[1]) + 9 * 2 * LONGEST_WAIT_S)
    assert chain.throttle.limit is None and chain.watch.steps == 0


def test_one_excess_that_is_not_seen_yet_is_answered_once() -> None:
    """The queue grows until the first batch that was planned with the lower rate has ended."""
    watch = Watch(PressureRules(50_000))
    acts = []
    for look in range(40):
        queue = 45_000 + 500 * look
        act = watch.look(look * 0.25, queue, 20_000.0, seen=not acts)
        if act is not None:
            watch.sent(act, look * 0.25, queue)
            acts.append(act)
    assert acts == [Act.SLOW]


def test_an_excess_after_a_step_back_is_answered_at_once() -> None:
    watch = Watch(PressureRules(1000))
    for at, queue, act in ((0.0, 900, Act.SLOW), (60.0, 10, None), (120.0, 10, Act.EASE)):
        assert watch.look(at, queue, 1000.0) is act
        if act:
            watch.sent(act, at, queue)
    assert watch.look(120.0 + LEAST_PERIOD_S, 900, 1000.0, seen=False) is Act.SLOW


def test_a_queue_that_grows_again_is_signalled_below_its_old_length() -> None:
    watch = Watch(PressureRules(50_000))
    assert watch.look(0.0, 300_000, 1000.0) is Act.SLOW
    watch.sent(Act.SLOW, 0.0, 300_000)
    assert watch.look(60.0, 45_000, 1000.0) is None
    assert watch.look(120.0, 56_000, 1000.0) is None  # a rise as within a batch
    assert watch.look(121.0, 57_000, 1000.0) is Act.SLOW


def test_a_signal_is_due_again_until_it_was_sent() -> None:
    watch = Watch(PressureRules(100))
    assert watch.look(0.0, 90, 10.0) is Act.SLOW
    assert watch.look(0.1, 90, 10.0) is Act.SLOW  # the control topic did not take the first one
    watch.sent(Act.SLOW, 0.1, 90)
    assert watch.look(0.2, 95, 10.0) is None
    assert watch.look(0.1 + LEAST_PERIOD_S, 95, 10.0) is Act.SLOW


def test_equation_1_gives_half_the_time_until_the_queue_is_full() -> None:
    assert PressureRules(1000).sensitivity_s(800, 50.0) == pytest.approx(2.0)
    assert PressureRules(1000).sensitivity_s(1200, 50.0) == LEAST_PERIOD_S
    assert PressureRules(1000).sensitivity_s(0, 0.001) == LONGEST_WAIT_S


def test_a_shrinking_queue_needs_no_further_signal() -> None:
    watch = Watch(PressureRules(100))
    assert watch.look(0.0, 95, 10.0) is Act.SLOW
    watch.sent(Act.SLOW, 0.0, 95)
    assert watch.look(5.0, 90, 10.0) is None
    assert watch.look(5.0, 96, 10.0) is Act.SLOW


def test_a_limit_is_given_up_when_nobody_renews_it() -> None:
    throttle = Throttle(2.0, lease_s=10.0)
    throttle.hear(1, 0.0, 100.0)
    assert throttle.limit == 50.0
    throttle.hear(1, 8.0, 50.0)
    assert not throttle.check(17.0)
    assert throttle.limit == 50.0
    assert throttle.check(18.0)
    assert throttle.limit is None


@given(divisors, st.integers(1, 200), st.floats(1.0, 1e6))
def test_as_many_easings_as_signals_give_the_first_rate_back(divisor: float, signals: int, rate: float) -> None:
    throttle = Throttle(divisor)
    for steps in range(signals):
        throttle.hear(steps + 1, 0.0, rate)
        assert throttle.limit is not None and rate / MOST_DIVISION <= throttle.limit < rate
    for steps in reversed(range(signals)):
        assert throttle.limit is not None
        throttle.hear(steps, 0.0, rate)
    assert throttle.limit is None


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 10**9))
def test_messages_survive_the_control_topic(to: str, act: str, count: int) -> None:
    message = Message(to, act, count)
    assert decode(encode(message)) == message


@given(st.binary())
def test_nothing_on_the_control_topic_breaks_a_reader(value: bytes) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(
    "value",
    [
        None, b"null", b"[]", b"{}", b'"x"', b'{"version":2,"to":"b","act":"slow"}', b"[" * 200_000,
        b'{"version":1,"to":1,"act":"slow"}', b'{"version":1,"to":"b","act":"slow","x":1}',
        b'{"version":1,"to":"b","act":"failed","count":"7"}', b'{"version":1,"to":"b","act":"slow","count":-1}',
    ],
)  # fmt: skip
def test_messages_of_another_version_are_left_out(value: bytes | None) -> None:
    assert decode(value) is None


offsets = st.dictionaries(st.sampled_from("01234"), st.integers(0, 50), min_size=1)


@given(offsets, offsets, st.none() | st.integers(0, 200))
def test_a_batch_takes_its_budget_and_no_more(start: dict[str, int], more: dict[str, int], budget: int | None) -> None:
    ends = {partition: at + more.get(partition, 0) for partition, at in start.items()}
    reached = advance(start, ends, budget)
    taken = sum(reached.values()) - sum(start.values())
    waiting = sum(ends.values()) - sum(start.values())
    assert taken == (waiting if budget is None else min(waiting, budget))
    assert all(start[partition] <= reached[partition] <= ends[partition] for partition in start)


def test_a_topic_that_was_made_anew_takes_nothing_back() -> None:
    assert advance({"0": 10}, {"0": 3}, None) == {"0": 10}
    assert advance({"0": 10}, {}, 5) == {"0": 10}


@given(st.lists(st.floats(0, 9), min_size=1, max_size=100), st.floats(1, 1000))
def test_an_allowance_follows_the_rate_however_long_batches_take(steps: list[float], limit: float) -> None:
    allowance, now, taken = Allowance(), 0.0, 0
    allowance.take(now, Orders())
    for step in steps:
        now += step
        taken += allowance.take(now, Orders(limit)) or 0
    assert limit * now - 1.001 <= taken <= limit * now + 0.001


def test_a_long_batch_earns_ten_seconds_at_most_and_no_limit_earns_nothing() -> None:
    allowance = Allowance()
    assert allowance.take(0.0, Orders()) is None
    assert allowance.take(100.0, Orders(5.0)) == 50
    assert allowance.take(101.0, Orders(5.0, most=3)) == 3
    assert Allowance().take(0.0, Orders(most=7)) == 7
    assert Allowance().take(0.0, Orders(most=7, room=5)) == Allowance().take(0.0, Orders(room=5)) == 5


def test_the_lowest_limit_lets_a_record_through_some_time() -> None:
    allowance = Allowance()
    assert sum(allowance.take(second, Orders(0.1)) or 0 for second in range(101)) == 10


def test_orders_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert Orders.read(tmp_path / "x") == Orders()
    Orders(12.5, 7, 9, True).write(tmp_path / "x")
    assert Orders.read(tmp_path / "x") == Orders(12.5, 7, 9, True)


def queues(eden: int, a: int, b: int) -> dict[str, dict[str, int]]:
    return {EDEN: {"0": eden}, "a": {"0": a}, "b": {"0": b}}


BEGIN = Position(queues(0, 0, 0))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(1, 15)), max_size=40),
    st.integers(1, 15),
)
def test_every_tuple_is_read_once_and_none_waits_for_ever(
    course: list[tuple[int, int, int | None]], budget: int
) -> None:
    position, ends = BEGIN, queues(0, 0, 0)
    read = dict.fromkeys((EDEN, *SPACES), 0)

    def step(limit: int | None) -> None:
        nonlocal position
        after = plan(position, ends, limit)
        for queue, _, first, last in places(position, after):
            assert first == read[queue] < last <= ends[queue]["0"]
            read[queue] = last
        position = after

    for new, failed, limit in course:
        ends[EDEN]["0"] += new
        ends[position.from_]["0"] += failed
        step(limit)
    everything = sum(end["0"] for end in ends.values())
    for _ in range(everything + 3):
        step(budget)
    assert sum(read.values()) == everything
    assert plan(position, ends, None) is position


def test_to_is_read_before_eden_and_then_the_roles_change() -> None:
    first = plan(BEGIN, queues(10, 0, 0), 4)
    assert (first.offsets[EDEN]["0"], first.to) == (4, "b")
    # Something failed: it goes to From, which is `a` now, and becomes To with the next swap.
    second = plan(first, queues(10, 3, 0), 4)
    assert (second.offsets[EDEN]["0"], second.offsets["a"]["0"], second.to) == (8, 0, "a")
    third = plan(second, queues(10, 3, 0), 4)
    assert (third.offsets["a"]["0"], third.offsets[EDEN]["0"], third.to) == (3, 9, "b")


@given(st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 9), min_size=2), st.sampled_from(SPACES))
def test_a_position_survives_the_offset_log(eden: dict[str, int], to: str) -> None:
    position = Position({EDEN: eden, "a": {"0": 1}, "b": {}}, to)
    assert Position.of(position.document()) == position


failures = st.lists(st.integers(0, 10_000), min_size=1, max_size=30)


@given(failures, st.floats(0.1, 1.0))
def test_mean_and_dispersion_agree_with_a_reference(failed: list[int], decay: float) -> None:
    weights = decay ** np.arange(len(failed) - 1, -1, -1, dtype=float)
    assert mean(failed) == pytest.approx(np.mean(failed))
    assert dispersion(failed, decay) == pytest.approx(np.mean(weights * (np.array(failed) - np.mean(failed)) ** 2))


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 8), st.integers(1, 16))
def test_parallelism_doubles_or_halves_within_its_bounds(failed: list[int], parallelism: int, most: int) -> None:
    ring = Ring(ReplacementRules(windows=3, threshold=50.0))
    parallelism = min(parallelism, most)
    for one in failed:
        wanted = ring.close_window(one, parallelism, most)
        assert wanted in {parallelism, min(parallelism * 2, most), max(parallelism // 2, 1)}
        parallelism = wanted


def test_more_failures_double_fewer_halve_and_a_steady_number_does_nothing() -> None:
    rules = ReplacementRules(windows=3, threshold=10.0)
    assert [Ring(rules).close_window(0, 2, 8) for _ in range(5)] == [2] * 5
    ring = Ring(rules)
    assert [ring.close_window(failed, 2, 8) for failed in (0, 0, 100)] == [2, 2, 4]
    # What it saw of two tasks says nothing about four.
    assert [ring.close_window(failed, 4, 8) for failed in (0, 0)] == [4, 4]
    ring = Ring(rules)
    assert [ring.close_window(failed, 4, 8) for failed in (100, 100, 0)] == [4, 4, 2]
    ring = Ring(rules)
    assert [ring.close_window(500, 2, 8) for _ in range(6)] == [2] * 6


@given(st.integers(1, 16), st.integers(1, 64))
def test_half_of_the_groups_move_when_the_parallelism_doubles(parallelism: int, groups: int) -> None:
    moved = 0
    for group in range(groups):
        before, after = task_of(group, parallelism), task_of(group, 2 * parallelism)
        assert after in (before, before + parallelism)
        moved += after != before
    assert abs(moved - groups / 2) <= parallelism / 2
    read = [group for task in range(parallelism) for group in groups_of(task, parallelism, groups)]
    assert sorted(read) == list(range(groups))


def test_when_a_plan_was_asked_for_is_noted_for_others(tmp_path: Path) -> None:
    orders = tmp_path / "count.orders"
    before = time.time_ns()
    assert asked_at(orders) >= before, "not yet: it may be any moment"
    note_asked(orders)
    noted = asked_at(orders)
    assert before <= noted <= time.time_ns() and asked_at(orders) == noted
    assert asked(orders) == tmp_path / "count.asked" != asked(tmp_path / "count-rehearsal.orders")


def test_the_frontier_follows_the_slowest_stage() -> None:
    frontier = Frontier(3)
    frontier.took({"0": 5}, 100, {"0": 50})
    frontier.took({"0": 9}, 200, {"0": 90})
    assert frontier.advance(lambda: False) is None
    frontier.passed(1, {"0": 60}, {"0": 600})
    frontier.passed(2, {"0": 599}, {})
    assert frontier.advance(lambda: False) is None
    frontier.passed(2, {"0": 600}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 5}, 100)
    assert frontier.advance(lambda: False) is None
    frontier.passed(1, {"0": 90}, {"0": 900})
    frontier.passed(2, {"0": 900}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 9}, 200)


def test_input_of_which_nothing_is_left_is_through_without_another_batch_below() -> None:
    frontier = Frontier(3)
    frontier.took({"0": 5}, 100, {"0": 50})
    frontier.passed(1, {"0": 50}, {"0": 500})
    frontier.passed(2, {"0": 500}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 5}, 100)
    # All of its tuples were set aside: the stage below gets nothing, and ends no batch.
    frontier.took({"0": 6}, 200, {"0": 51})
    frontier.passed(1, {"0": 51}, {"0": 500})
    assert frontier.advance(lambda: False) == Reached({"0": 6}, 200)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60), st.integers(1, 3))
def test_the_frontier_is_what_went_through_a_chain_of_queues(course: list[tuple[int, int]], factor: int) -> None:
    """Three stages; each batch of a stage puts out `factor` tuples for each that it takes."""
    frontier = Frontier(3)
    taken, put = [0, 0, 0], [0, 0, 0]
    done = 0

    def batch(stage: int, most: int) -> None:
        nonlocal done
        ends = taken[stage] + (most if stage == 0 else min(most, put[stage - 1] - taken[stage]))
        put[stage] += factor * (ends - taken[stage])
        taken[stage] = ends
        if stage == 0:
            frontier.took({"0": ends}, 1, {"0": put[0]})
        else:
            frontier.passed(stage, {"0": ends}, {"0": put[stage]} if stage == 1 else {})
        reached = frontier.advance(lambda: False)
        if reached is not None:
            assert reached.ends["0"] >= done
            done = reached.ends["0"]
        assert done * factor**2 <= taken[2], "nothing is through that the last stage has not taken in"

    for stage, most in course:
        batch(stage, most)
    for stage in (1, 2):
        batch(stage, 10**6)
    assert done == taken[0]


def test_the_newest_input_is_through_only_when_no_failed_tuple_waits() -> None:
    frontier = Frontier(2)
    frontier.took({"0": 5}, 100, {"0": 50})
    frontier.passed(1, {"0": 50}, {})
    assert frontier.advance(lambda: True) is None
    # The source reads the failed tuple again: a batch without new input.
    frontier.took({"0": 5}, 200, {"0": 51})
    assert frontier.advance(lambda: False) is None
    frontier.passed(1, {"0": 51}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 5}, 100)
    # With newer input behind it, the first attempt is what counts.
    frontier.took({"0": 7}, 300, {"0": 70})
    frontier.passed(1, {"0": 70}, {})
    frontier.took({"0": 8}, 400, {"0": 80})
    assert frontier.advance(lambda: True) == Reached({"0": 7}, 300)
