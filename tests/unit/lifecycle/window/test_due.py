"""Injection times of planned faults, with an engine of given commits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.plan import Fault, FaultPlan
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import FaultPhase
from faultline.experiment.common_parameters import baseline_commits, earliest_fault_s, phase_of
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.lifecycle.window import measured_window as subject
from faultline.lifecycle.window.injection_time import InjectionTime, injection_time_of
from faultline.lifecycle.window.measured_window import barrier_wait
from faultline.system.journal import Instant
from faultline.system.kafka import OFFSETS_LEAD_S
from faultline.system.locks import is_measured, share_measurement_lock
from tests.support.fake_clock import FakeClock

NS = 10**9
# Far enough ahead that no instant is too soon for the broker.
T0 = Instant.now().plus(3600)


@dataclass
class Commits:
    """Engine with commits at these seconds after T0."""

    at_s: Sequence[float]
    asked: list[int] = field(default_factory=list)
    until: list[int] = field(default_factory=list)

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        assert cycle == "checkpoint"
        self.asked.append(not_before_ns)
        self.until.append(until_mono_ns)
        until_ns = T0.wall_ns + (until_mono_ns - T0.mono_ns)
        instants = [T0.plus(at).wall_ns for at in self.at_s]
        return next((one for one in sorted(instants) if not_before_ns <= one <= until_ns), None)


def due(
    engine: Commits, aim: FaultPhase | None, *, at_s: float, checkpoint_interval_s: float = 2.0, warmup_s: float = 20.0
) -> InjectionTime:
    plan = FaultPlan((Fault("executor", "kill", at_s=at_s),))
    (planned,) = plan.resolve(rate=100, checkpoint_interval_s=checkpoint_interval_s, snapshot_interval_s=10)
    assignment = SchedulerInput(
        "a",
        (planned,),
        100,
        "b",
        "in",
        checkpoint_interval_s=checkpoint_interval_s,
        warmup_s=warmup_s,
        target_phase=aim,
    )
    found = injection_time_of(planned, T0, assignment, engine)
    assert found is not None
    return found


def seconds(found: InjectionTime) -> float:
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
    found = due(Commits(commits), FaultPhase(phase, n, 1000.0), at_s=at_s, checkpoint_interval_s=checkpoint_interval_s)
    assert found.cycle_ns is not None
    began_s = (found.cycle_ns - T0.wall_ns) / NS
    assert seconds(found) == pytest.approx(began_s + phase * checkpoint_interval_s, abs=1e-6)
    assert at_s - 1e-6 <= seconds(found) <= at_s + checkpoint_interval_s + 1e-6
    assert sum(20.0 < one <= began_s + 1e-6 for one in commits) >= n - 1, "the planned time leaves room for n intervals"


def test_a_slow_engine_is_waited_for_until_its_baseline_is_long_enough() -> None:
    slow = [20.0 + 3.1 * number for number in range(1, 30)]
    found = due(Commits(slow), FaultPhase(0.5, 10, 90.0), at_s=41.0)
    assert seconds(found) == pytest.approx(20 + 31 + 1.0)


def test_one_that_commits_too_rarely_is_hit_at_the_latest_instant() -> None:
    found = due(Commits([25.0, 30.0]), FaultPhase(0.5, 10, 45.0), at_s=41.0)
    assert (seconds(found), found.cycle_ns) == (pytest.approx(45.0), None)
    due(silent := Commits([]), FaultPhase(0.5, 10, 45.0), at_s=41.0)
    assert max(silent.until) <= T0.plus(45.0 - OFFSETS_LEAD_S).mono_ns, "the broker must be asked before the act"
    late = due(Commits([20.0 + 2.4 * number for number in range(1, 30)]), FaultPhase(0.9, 10, 45.0), at_s=41.0)
    assert (seconds(late), late.cycle_ns) == (pytest.approx(45.0), None), "its phase would lie behind it"


def test_what_is_seen_too_late_for_the_broker_to_be_asked_comes_a_little_later() -> None:
    plan = FaultPlan((Fault("executor", "kill", at_s=0.0, cycle="checkpoint", phase=0.0),))
    (planned,) = plan.resolve(rate=100, checkpoint_interval_s=2.0, snapshot_interval_s=10)
    t0 = Instant.now()

    class Now(Commits):
        def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
            return t0.wall_ns

    before = time.monotonic_ns()
    found = injection_time_of(
        planned, t0, SchedulerInput("a", (planned,), 9, "b", "in", checkpoint_interval_s=2.0), Now([])
    )
    assert found is not None
    assert found.at.mono_ns >= before + OFFSETS_LEAD_S * NS


@given(st.integers(1, 64))
def test_phases_are_spread_over_the_cycle_however_many_there_are(n: int) -> None:
    phases = sorted(phase_of(repetition) for repetition in range(n))
    assert all(0 <= one < 1 for one in phases) and len(set(phases)) == n
    gaps = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + 1], strict=True)]
    assert max(gaps) <= 2 / n + 1e-12
    assert phase_of(0) == 0.5


# --- when a gate may open


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Attempt that got the machine after `before`."""
    for name in ("before", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "attempt.json").write_text("{}")
    mine = Attempt(tmp_path / "mine")
    mine.recorder_journal.write_text(json.dumps({"kind": "start", "after": "before"}) + "\n")
    return mine


@pytest.mark.parametrize(
    ("before", "end"),
    [("before", "closed.json"), ("before", "unhealed.json"), ("elsewhere/attempts/before", "closed.json")],
)
def test_it_opens_when_the_one_before_is_over_of_whatever_installation(
    attempt: Attempt, tmp_path: Path, before: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, clock = tmp_path / before, FakeClock(monkeypatch)
    other.mkdir(parents=True, exist_ok=True)
    (other / "attempt.json").write_text("{}")
    after = other.name if other.parent == tmp_path else str(other)
    attempt.recorder_journal.write_text(json.dumps({"kind": "start", "after": after}) + "\n")
    clock.at(clock.mono_ns + 20 * 10**9, (other / end).touch)
    with barrier_wait(attempt, None) as waited_s:
        assert 20 <= waited_s < 20 + 2 * subject.POLL_S


@pytest.mark.parametrize("after", [None, "unknown", "/nowhere/at/all"])
def test_it_does_not_wait_without_a_previous_attempt(attempt: Attempt, after: str | None) -> None:
    attempt.recorder_journal.write_text(json.dumps({"kind": "start", "after": after}) + "\n")
    with barrier_wait(attempt, None) as waited_s:
        assert waited_s < subject.PREVIOUS_CLOSE_S


def test_one_whose_run_died_does_not_hold_it_shut_for_ever(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeClock(monkeypatch)
    with barrier_wait(attempt, None) as waited_s:
        assert subject.PREVIOUS_CLOSE_S <= waited_s < subject.PREVIOUS_CLOSE_S + 2 * subject.POLL_S


def test_other_work_holds_it_shut_and_is_kept_out_until_its_end(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "before" / "closed.json").touch()
    lock, working = tmp_path / "window.lock", threading.Event()

    def work() -> None:
        with share_measurement_lock(lock):
            working.set()
            threading.Event().wait(0.3)

    worker = threading.Thread(target=work)
    worker.start()
    working.wait(120)
    with barrier_wait(attempt, lock) as waited_s:
        assert waited_s > 0.1 and is_measured(lock)
    worker.join(120)
