"""Recoveries of a run and their run value."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.synthetic_records import write_record
from faultline.records.catalogue import MACRO, bounds_of
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.record import RecoveryPart, TriggerPart
from faultline.records.recoveries import OF_ONE, Bounds, recoveries_of, run_value, value_of_run
from tests.unit.sample_records import CENSORED, RECOVERED, made_run, sample

SECONDS = st.floats(0, 500).map(lambda value: round(value, 3))


@dataclass(frozen=True)
class Interval:
    """A recovery that ended between `low` and `high` seconds; `high` is None if it is censored."""

    low: float
    high: float | None

    def part(self, **more: Any) -> RecoveryPart:
        seen = self.high is not None
        ends = {
            "recovered": seen,
            "macro_s": self.high,
            "censored_at_s": None if seen else self.low,
            "resolution_s": self.high - self.low if self.high is not None else None,
        }
        return RecoveryPart.empty().model_copy(update=ends | more)


def intervals() -> st.SearchStrategy[Interval]:
    seen = st.tuples(SECONDS, SECONDS).map(lambda both: Interval(min(both), max(both)))
    return seen | SECONDS.map(lambda low: Interval(low, None))


@given(st.lists(intervals(), max_size=9), st.randoms(use_true_random=False))
def test_run_value_does_not_depend_on_injection_order(runs: list[Interval], random: Any) -> None:
    parts = [one.part(injection=number, reload_s=one.low) for number, one in enumerate(runs, start=1)]
    shuffled = random.sample(parts, len(parts))
    assert run_value(parts) == run_value(shuffled)


@given(intervals(), SECONDS)
def test_single_recovery_is_the_run_value(one: Interval, reload_s: float) -> None:
    trigger = TriggerPart(normal_s=9.0, baseline_commits=10, phase=0.5, waited_s=20.0)
    own = {"injection": 1, "at_s": 40.0, "trigger": trigger, "note": "not-steady"}
    assert run_value([one.part(reload_s=reload_s, **own)]) == one.part(reload_s=reload_s)
    assert run_value([one.part(), RecoveryPart.empty()]) == one.part()


@given(st.lists(intervals(), min_size=2, max_size=9))
def test_bounds_of_the_run_value_are_medians_of_the_bounds(runs: list[Interval]) -> None:
    infinite = float("inf")
    lows, highs = [one.low for one in runs], [infinite if one.high is None else one.high for one in runs]
    low, high = bounds(runs)
    assert (low, high) == (pytest.approx(statistics.median(lows), abs=1e-9), statistics.median(highs))


def bounds(runs: list[Interval]) -> tuple[float, float]:
    found = run_value([one.part() for one in runs])
    if found.recovered:
        assert found.macro_s is not None and found.resolution_s is not None and found.censored_at_s is None
        return found.macro_s - found.resolution_s, found.macro_s
    assert found.macro_s is None and found.resolution_s is None and found.censored_at_s is not None
    return found.censored_at_s, float("inf")


def test_censored_part_counts_as_longest() -> None:
    open_end = Interval(30.0, None)
    parts = [Interval(4, 5).part(catchup_s=1.0), open_end.part(), open_end.part()]
    assert run_value(parts).catchup_s is None
    assert run_value([*parts[:2], Interval(6, 7).part(catchup_s=3.0)]).catchup_s == 3.0
    # Unknown parts are ignored.
    assert run_value([Interval(4, 5).part(), Interval(4, 5).part(settled_s=8.0)]).settled_s == 8.0


def test_run_without_recovery_has_no_value() -> None:
    assert run_value([]) == RecoveryPart.empty()
    assert run_value([RecoveryPart.empty().model_copy(update={"note": "no-effect"})] * 2) == RecoveryPart.empty()
    assert set(OF_ONE) < set(RecoveryPart.model_fields)


ENDS = st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 20))).map(
    lambda one: (one[0], None if one[1] is None else one[0] + one[1])
)


@given(st.lists(ENDS, min_size=2, max_size=7))
def test_compared_bounds_are_those_of_the_run_value(ends: list[tuple[float, float | None]]) -> None:
    low, high = value_of_run(ends)
    assert value_of_run(ends[::-1]) == (low, high) and value_of_run(ends[:1]) == ends[0]
    found = bounds_of(IndexEntry.of(made_run(0, ends)), MACRO)
    assert found == pytest.approx((low, math.inf if high is None else high))


def test_run_value_is_censored_if_half_of_the_recoveries_are() -> None:
    assert value_of_run([(1.0, 2.0), (30.0, None)]) == (15.5, None)
    assert value_of_run([(1.0, 2.0), (30.0, None), (3.0, 4.0)]) == (3.0, 4.0)
    assert value_of_run([(1.0, 2.0), (30.0, None), (3.0, 4.0), (2.0, 3.0)]) == (2.5, 3.5)


def test_recoveries_need_a_run_with_several_injections() -> None:
    parts = [RECOVERED, CENSORED, {}]
    one = sample(recoveries=parts)
    assert recoveries_of(one) == ()
    several = sample(recoveries=parts, raw_config={"injections": 3})
    assert recoveries_of(several) == (Bounds(1, 13.84 - 2.0, 13.84), Bounds(2, 33.94, None)), (
        "there is no third injection"
    )
    assert recoveries_of(sample(recoveries=parts, raw_config={"injections": 3}, status="invalid")) == ()


def test_index_keeps_window_spacing_and_recoveries(tmp_path: Path) -> None:
    record = made_run(0, [(8.0, 10.0), (8.0, 10.0), (40.0, None)], spacing_s=40.0)
    write_record(tmp_path, record)
    (entry,) = Index(tmp_path).all()
    assert entry == IndexEntry.of(record, entry.path)
    assert entry.window is not None
    assert (entry.window[1], entry.spacing_s, len(entry.recoveries)) == (160.0, 40.0, 3)
    plain = IndexEntry.of(sample())
    assert (plain.window, plain.spacing_s, plain.recoveries) == (None, None, ())
