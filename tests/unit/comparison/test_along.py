"""Neighbours along an axis."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.cells import Point, axes_of, points_of, steps_along
from faultline.records.summary import Entry
from tests.unit.pages_store import record

NUMBERS = count()


def points(**axes: tuple[Any, ...]) -> list[Point]:
    """Every combination of values, each measured once."""
    combined: list[dict[str, Any]] = [{"duration_s": 300.0}]
    for name, values in axes.items():
        combined = [{**one, name: value} for one in combined for value in values]
    return points_of([Entry.of(record(f"20261121T061500Z-{next(NUMBERS):06x}", **one)) for one in combined])


def test_a_step_changes_one_axis_and_leaves_the_others() -> None:
    found = points(checkpoint_interval_s=(1.0, 2.0, 5.0), state_mb=(1.0, 8.0))
    axes = axes_of(found)
    by_key = {axis.key: axis for axis in axes}
    steps = steps_along(found, by_key["checkpoint_interval_s"], axes)
    assert [step.label for step in steps] == ["2 instead of 1", "5 instead of 2"] * 2
    assert [by_key["state_mb"].of(step.before) for step in steps] == [1.0, 1.0, 8.0, 8.0]
    assert all(by_key["state_mb"].of(step.before) == by_key["state_mb"].of(step.after) for step in steps)


def test_controls_among_faults_are_in_no_step() -> None:
    found = points(checkpoint_interval_s=(1.0, 2.0), fault=("executor", "none"))
    axes = axes_of(found)
    (step,) = steps_along(found, axes[0], axes)
    assert not step.before.control
    assert not step.after.control


def test_what_was_not_measured_everywhere_is_bridged_where_it_was() -> None:
    found = [
        *points(checkpoint_interval_s=(1.0, 5.0), state_mb=(1.0,)),
        *points(checkpoint_interval_s=(2.0, 5.0), state_mb=(8.0,)),
    ]
    axes = axes_of(found)
    interval = next(axis for axis in axes if axis.key == "checkpoint_interval_s")
    assert [step.label for step in steps_along(found, interval, axes)] == ["5 instead of 1", "5 instead of 2"]


@given(st.sets(st.sampled_from([0.5, 1.0, 2.0, 5.0, 10.0, 20.0]), min_size=2), st.integers(1, 3))
def test_a_row_of_n_values_has_n_less_one_steps(intervals: set[float], states: int) -> None:
    found = points(checkpoint_interval_s=tuple(intervals), state_mb=tuple(float(n) for n in range(1, states + 1)))
    axes = axes_of(found)
    interval = next(axis for axis in axes if axis.key == "checkpoint_interval_s")
    steps = steps_along(found, interval, axes)
    assert len(steps) == (len(intervals) - 1) * states
    assert all(interval.of(step.before) < interval.of(step.after) for step in steps)
