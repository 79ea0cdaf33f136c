"""Rules of the dynamic topology: control messages, admission, replay, replacement, frontier."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.stages.admission import (
    AdmissionLimits,
    RateBudget,
    advance,
    planned_at_ns,
    planning_file,
    record_planning,
)
from spark_jobs.stages.frontier import Frontier, Reached
from spark_jobs.stages.kafka import Message, decode, encode
from spark_jobs.stages.replacement import ReplacementRules, Ring, dispersion, groups_of, mean, task_of
from spark_jobs.stages.replay import EDEN, SPACES, Position, places, plan


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 10**9))
def test_control_messages_round_trip(to: str, act: str, count: int) -> None:
    message = Message(to, act, count)
    assert decode(encode(message)) == message


@given(st.binary())
def test_invalid_control_messages_are_ignored(value: bytes) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(
    "value",
    [
        None, b"null", b"[]", b"{}", b'"x"', b'{"version":2,"to":"b","act":"slow"}', b"[" * 200_000,
        b'{"version":1,"to":1,"act":"slow"}', b'{"version":1,"to":"b","act":"slow","x":1}',
        b'{"version":1,"to":"b","act":"failed","count":"7"}', b'{"version":1,"to":"b","act":"slow","count":-1}',
    ],
)  # fmt: skip
def test_messages_of_another_version_are_ignored(value: bytes | None) -> None:
    assert decode(value) is None


offsets = st.dictionaries(st.sampled_from("01234"), st.integers(0, 50), min_size=1)


@given(offsets, offsets, st.none() | st.integers(0, 200))
def test_a_batch_takes_at_most_its_budget(start: dict[str, int], more: dict[str, int], budget: int | None) -> None:
    ends = {partition: at + more.get(partition, 0) for partition, at in start.items()}
    reached = advance(start, ends, budget)
    taken = sum(reached.values()) - sum(start.values())
    waiting = sum(ends.values()) - sum(start.values())
    assert taken == (waiting if budget is None else min(waiting, budget))
    assert all(start[partition] <= reached[partition] <= ends[partition] for partition in start)
    less = {partition: at - 1 for partition, at in start.items()}
    assert advance(start, less, budget) == advance(start, {}, budget) == start, "of a recreated topic"


@given(st.lists(st.floats(0, 9), min_size=1, max_size=100), st.floats(1, 1000))
def test_the_budget_follows_the_rate(steps: list[float], limit: float) -> None:
    allowance, now, taken = RateBudget(), 0.0, 0
    allowance.take(now, AdmissionLimits())
    for step in steps:
        now += step
        taken += allowance.take(now, AdmissionLimits(limit)) or 0
    assert limit * now - 1.001 <= taken <= limit * now + 0.001


def test_a_long_batch_earns_at_most_ten_seconds() -> None:
    allowance = RateBudget()
    assert allowance.take(0.0, AdmissionLimits()) is None
    assert allowance.take(100.0, AdmissionLimits(5.0)) == 50
    assert allowance.take(101.0, AdmissionLimits(5.0, most=3)) == 3
    assert RateBudget().take(0.0, AdmissionLimits(most=7)) == 7
    assert (
        RateBudget().take(0.0, AdmissionLimits(most=7, room=5)) == RateBudget().take(0.0, AdmissionLimits(room=5)) == 5
    )
    lowest = RateBudget()
    assert sum(lowest.take(second, AdmissionLimits(0.1)) or 0 for second in range(101)) == 10


def test_limits_round_trip(tmp_path: Path) -> None:
    assert AdmissionLimits.read(tmp_path / "x") == AdmissionLimits()
    AdmissionLimits(12.5, 7, 9, True).write(tmp_path / "x")
    assert AdmissionLimits.read(tmp_path / "x") == AdmissionLimits(12.5, 7, 9, True)


def queues(eden: int, a: int, b: int) -> dict[str, dict[str, int]]:
    return {EDEN: {"0": eden}, "a": {"0": a}, "b": {"0": b}}


BEGIN = Position(queues(0, 0, 0))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(1, 15)), max_size=40),
    st.integers(1, 15),
)
def test_every_tuple_is_read_once_eventually(course: list[tuple[int, int, int | None]], budget: int) -> None:
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


def test_to_is_read_before_eden_and_then_roles_are_swapped() -> None:
    first = plan(BEGIN, queues(10, 0, 0), 4)
    assert (first.offsets[EDEN]["0"], first.to) == (4, "b")
    # A failed tuple goes to From, which is `a` now, and becomes To with the next swap.
    second = plan(first, queues(10, 3, 0), 4)
    assert (second.offsets[EDEN]["0"], second.offsets["a"]["0"], second.to) == (8, 0, "a")
    third = plan(second, queues(10, 3, 0), 4)
    assert (third.offsets["a"]["0"], third.offsets[EDEN]["0"], third.to) == (3, 9, "b")


@given(st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 9), min_size=2), st.sampled_from(SPACES))
def test_a_position_round_trips_through_the_offset_log(eden: dict[str, int], to: str) -> None:
    position = Position({EDEN: eden, "a": {"0": 1}, "b": {}}, to)
    assert Position.of(position.document()) == position


failures = st.lists(st.integers(0, 10_000), min_size=1, max_size=30)


@given(failures, st.floats(0.1, 1.0))
def test_mean_and_dispersion_match_a_reference(failed: list[int], decay: float) -> None:
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


def test_more_failures_double_and_fewer_halve_the_parallelism() -> None:
    rules = ReplacementRules(windows=3, threshold=10.0)
    assert [Ring(rules).close_window(0, 2, 8) for _ in range(5)] == [2] * 5
    ring, steady, calmer = Ring(rules), Ring(rules), Ring(rules)
    assert [ring.close_window(failed, 2, 8) for failed in (0, 0, 100)] == [2, 2, 4]
    # Failures of two tasks do not apply to four.
    assert [ring.close_window(failed, 4, 8) for failed in (0, 0)] == [4, 4]
    assert [calmer.close_window(failed, 4, 8) for failed in (100, 100, 0)] == [4, 4, 2]
    assert [steady.close_window(500, 2, 8) for _ in range(6)] == [2] * 6


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


def test_the_planning_time_is_recorded(tmp_path: Path) -> None:
    orders = tmp_path / "count.orders"
    before = time.time_ns()
    assert planned_at_ns(orders) >= before, "not yet: it may be any moment"
    record_planning(orders)
    noted = planned_at_ns(orders)
    assert before <= noted <= time.time_ns() and planned_at_ns(orders) == noted
    assert planning_file(orders) == tmp_path / "count.asked" != planning_file(tmp_path / "count-rehearsal.orders")


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


def test_input_without_remaining_tuples_completes_without_a_batch_below() -> None:
    frontier = Frontier(3)
    frontier.took({"0": 5}, 100, {"0": 50})
    frontier.passed(1, {"0": 50}, {"0": 500})
    frontier.passed(2, {"0": 500}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 5}, 100)
    # All tuples were set aside, so the stage below has no batch.
    frontier.took({"0": 6}, 200, {"0": 51})
    frontier.passed(1, {"0": 51}, {"0": 500})
    assert frontier.advance(lambda: False) == Reached({"0": 6}, 200)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60), st.integers(1, 3))
def test_the_frontier_matches_a_simulated_chain_of_queues(course: list[tuple[int, int]], factor: int) -> None:
    """Three stages; each emits `factor` tuples per input tuple."""
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


def test_the_newest_input_completes_only_without_failed_tuples() -> None:
    frontier = Frontier(2)
    frontier.took({"0": 5}, 100, {"0": 50})
    frontier.passed(1, {"0": 50}, {})
    assert frontier.advance(lambda: True) is None
    # The source reads the failed tuple again, in a batch without new input.
    frontier.took({"0": 5}, 200, {"0": 51})
    assert frontier.advance(lambda: False) is None
    frontier.passed(1, {"0": 51}, {})
    assert frontier.advance(lambda: False) == Reached({"0": 5}, 100)
    # With newer input, the first attempt counts.
    frontier.took({"0": 7}, 300, {"0": 70})
    frontier.passed(1, {"0": 70}, {})
    frontier.took({"0": 8}, 400, {"0": 80})
    assert frontier.advance(lambda: True) == Reached({"0": 7}, 300)
