"""Matrices expand to cells, and a plan leaves out what is done."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.experiment.cell import Cell
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import Matrix, PlannedCell, control_of, plan, plan_pairs
from faultline.system.errors import ConfigError

states = st.lists(st.sampled_from([0.0, 1.0, 2.0, 8.0]), min_size=1, max_size=4, unique=True)
intervals = st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=3, unique=True)


def matrix(axes: dict[str, list[float]], repetitions: int = 1, controls: int = 0) -> Matrix:
    return Matrix(axes, {"duration_s": 90.0}, repetitions, controls)


@given(states, intervals, st.integers(1, 3), st.integers(0, 2))
def test_every_point_is_measured_each_repetition_once(
    sizes: list[float], seconds: list[float], repetitions: int, controls: int
) -> None:
    cells = matrix({"state_mb": sizes, "checkpoint_interval_s": seconds}, repetitions, controls).cells("s")
    assert len(cells) == len({cell.cell for cell in cells}) == len(sizes) * len(seconds) * repetitions + controls
    assert sum(cell.config.fault == "none" for cell in cells) == controls
    assert {cell.config.state_mb for cell in cells} == set(sizes)


@given(states, st.integers(0, 50), st.data())
def test_a_plan_is_the_matrix_minus_what_is_valid_in_an_order_fixed_by_the_seed(
    sizes: list[float], seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions=2).cells("s")
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    chosen = plan(cells, done, only_missing=True, seed=seed)
    assert {cell.cell for cell in chosen} == {cell.cell for cell in cells} - done
    assert chosen == plan(cells, done, only_missing=True, seed=seed)
    assert len(plan(cells, done, only_missing=False, seed=seed)) == len(cells)


@given(states, st.integers(2, 6), st.integers(0, 50), st.data())
def test_one_repetition_comes_after_the_other_each_in_an_order_of_its_own(
    sizes: list[float], repetitions: int, seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions).cells("s")
    whole = plan(cells, [], only_missing=True, seed=seed)
    assert [cell.repetition for cell in whole] == sorted(cell.repetition for cell in cells)
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    rest = [cell for cell in whole if cell.cell not in done]
    assert plan(cells, done, only_missing=True, seed=seed) == rest, "a sweep that is resumed goes on in its order"


def test_what_only_some_workloads_of_the_axis_have_the_others_are_measured_without() -> None:
    some = Matrix({"workload": ["word_count", "query", "program"]}, {"job": "/j.py", "application": "/a.py"})
    assert some.only_of == {"job": ["query"], "application": ["program"]}
    found = {one.workload: (one.job, one.application) for one in some.configurations()}
    assert found == {"word_count": (None, None), "query": ("/j.py", None), "program": (None, "/a.py")}
    plain = parse_configuration({"workload": "word_count"})
    assert plain in some.configurations(), "it is the same experiment as without the others"
    along = Matrix({"workload": ["word_count", "pi"], "iterations": [100, 1000]}, {}, repetitions=2)
    assert [(one.config.workload, one.config.iterations) for one in along.cells("s")[::2]] == [
        ("word_count", plain.iterations), ("pi", 100), ("pi", 1000)
    ]  # fmt: skip
    assert len(along.configurations()) == 3
    for lone in ({"workload": ["word_count"]}, {"workload": ["word_count", "pi"]}, {"seed": [1, 2]}):
        with pytest.raises(ConfigError, match="job: only query has it; leave it empty"):
            Matrix(lone, {"job": "/j.py"}).configurations()


def test_the_orders_of_repetitions_differ() -> None:
    cells = matrix({"state_mb": [1.0, 2.0, 3.0, 4.0]}, 8).cells("s")
    planned = [cell.config.state_mb for cell in plan(cells, [], only_missing=True, seed=1)]
    assert len({tuple(planned[4 * block : 4 * block + 4]) for block in range(8)}) > 4


def test_a_valid_record_of_another_series_does_not_count() -> None:
    cells = matrix({"state_mb": [1.0]}).cells("today")
    yesterday = [Cell(cell.config.config_id, cell.repetition, "yesterday") for cell in cells]
    assert plan(cells, yesterday, only_missing=True, seed=1) == cells


def test_a_control_is_the_same_experiment_without_its_fault() -> None:
    config = matrix({"state_mb": [1.0]}).configurations()[0]
    control = control_of(config)
    assert (control.fault, control.fault_at_s) == ("none", None)
    changed = {"fault", "fault_at_s"}
    assert config.model_dump(exclude=changed) == control.model_dump(exclude=changed)
    assert config.config_id != control.config_id


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"state": [1.0]}, "state: unknown parameter; did you mean state_mb?"),
        ({"state_mb": []}, "state_mb: the axis is empty"),
        ({"seed": list(range(1025))}, "seed: 1025 experiments are more than 1024; split"),
        ({"rate": [-1]}, "rate: -1 is refused"),
    ],
)
def test_a_wrong_matrix_is_refused_by_name(axes: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        matrix(axes).cells("s")


@given(st.integers(0, 99), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
@settings(max_examples=25, deadline=None)
def test_both_of_a_pair_come_one_after_the_other_in_blocks(seed: int, repetitions: int, done: Any) -> None:
    configs = [parse_configuration({"rate": 100 + number}) for number in range(3)]
    cells = [PlannedCell(config, number, "night") for number in range(repetitions) for config in configs]
    ordered = plan_pairs(cells, "other", (), only_missing=True, seed=seed)
    assert len(ordered) == len(set(ordered)) == 2 * len(cells)
    assert all(a.label == b.label and a.series != b.series for a, b in zip(ordered[::2], ordered[1::2], strict=True))
    assert [one.repetition for one in ordered] == sorted(one.repetition for one in ordered)
    measured = {cells[number % len(cells)] for number, _ in done}
    left = plan_pairs(cells, "other", [one.cell for one in measured], only_missing=True, seed=seed)
    assert left == [one for one in ordered if one not in measured], "a night that is resumed goes on in its order"
    assert plan_pairs(cells, "other", [one.cell for one in measured], only_missing=False, seed=seed) == ordered


def test_which_of_a_pair_comes_first_is_drawn_by_lot() -> None:
    config = parse_configuration({})
    cells = [PlannedCell(config, number, "night") for number in range(200)]
    first = [one.series for one in plan_pairs(cells, "other", (), only_missing=True, seed=3)[::2]]
    assert 70 <= first.count("other") <= 130


def test_a_plan_stands_for_one_value_of_the_axis_fault_beside_the_control() -> None:
    plan = {"faults": [{"victim": "kafka", "action": "cut", "at_s": 41, "duration_s": 2}]}
    fixed = {"fault_plan": plan, "duration_s": 100.0}
    broken, control = Matrix({"fault": ["kafka", "none"]}, fixed).configurations()
    assert (broken.fault, len(broken.planned_faults())) == ("kafka", 1), "the plan decides what is broken"
    assert (control.fault, control.fault_plan, control.duration_s) == ("none", None, broken.duration_s)
    with pytest.raises(ConfigError, match="fault_plan: it would make executor and driver on the axis fault the same"):
        Matrix({"fault": ["executor", "driver"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="fault_plan: it begins with kafka, which is not on the axis fault"):
        Matrix({"fault": ["executor", "none"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="fault_plan: the axis fault holds nothing but none"):
        Matrix({"fault": ["none"]}, fixed).configurations()
