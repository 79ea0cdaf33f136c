"""Fault plans: validation, resolution, and the round trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fault.errors import PlanError
from fault.fault_spec import PEERS, WAYS
from fault.plan import (
    CYCLES,
    OPTIONAL_FIELDS,
    SINGLETONS,
    WAIT_INTERVALS,
    Fault,
    FaultPlan,
    PlannedFault,
    require_window,
)
from fault.registry import ACTIONS, ALLOWED

SECONDS = st.floats(min_value=0, max_value=1e5, allow_nan=False)
LENGTHS = st.floats(min_value=0.001, max_value=1e3)
# Parameters that are not numbers, or have other limits.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "peer": st.sampled_from([None, *PEERS]),
    "way": st.sampled_from([None, *WAYS]),
    "mbit_s": st.floats(0.1, 1e5),
    "jitter_ms": st.none(),
    "loss_percent": st.floats(0.01, 90),
    "cores": st.integers(1, 256),
    "memory_mb": st.integers(1, 10**6),
}
RATE, CHECKPOINT_S, SNAPSHOT_S = 500.0, 2.0, 10.0


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    victim = draw(st.sampled_from(sorted(ALLOWED)))
    action = draw(st.sampled_from(ALLOWED[victim]))
    by_record = draw(st.booleans())
    cycle = draw(st.sampled_from([None, *CYCLES]))
    times = draw(st.integers(1, 4))
    return Fault(
        victim,
        action,
        at_s=None if by_record else draw(st.one_of(SECONDS, st.integers(0, 10**5))),
        at_record=draw(st.integers(1, 10**7)) if by_record else None,
        cycle=cycle,
        phase=None if cycle is None else draw(st.floats(0, 1, exclude_max=True)),
        **{one.name: draw(VALUES.get(one.name, LENGTHS)) for one in ACTIONS[action].parameters},
        count=1 if victim in SINGLETONS else draw(st.integers(1, 64)),
        every_s=draw(LENGTHS) if times > 1 else None,
        times=times,
    )


plans = st.builds(FaultPlan, st.lists(faults(), max_size=4).map(tuple), st.integers(0, 2**63 - 1))


def resolve(plan: FaultPlan, rate: float = RATE) -> tuple[PlannedFault, ...]:
    return plan.resolve(rate=rate, checkpoint_interval_s=CHECKPOINT_S, snapshot_interval_s=SNAPSHOT_S)


def kill(at_s: float | None = 5.0, **changes: Any) -> Fault:
    return Fault("executor", "kill", at_s=at_s, **changes)


@given(plans)
def test_a_plan_survives_json_and_mapping(plan: FaultPlan) -> None:
    text = plan.to_json()
    assert FaultPlan.from_mapping(json.loads(text)) == plan
    assert FaultPlan.from_mapping(json.loads(text)).to_json() == text
    assert FaultPlan.from_mapping(plan.as_mapping()) == plan
    names = {item.name for item in fields(Fault)}
    # Later fields are omitted while empty.
    assert all(names - OPTIONAL_FIELDS <= set(fault) <= names for fault in json.loads(text)["faults"])


def test_equal_plans_have_one_text() -> None:
    for at_s in ("0", "-0.0"):
        spelled = f'{{"faults": [{{"victim": "executor", "action": "kill", "at_s": {at_s}}}], "seed": 0}}'
        assert FaultPlan.from_mapping(json.loads(spelled)).to_json() == FaultPlan((kill(0.0),)).to_json()
    assert "-0" not in FaultPlan((kill(-0.0),)).to_json()


@given(plans)
def test_occurrences_come_in_order_of_time_and_never_overlap(plan: FaultPlan) -> None:
    try:
        planned = resolve(plan)
    except PlanError as refusal:
        assert str(refusal).startswith("faults.")
        assume(False)
    assert [one.index for one in planned] == list(range(len(planned)))
    assert len(planned) == sum(fault.times for fault in plan.faults)
    for one in planned:
        assert 0 <= one.earliest_s <= one.latest_s <= one.end_s
        assert one.fault.times == 1 and one.fault.every_s is None and one.fault.at_record is None
        assert one.fault.at_s == one.earliest_s
        waits_s = WAIT_INTERVALS * CHECKPOINT_S if one.fault.victim == "python_worker" else 0.0
        assert one.end_s == one.latest_s + waits_s + (one.fault.duration_s or 0.0)
        length = {"checkpoint": CHECKPOINT_S, "snapshot": SNAPSHOT_S, None: 0.0}[one.fault.cycle]
        assert one.latest_s == pytest.approx(one.earliest_s + 2 * length + (one.fault.phase or 0.0) * length)
    for earlier, later in zip(planned, planned[1:], strict=False):
        assert later.earliest_s > earlier.end_s
    # Resolving them again gives the same occurrences.
    assert resolve(FaultPlan(tuple(one.fault for one in planned), plan.seed)) == planned


@given(plans, st.randoms())
def test_the_order_of_the_list_does_not_matter(plan: FaultPlan, source: Any) -> None:
    shuffled = list(plan.faults)
    source.shuffle(shuffled)
    try:
        planned = resolve(plan)
    except PlanError:
        with pytest.raises(PlanError):
            resolve(replace(plan, faults=tuple(shuffled)))
    else:
        assert resolve(replace(plan, faults=tuple(shuffled))) == planned


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=5), LENGTHS)
def test_overlap_is_refused_exactly(instants: list[float], duration: float) -> None:
    plan = FaultPlan(tuple(Fault("worker", "pause", at_s=at_s, duration_s=duration) for at_s in instants))
    ordered = sorted(instants)
    if any(later <= earlier + duration for earlier, later in zip(ordered, ordered[1:], strict=False)):
        with pytest.raises(PlanError, match=r"^faults\.\d\.at_s: .*faults\.\d"):
            resolve(plan)
    else:
        assert [one.earliest_s for one in resolve(plan)] == ordered


def test_overlap_names_the_position_in_the_list() -> None:
    pause = {"victim": "executor", "action": "pause", "at_s": 5, "duration_s": 10}
    late = {"victim": "executor", "action": "kill", "at_s": 15}
    for listed, key in (([pause, late], "faults.1.at_s"), ([late, pause], "faults.0.at_s")):
        with pytest.raises(PlanError, match=f"^{key}: "):
            resolve(FaultPlan.from_mapping({"faults": listed}))
    by_record = {"victim": "driver", "action": "kill", "at_record": 5001}
    with pytest.raises(PlanError, match=r"^faults\.1\.at_record: .*faults\.0"):
        resolve(FaultPlan.from_mapping({"faults": [pause, by_record]}))


@given(plans, SECONDS, SECONDS, SECONDS)
def test_window_accepts_exactly_its_faults(plan: FaultPlan, low: float, high: float, end: float) -> None:
    try:
        planned = resolve(plan)
    except PlanError:
        assume(False)
    inside = all(one.earliest_s >= low and one.latest_s <= high and one.end_s < end for one in planned)
    if inside:
        require_window(planned, low_s=low, high_s=high, end_s=end)
    else:
        with pytest.raises(PlanError, match=r"^faults\.\d\.(at_s|at_record|duration_s): "):
            require_window(planned, low_s=low, high_s=high, end_s=end)


def test_window_names_the_key_of_the_fault_outside() -> None:
    planned = resolve(FaultPlan((kill(20.0), Fault("executor", "pause", at_s=40.0, duration_s=30.0))))
    require_window(planned, 20.0, 40.0, 70.1)
    for window, key in (((21, 40, 75), "0.at_s"), ((0, 39, 75), "1.at_s"), ((0, 40, 70), "1.duration_s")):
        with pytest.raises(PlanError, match=rf"^faults\.{key}: "):
            require_window(planned, *window)
    recurring = resolve(FaultPlan((kill(20.0, every_s=10.0, times=4),)))
    with pytest.raises(PlanError, match=r"^faults\.0\.at_s: .* 50 s"):
        require_window(recurring, 0.0, 45.0, 90.0)
    with pytest.raises(PlanError, match=r"^faults\.0\.at_s: occurrence 3: at_s: "):
        resolve(FaultPlan((kill(10.0, times=3, every_s=5e6),)))


@pytest.mark.parametrize(
    ("fault", "instants"),
    [
        (kill(None, at_record=1), [(0.0, 0.0, 0.0)]),
        (kill(None, at_record=5001), [(10.0, 10.0, 10.0)]),
        (kill(10.0, cycle="snapshot", phase=0.5), [(10.0, 35.0, 35.0)]),
        (Fault("kafka", "cut", 10.0, duration_s=2.0, every_s=5.0, times=2), [(10.0, 10.0, 12.0), (15.0, 15.0, 17.0)]),
    ],
)
def test_fault_times_from_record_cycle_and_repetition(fault: Fault, instants: list[tuple[float, float, float]]) -> None:
    assert [(one.earliest_s, one.latest_s, one.end_s) for one in resolve(FaultPlan((fault,)))] == instants


@pytest.mark.parametrize("name", ["rate", "checkpoint_interval_s"])
def test_resolve_checks_its_arguments(name: str) -> None:
    plan = FaultPlan((kill(1.0, cycle="checkpoint", phase=0.0),))
    with pytest.raises(PlanError, match=f"^{name}: "):
        plan.resolve(**{"rate": 1.0, "checkpoint_interval_s": 1.0, "snapshot_interval_s": 1.0, name: 0.0})


def test_plans_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        kill().at_s = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        FaultPlan().seed = 2  # type: ignore[misc]
    listed = [kill()]
    plan = FaultPlan(listed)  # type: ignore[arg-type]
    listed.clear()
    assert len(plan.faults) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        *(({"victim": victim}, "victim") for victim in ("executr", 3, "none")),
        ({"action": "explode"}, "action"),
        ({"action": "cut", "duration_s": 1}, "action"),
        ({"action": ["kill"]}, "action"),
        *(({"at_s": at}, "at_s") for at in (float("nan"), float("inf"), 10**400, "soon\nor later", True, None)),
        ({"at_record": 7}, "at_record"),
        ({"at_s": None, "at_record": 1.5}, "at_record"),
        ({"cycle": "moon", "phase": 0}, "cycle"),
        ({"cycle": "checkpoint"}, "phase"),
        ({"phase": 0.5}, "phase"),
        ({"count": 1.5}, "count"),
        *(({"count": 2, "victim": victim}, "count") for victim in ("driver", "kafka")),
        ({"duration_s": 2}, "duration_s"),
        ({"action": "pause"}, "duration_s"),
        ({"victim": "kafka", "action": "reset", "duration_s": 2}, "duration_s"),
        ({"victim": "kafka", "action": "delay", "delay_ms": 2}, "duration_s"),
        ({"victim": "kafka", "action": "delay", "duration_s": 2}, "delay_ms"),
        ({"delay_ms": 2}, "delay_ms"),
        ({"every_s": 2}, "every_s"),
        ({"times": 2}, "every_s"),
        ({"when": 3}, "when"),
        *(({"action": "partition", "duration_s": 2, key: 1.0}, key) for key in ("mbit_s", "cores", "memory_mb")),
        *(({"action": "partition", "duration_s": 2, key: "moon"}, key) for key in ("peer", "way")),
    ],
)
def test_invalid_value_is_refused_with_its_key(changes: dict[str, Any], key: str) -> None:
    values = {"victim": "executor", "action": "kill", "at_s": 5, **changes}
    with pytest.raises(PlanError) as caught:
        FaultPlan.from_mapping({"faults": [values], "seed": 1})
    message = str(caught.value)
    assert message.startswith(f"faults.0.{key}: ")
    assert "\n" not in message
    assert ";" in message


@pytest.mark.parametrize("name", ["executer", "TaskManager"])
def test_closest_known_name_is_suggested(name: str) -> None:
    with pytest.raises(PlanError, match="did you mean executor"):
        Fault(name, "kill", 1)
    with pytest.raises(PlanError, match="did you mean duration_s"):
        FaultPlan.from_mapping({"faults": [{"victim": "executor", "action": "kill", "durations": 1}]})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[]", "fault_plan"),
        *((f'{{"faults": {faults}}}', "faults") for faults in ("{}", '"kill"')),
        ('{"faults": [3]}', "faults.0.fault"),
        ('{"faults": [{}]}', "faults.0.action"),
        *((f'{{"seed": {seed}}}', "seed") for seed in ("-1", '"x"', "null")),
        ('{"sed": 1}', "sed"),
    ],
)
def test_a_malformed_plan_is_refused_with_its_key(text: str, key: str) -> None:
    with pytest.raises(PlanError) as caught:
        FaultPlan.from_mapping(json.loads(text))
    assert str(caught.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("make", "key", "accepted", "refused"),
    [
        (lambda value: FaultPlan(seed=value), "seed", (0, 2**63 - 1), (-1, 2**63)),
        (lambda value: kill(count=value), "count", (1, 64), (0, 65)),
        (lambda value: kill(times=value, every_s=1.0), "times", (2, 1000), (0, 1001)),
        (lambda value: kill(times=2, every_s=value), "every_s", (0.1, 1e7), (0, 1e7 + 1)),
        (lambda value: kill(at_s=value), "at_s", (0, 1e7), (-0.1, 1e7 + 1)),
        (lambda value: kill(None, at_record=value), "at_record", (1, 10**15), (0, 10**15 + 1)),
        (lambda value: kill(cycle="snapshot", phase=value), "phase", (0, 0.999), (-0.01, 1)),
        (lambda value: Fault("executor", "pause", 1.0, duration_s=value), "duration_s", (0.1, 1e7), (0, 1e7 + 1)),
        (
            lambda value: Fault("kafka", "delay", 1.0, duration_s=1.0, delay_ms=value), "delay_ms",
            (0.1, 600_000), (0, 600_001),
        ),
    ],
)  # fmt: skip
def test_limits_match_their_declaration(
    make: Callable[[Any], object], key: str, accepted: tuple[Any, Any], refused: tuple[Any, Any]
) -> None:
    for value in accepted:
        make(value)
    for value in refused:
        with pytest.raises(PlanError, match=f"^{key}: "):
            make(value)
