"""Points of a comparison, their axes, and the text of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.config_points import (
    Axis,
    Figure,
    Point,
    axes_of,
    axis_steps,
    groups_of,
    is_number,
    label,
    names_of,
    points_of,
    sort_points,
    split_controls,
)
from faultline.records.catalogue import KNOWN, MACRO
from faultline.records.index_entry import IndexEntry
from tests.unit.pages_store import record
from tests.unit.sample_records import CENSORED, RECOVERED

NUMBERS = iter(range(10_000))


def entry(**named: Any) -> IndexEntry:
    return IndexEntry.of(record(f"20261121T061500Z-{next(NUMBERS):06x}", **named))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"), (2.0, "2"), (0.1, "0.1"), (1234.5, "1,234.5"), (None, "—"),
        ({"a": [1, 2]}, '{"a":[1,2]}'), ("x" * 60, "x" * 60), ("x" * 61, "x" * 59 + "…"),
    ],
)  # fmt: skip
def test_values_are_formatted_like_figures(value: object, text: str) -> None:
    assert label(value) == text


def test_truth_is_no_number() -> None:
    assert [is_number(value) for value in (1, 1.5, True, "1", None)] == [True, True, False, False, False]


def test_a_configuration_is_named_by_its_axes_and_fault() -> None:
    entries = [entry(rate=rate, fault=fault) for rate in (500.0, 40000.0) for fault in ("executor", "none")]
    assert sorted(names_of(points_of(entries)).values()) == [
        "rate 40,000 records/s, control", "rate 40,000 records/s, executor kill",
        "rate 500 records/s, control", "rate 500 records/s, executor kill",
    ]  # fmt: skip
    faults = [entry(fault=fault) for fault in ("executor", "driver")]
    assert sorted(names_of(points_of(faults)).values()) == ["driver kill", "executor kill"]
    (axis,) = axes_of(points_of(faults))
    assert axis.text_of(points_of(faults)[0]) == "executor kill"


def test_points_differ_along_numbers_first_and_controls_come_last() -> None:
    entries = [
        entry(state_mb=state, fault=fault, commit_mode=mode, checkpoint_interval_s=5)
        for state in (8.0, 1.0)
        for fault, mode in (("none", "aligned"), ("executor", "unaligned"), ("executor", "aligned"))
    ]
    points = points_of(entries)
    axes = axes_of(points)
    assert [(axis.key, axis.numeric, axis.name) for axis in axes] == [
        ("state_mb", True, "state (MB)"), ("commit_mode", False, "commit mode")
    ]  # fmt: skip
    assert [axis.values for axis in axes] == [(1.0, 8.0), ("aligned", "unaligned")]
    ordered = [(point.is_control, axes[0].of(point), axes[1].label(point)) for point in sort_points(points, axes)]
    assert ordered == [
        (False, 1.0, "aligned"), (False, 1.0, "unaligned"), (False, 8.0, "aligned"), (False, 8.0, "unaligned"),
        (True, 1.0, "aligned"), (True, 8.0, "aligned"),
    ]  # fmt: skip
    breaking, controls = split_controls(points)
    assert (len(breaking), len(controls)) == (4, 2)
    assert split_controls(controls) == (controls, []), "where nothing is broken, runs without a fault are the points"


def test_parameters_of_one_workload_are_not_an_axis() -> None:
    """Workloads are compared along their axis, each with its own parameters."""
    both = [entry(workload="word_count", fault="none", state_mb=0), entry(workload="query", job="/j.py", fault="none")]
    assert [axis.key for axis in axes_of(points_of(both))] == ["workload"]
    axes = axes_of(points_of(both))
    (step,) = axis_steps(points_of(both), axes[0], axes)
    assert step.label == "word_count instead of query"
    another = entry(workload="query", job="/other.py", fault="none")
    assert [axis.key for axis in axes_of(points_of([*both, another]))] == ["workload", "job"]


def test_a_figure_is_known_when_all_of_its_values_are() -> None:
    known = [entry(recovery=RECOVERED, latency={"p99": p99}) for p99 in (5.0, 1.0, 9.0)]
    (point,) = points_of(known)
    assert point.figure("latency_ms.p99") == Figure(3, 5.0, 1.0, 9.0)
    (point,) = points_of([*known, entry(recovery=RECOVERED, latency={"p99": None})])
    assert point.figure("latency_ms.p99") == Figure(3)
    (point,) = points_of([*known, entry(status="invalid", latency={"p99": 99.0})])
    assert point.figure("latency_ms.p99").n == 3, "what is not believed makes no figure"


def test_of_a_recovery_that_was_not_seen_to_end_a_bound_is_known() -> None:
    (point,) = points_of([entry(recovery=RECOVERED), entry(recovery=CENSORED)])
    found, metric = point.figure(MACRO), next(one for one in KNOWN if one.key == MACRO)
    assert (found.n, found.low, found.high, found.bound) == (2, 13.84, 33.94, True)
    assert found.text(metric) == "> 23.89"
    assert found.spread(metric) == "13.84 – 33.94"
    assert Figure(1, 2.0, 2.0, 2.0).spread(metric) == Figure(2).spread(metric) == ""


def test_the_group_that_was_measured_last_comes_first() -> None:
    days = (("b3", 22), ("b1", 21), ("b2", 23), ("b1", 24), ("b1", 20))
    found = groups_of([entry(build=build, measured_at=f"2026-11-{day}T00:00:00+00:00") for build, day in days])
    assert [group[:2] for group in found] == ["b1", "b2", "b3"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("rate", "rate (records/s)"), ("checkpoint_interval_s", "checkpoint interval (s)"),
        ("executor_memory_mb", "executor memory (MB)"), ("fault", "fault"), ("executors", "executors"),
    ],
)  # fmt: skip
def test_an_axis_is_named_with_its_unit(key: str, name: str) -> None:
    assert Axis(key, True, ()).name == name


def faults(*victims: str) -> dict[str, Any]:
    """Return a plan that kills these one after another."""
    return {"faults": [{"victim": victim, "action": "kill", "at_s": 50.0 + 20 * number}
                       for number, victim in enumerate(victims)]}  # fmt: skip


def unknown(**parameters: Any) -> IndexEntry:
    """Return a record with unknown parameters."""
    made = entry(raw_config=parameters)
    return replace(made, config_id=str(parameters))


def keys_of(*entries: IndexEntry) -> list[str]:
    return [axis.key for axis in axes_of(points_of(entries))]


def test_a_fault_in_words_stands_for_what_it_is_made_of() -> None:
    """It contains victim and action; the time follows from the interval; a plan has its own text."""
    by_action = [entry(fault="executor", fault_action=action, duration_s=100) for action in ("kill", "pause")]
    assert keys_of(*by_action) == ["fault"]
    by_interval = [entry(fault="executor", checkpoint_interval_s=interval, duration_s=100) for interval in (1, 5)]
    assert by_interval[0].config["fault_at_s"] != by_interval[1].config["fault_at_s"]
    assert keys_of(*by_interval) == ["checkpoint_interval_s"]
    by_instant = [entry(fault="executor", fault_at_s=at, duration_s=100) for at in (60, 65)]
    assert keys_of(*by_instant) == ["fault_at_s"]


def test_fault_plans_are_an_axis_only_with_equal_texts() -> None:
    two, others = faults("executor", "driver"), faults("executor", "kafka")
    later = {"faults": [two["faults"][0], {**two["faults"][1], "at_s": 75.0}]}

    def axes(*plans: dict[str, Any]) -> list[str]:
        return keys_of(*(entry(duration_s=150, fault="plan", fault_plan=plan) for plan in plans))

    assert axes(two, others) == ["fault"]
    assert axes(two, later) == ["fault_plan"]
    assert axes(two, later, others) == ["fault", "fault_plan"]


def test_axes_stand_in_the_order_of_the_configuration_and_unknown_ones_last_by_name() -> None:
    entries = [
        entry(rate=rate, state_mb=state, raw_config={"zeta": rate, "alpha": state, "commit_mode": mode})
        for rate, state, mode in ((70, 1, "none"), (100, 8, "aligned"))
    ]
    assert keys_of(*entries) == ["rate", "state_mb", "alpha", "zeta", "commit_mode"]


def test_values_of_which_one_is_no_number_are_names() -> None:
    (axis,) = axes_of(points_of([unknown(alpha=value) for value in (2, "b", 10)]))
    assert (axis.numeric, axis.values) == (False, (2, 10, "b"))


def test_what_an_older_record_lacks_is_its_default_and_what_has_none_a_dash() -> None:
    new, old = entry(state_mb=8.0), entry(state_mb=1.0)
    lacking = replace(old, config={key: old.config[key] for key in old.config if key != "state_mb"})
    (axis,) = axes_of(points_of([new, lacking]))
    assert axis.values == (1.0, 8.0), "it ran with 1 MB"
    points = points_of([unknown(alpha=5), unknown(alpha=3), unknown()])
    (axis,) = axes_of(points)
    assert axis.values == (3, 5)
    assert [axis.label(point) for point in sort_points(points, [axis])] == ["—", "3", "5"]


def test_what_is_meant_where_nothing_is_given_has_its_name() -> None:
    points = points_of([unknown(spark_build=None), unknown(spark_build="twin")])
    (axis,) = axes_of(points)
    assert [axis.label(point) for point in sort_points(points, [axis])] == ["installed", "twin"]


def test_points_without_axis_are_sorted_by_id() -> None:
    points = points_of([replace(entry(), config_id=name) for name in ("b", "c", "a")])
    assert [point.config_id for point in sort_points(points, [])] == ["a", "b", "c"]


def test_cpu_of_all_roles_is_their_sum() -> None:
    (point,) = points_of([entry(), entry()])
    assert point.figure("cpu_cores.total").median == pytest.approx(0.186 + 0.48 + 0.06 + 0.0549)


def test_only_the_length_of_a_recovery_has_a_bound_when_it_was_not_seen_to_end() -> None:
    unseen = {"recovered": False, "censored_at_s": 30.0}
    (point,) = points_of([entry(recovery={"recovered": True, "macro_s": 5.0, "replay_s": 1.0}), entry(recovery=unseen)])
    assert point.figure(MACRO) == Figure(2, 17.5, 5.0, 30.0, bound=True)
    assert point.figure("recovery.replay_s") == Figure(1)
    (point,) = points_of([entry(recovery={"macro_s": 5.0}), entry()])
    assert point.figure(MACRO) == Figure(1), "not watched"
    (point,) = points_of([entry(status="failed")])
    assert point.figure(MACRO) == Figure(0)


def test_the_length_of_a_window_is_no_axis_where_it_follows_from_the_interval() -> None:
    derived = points_of([entry(checkpoint_interval_s=interval) for interval in (2.0, 5.0, 15.0)])
    assert [axis.key for axis in axes_of(derived)] == ["checkpoint_interval_s"]
    set_by_hand = points_of([
        entry(checkpoint_interval_s=interval, duration_s=length) for interval in (2.0, 5.0) for length in (120.0, 300.0)
    ])  # fmt: skip
    assert [axis.key for axis in axes_of(set_by_hand)] == ["duration_s", "checkpoint_interval_s"]


def points(**axes: tuple[Any, ...]) -> list[Point]:
    """Every combination of values, each measured once."""
    combined: list[dict[str, Any]] = [{"duration_s": 300.0}]
    for name, values in axes.items():
        combined = [{**one, name: value} for one in combined for value in values]
    return points_of([entry(**one) for one in combined])


def test_a_step_changes_one_axis_and_leaves_the_others() -> None:
    found = points(checkpoint_interval_s=(1.0, 2.0, 5.0), state_mb=(1.0, 8.0))
    axes = axes_of(found)
    by_key = {axis.key: axis for axis in axes}
    steps = axis_steps(found, by_key["checkpoint_interval_s"], axes)
    assert [step.label for step in steps] == ["2 instead of 1", "5 instead of 2"] * 2
    assert [by_key["state_mb"].of(step.before) for step in steps] == [1.0, 1.0, 8.0, 8.0]
    assert all(by_key["state_mb"].of(step.before) == by_key["state_mb"].of(step.after) for step in steps)


def test_controls_among_faults_are_in_no_step() -> None:
    found = points(checkpoint_interval_s=(1.0, 2.0), fault=("executor", "none"))
    axes = axes_of(found)
    (step,) = axis_steps(found, axes[0], axes)
    assert not step.before.is_control
    assert not step.after.is_control


def test_what_was_not_measured_everywhere_is_bridged_where_it_was() -> None:
    found = [
        *points(checkpoint_interval_s=(1.0, 5.0), state_mb=(1.0,)),
        *points(checkpoint_interval_s=(2.0, 5.0), state_mb=(8.0,)),
    ]
    axes = axes_of(found)
    interval = next(axis for axis in axes if axis.key == "checkpoint_interval_s")
    assert [step.label for step in axis_steps(found, interval, axes)] == ["5 instead of 1", "5 instead of 2"]


@given(st.sets(st.sampled_from([0.5, 1.0, 2.0, 5.0, 10.0, 20.0]), min_size=2), st.integers(1, 3))
def test_a_row_of_n_values_has_n_less_one_steps(intervals: set[float], states: int) -> None:
    found = points(checkpoint_interval_s=tuple(intervals), state_mb=tuple(float(n) for n in range(1, states + 1)))
    axes = axes_of(found)
    interval = next(axis for axis in axes if axis.key == "checkpoint_interval_s")
    steps = axis_steps(found, interval, axes)
    assert len(steps) == (len(intervals) - 1) * states
    assert all(interval.of(step.before) < interval.of(step.after) for step in steps)
