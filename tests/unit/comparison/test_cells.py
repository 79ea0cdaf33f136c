"""Points of a comparison, the axes they differ in, and how both are written."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.cells import Figure, apart, axes_of, groups_of, in_order, is_number, label, points_of
from faultline.comparison.compare import KNOWN
from faultline.records.metrics import MACRO
from faultline.records.summary import Entry
from tests.unit.pages_store import record
from tests.unit.sample_records import CENSORED, RECOVERED

NUMBERS = iter(range(10_000))


def entry(**named: Any) -> Entry:
    return Entry.of(record(f"20261121T061500Z-{next(NUMBERS):06x}", **named))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"), (2.0, "2"), (0.1, "0.1"), (1234.5, "1,234.5"), (None, "—"),
        ({"a": [1, 2]}, '{"a":[1,2]}'), ("x" * 60, "x" * 60), ("x" * 61, "x" * 59 + "…"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_the_figures_beside_it(value: object, text: str) -> None:
    assert label(value) == text


def test_truth_is_no_number() -> None:
    assert [is_number(value) for value in (1, 1.5, True, "1", None)] == [True, True, False, False, False]


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
    ordered = [(point.control, axes[0].of(point), axes[1].label(point)) for point in in_order(points, axes)]
    assert ordered == [
        (False, 1.0, "aligned"), (False, 1.0, "unaligned"), (False, 8.0, "aligned"), (False, 8.0, "unaligned"),
        (True, 1.0, "aligned"), (True, 8.0, "aligned"),
    ]  # fmt: skip
    breaking, controls = apart(points)
    assert (len(breaking), len(controls)) == (4, 2)
    assert apart(controls) == (controls, []), "where nothing is broken, runs without a fault are the points"


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
    days = (("b1", "2026-11-21"), ("b2", "2026-11-23"), ("b1", "2026-11-24"), ("b3", "2026-11-22"))
    found = groups_of([entry(build=build, measured_at=f"{day}T00:00:00+00:00") for build, day in days])
    assert [group[:2] for group in found] == ["b1", "b2", "b3"]
