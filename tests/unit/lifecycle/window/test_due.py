"""When a planned fault is due, against an engine whose commits are given."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.plan import Fault, FaultPlan
from faultline.engines.base import Offsets
from faultline.experiment.common import baseline_commits, earliest_fault_s, phase_of
from faultline.experiment.plan import Aim
from faultline.lifecycle.assignment import Assignment
from faultline.lifecycle.window.due import Due, due_of
from faultline.system.journal import Instant
from faultline.system.kafka import OFFSETS_LEAD_S

NS = 10**9
# Far enough ahead that no instant is too soon for the broker.
T0 = Instant.now().plus(3600)


@dataclass
class Commits:
    """An engine that has committed at these seconds after T0."""

    at_s: Sequence[float]
    asked: list[int] = field(default_factory=list)

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        assert cycle == "checkpoint"
        self.asked.append(not_before_ns)
        until_ns = T0.wall_ns + (until_mono_ns - T0.mono_ns)
        instants = [T0.plus(at).wall_ns for at in self.at_s]
        return next((one for one in sorted(instants) if not_before_ns <= one <= until_ns), None)

    def committed(self) -> Offsets:
        raise NotImplementedError

    def covering(self, offsets: Offsets) -> int:
        raise NotImplementedError

    def runs(self) -> int:
        raise NotImplementedError

    def last_commit_ns(self) -> int:
        raise NotImplementedError


def due(
    engine: Commits, aim: Aim | None, *, at_s: float, checkpoint_interval_s: float = 2.0, warmup_s: float = 20.0
) -> Due:
    plan = FaultPlan((Fault("executor", "kill", at_s=at_s),))
    (planned,) = plan.resolve(rate=100, checkpoint_interval_s=checkpoint_interval_s, snapshot_interval_s=10)
    assignment = Assignment(
        "a", (planned,), 100, "b", "in", checkpoint_interval_s=checkpoint_interval_s, warmup_s=warmup_s, aim=aim
    )
    found = due_of(planned, T0, assignment, engine)
    assert found is not None
    return found


def seconds(found: Due) -> float:
    return (found.at.mono_ns - T0.mono_ns) / NS


def test_without_an_aim_the_time_is_kept_and_no_commit_asked_for() -> None:
    engine = Commits([1.0])
    assert seconds(due(engine, None, at_s=41.0)) == pytest.approx(41.0)
    assert engine.asked == []


@given(st.integers(0, 100), st.floats(0.2, 4.9), st.floats(0, 0.99))
def test_the_fault_comes_at_its_phase_of_the_first_cycle_that_allows_it(
    repetition: int, checkpoint_interval_s: float, offset: float
) -> None:
    n, phase = baseline_commits(checkpoint_interval_s), phase_of(repetition)
    at_s = earliest_fault_s(20.0, checkpoint_interval_s)
    commits = [checkpoint_interval_s * (offset + number) for number in range(200)]
    found = due(Commits(commits), Aim(phase, n, 1000.0), at_s=at_s, checkpoint_interval_s=checkpoint_interval_s)
    assert found.cycle_ns is not None
    began_s = (found.cycle_ns - T0.wall_ns) / NS
    assert seconds(found) == pytest.approx(began_s + phase * checkpoint_interval_s, abs=1e-6)
    assert at_s - 1e-6 <= seconds(found) <= at_s + checkpoint_interval_s + 1e-6
    assert sum(20.0 < one <= began_s + 1e-6 for one in commits) >= n - 1, "the planned time leaves room for n intervals"


def test_a_slow_engine_is_waited_for_until_its_baseline_is_long_enough() -> None:
    slow = [20.0 + 3.1 * number for number in range(1, 30)]
    found = due(Commits(slow), Aim(0.5, 10, 90.0), at_s=41.0)
    assert seconds(found) == pytest.approx(20 + 31 + 1.0)


def test_one_that_commits_too_rarely_is_hit_at_the_latest_instant() -> None:
    found = due(Commits([25.0, 30.0]), Aim(0.5, 10, 45.0), at_s=41.0)
    assert (seconds(found), found.cycle_ns) == (pytest.approx(45.0), None)
    asked: list[int] = []

    class Watched(Commits):
        def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
            asked.append(until_mono_ns)
            return None

    due(Watched([]), Aim(0.5, 10, 45.0), at_s=41.0)
    assert max(asked) <= T0.plus(45.0 - OFFSETS_LEAD_S).mono_ns, "the broker must be asked before the act"
    late = due(Commits([20.0 + 2.4 * number for number in range(1, 30)]), Aim(0.9, 10, 45.0), at_s=41.0)
    assert (seconds(late), late.cycle_ns) == (pytest.approx(45.0), None), "its phase would lie behind it"


def test_what_is_seen_too_late_for_the_broker_to_be_asked_comes_a_little_later() -> None:
    plan = FaultPlan((Fault("executor", "kill", at_s=0.0, cycle="checkpoint", phase=0.0),))
    (planned,) = plan.resolve(rate=100, checkpoint_interval_s=2.0, snapshot_interval_s=10)
    t0 = Instant.now()

    class Now(Commits):
        def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
            return t0.wall_ns

    before = time.monotonic_ns()
    found = due_of(planned, t0, Assignment("a", (planned,), 9, "b", "in", checkpoint_interval_s=2.0), Now([]))
    assert found is not None
    assert found.at.mono_ns >= before + OFFSETS_LEAD_S * NS


@given(st.integers(1, 64))
def test_phases_are_spread_over_the_cycle_however_many_there_are(n: int) -> None:
    phases = sorted(phase_of(repetition) for repetition in range(n))
    assert all(0 <= one < 1 for one in phases) and len(set(phases)) == n
    gaps = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + 1], strict=True)]
    assert max(gaps) <= 2 / n + 1e-12
    assert phase_of(0) == 0.5
