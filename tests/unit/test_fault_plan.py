"""Fault plans: what is accepted, what is refused and how it is said, and the round trip through JSON."""

from __future__ import annotations

import json
import signal
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.errors import PlanError
from fault.plan import ACTIONS, Fault, FaultPlan

TIMES = st.floats(min_value=0, max_value=1e5, allow_nan=False)


@st.composite
def plans(draw: st.DrawFn) -> FaultPlan:
    faults: list[Fault] = []
    clock = draw(TIMES)
    for _ in range(draw(st.integers(0, 4))):
        action = draw(st.sampled_from(sorted(ACTIONS)))
        duration = draw(st.floats(min_value=0.001, max_value=1e3)) if action == "pause" else None
        faults.append(Fault("executor", action, clock, duration, draw(st.integers(1, 64))))
        clock = faults[-1].end_s + draw(st.floats(min_value=0.1, max_value=1e3))
    return FaultPlan(tuple(faults), seed=draw(st.integers(0, 2**63 - 1)))


@given(plans())
def test_a_plan_survives_json(plan: FaultPlan) -> None:
    text = plan.to_json()
    assert FaultPlan.from_json(text) == plan
    assert FaultPlan.from_json(text).to_json() == text


@given(plans())
def test_every_fault_of_a_plan_lies_within_an_end_beyond_it(plan: FaultPlan) -> None:
    last = max((fault.end_s for fault in plan.faults), default=0.0)
    plan.require_within(last + 1)
    if plan.faults:
        with pytest.raises(PlanError):
            plan.require_within(last)


def test_a_kill_needs_no_more_than_its_victim_action_and_time() -> None:
    fault = Fault("executor", "kill", 41)
    assert fault.signum is signal.SIGKILL
    assert fault.undo_signum is None
    assert (fault.count, fault.duration_s, fault.end_s) == (1, None, 41.0)


def test_a_pause_is_undone_and_ends_after_its_duration() -> None:
    fault = Fault("executor", "pause", 10, 2.5)
    assert fault.signum is signal.SIGSTOP
    assert fault.undo_signum is signal.SIGCONT
    assert fault.end_s == 12.5


def test_plans_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Fault("executor", "kill", 1).at_s = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        FaultPlan().seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"victim": "executr"}, "victim"),
        ({"victim": 3}, "victim"),
        ({"action": "explode"}, "action"),
        ({"at_s": -1}, "at_s"),
        ({"at_s": float("nan")}, "at_s"),
        ({"at_s": float("inf")}, "at_s"),
        ({"at_s": "soon"}, "at_s"),
        ({"at_s": True}, "at_s"),
        ({"at_s": None}, "at_s"),
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({"count": 1.5}, "count"),
        ({"duration_s": 2}, "duration_s"),
        ({"action": "pause"}, "duration_s"),
        ({"action": "pause", "duration_s": 0}, "duration_s"),
        ({"action": "pause", "duration_s": -2}, "duration_s"),
        ({"when": 3}, "when"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_that_names_its_key(changes: dict[str, Any], key: str) -> None:
    values = {"victim": "executor", "action": "kill", "at_s": 5, **changes}
    with pytest.raises(PlanError) as caught:
        FaultPlan.from_mapping({"faults": [values], "seed": 1})
    assert str(caught.value).startswith(f"faults.0.{key}: ")
    assert "\n" not in str(caught.value)


def test_the_nearest_known_name_is_offered() -> None:
    with pytest.raises(PlanError, match="did you mean executor"):
        Fault("executer", "kill", 1)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{", "fault_plan"),
        ("[]", "fault_plan"),
        ('{"faults": {}}', "faults"),
        ('{"faults": "kill"}', "faults"),
        ('{"faults": [3]}', "faults.0.fault"),
        ('{"faults": [{}]}', "faults.0.action"),
        ('{"seed": -1}', "seed"),
        ('{"seed": "x"}', "seed"),
        ('{"sed": 1}', "sed"),
    ],
)
def test_a_malformed_plan_is_refused_with_its_key(text: str, key: str) -> None:
    with pytest.raises(PlanError) as caught:
        FaultPlan.from_json(text)
    assert str(caught.value).startswith(f"{key}: ")


def test_faults_that_overlap_are_refused() -> None:
    pause = {"victim": "executor", "action": "pause", "at_s": 5, "duration_s": 10}
    kill = {"victim": "executor", "action": "kill", "at_s": 15}
    with pytest.raises(PlanError, match=r"^faults\.1\.at_s: .* overlaps"):
        FaultPlan.from_json(json.dumps({"faults": [pause, kill]}))
