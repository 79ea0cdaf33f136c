"""Recoveries of one run with several injections, and the value of the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.records import made_run, write_record
from faultline.records.catalogue import MACRO, bounds_of
from faultline.records.index import Index
from faultline.records.recoveries import Bounds, recoveries_of, value_of_run
from faultline.records.summary import Entry
from tests.unit.sample_records import CENSORED, RECOVERED, sample

ENDS = st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 20))).map(
    lambda one: (one[0], None if one[1] is None else one[0] + one[1])
)


@given(st.lists(ENDS, min_size=1, max_size=7), st.randoms())
def test_the_value_of_a_run_does_not_depend_on_the_order(
    ends: list[tuple[float, float | None]], random: object
) -> None:
    low, high = value_of_run(ends)
    assert value_of_run(random.sample(ends, len(ends))) == (low, high)  # type: ignore[attr-defined]
    assert high is None or high >= low
    if len(ends) == 1:
        assert (low, high) == ends[0]


@given(st.lists(ENDS, min_size=2, max_size=7))
def test_what_is_compared_of_a_record_is_the_value_of_its_run(ends: list[tuple[float, float | None]]) -> None:
    low, high = value_of_run(ends)
    found = bounds_of(Entry.of(made_run(0, ends)), MACRO)
    assert found == pytest.approx((low, math.inf if high is None else high))


def test_a_run_has_no_end_where_half_of_its_recoveries_have_none() -> None:
    assert value_of_run([(1.0, 2.0), (30.0, None)]) == (15.5, None)
    assert value_of_run([(1.0, 2.0), (30.0, None), (3.0, 4.0)]) == (3.0, 4.0)
    assert value_of_run([(1.0, 2.0), (30.0, None), (3.0, 4.0), (2.0, 3.0)]) == (2.5, 3.5)


def test_only_runs_with_several_injections_have_recoveries_of_one_kind() -> None:
    parts = [RECOVERED, CENSORED, {}]
    one = sample(recoveries=parts)
    assert recoveries_of(one) == ()
    several = sample(recoveries=parts, raw_config={"injections": 3})
    assert recoveries_of(several) == (Bounds(1, 13.84 - 2.0, 13.84), Bounds(2, 33.94, None)), "the third was not made"
    assert recoveries_of(sample(recoveries=parts, raw_config={"injections": 3}, status="unsound")) == ()


def test_an_entry_knows_window_and_spacing_of_its_run() -> None:
    entry = Entry.of(made_run(0, [(8.0, 10.0)] * 3, spacing_s=40.0))
    assert entry.window is not None
    assert (entry.window[1], entry.spacing_s, len(entry.recoveries)) == (160.0, 40.0, 3)
    plain = Entry.of(sample())
    assert (plain.window, plain.spacing_s, plain.recoveries) == (None, None, ())


def test_the_index_keeps_what_an_entry_has(tmp_path: Path) -> None:
    record = made_run(0, [(8.0, 10.0), (40.0, None)])
    write_record(tmp_path, record)
    (entry,) = Index(tmp_path).all()
    assert entry == Entry.of(record, entry.path)
