"""Recoveries of a run and the value that they come to."""

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
class Drawn:
    """A recovery that was over at `high`, and not yet at `low`; None: it was not seen to end."""

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


def drawn() -> st.SearchStrategy[Drawn]:
    seen = st.tuples(SECONDS, SECONDS).map(lambda both: Drawn(min(both), max(both)))
    return seen | SECONDS.map(lambda low: Drawn(low, None))


@given(st.lists(drawn(), max_size=9), st.randoms(use_true_random=False))
def test_the_order_of_injections_does_not_matter(runs: list[Drawn], random: Any) -> None:
    parts = [one.part(injection=number, reload_s=one.low) for number, one in enumerate(runs, start=1)]
    shuffled = random.sample(parts, len(parts))
    assert run_value(parts) == run_value(shuffled)


@given(drawn(), SECONDS)
def test_a_single_recovery_is_its_own_value(one: Drawn, reload_s: float) -> None:
    trigger = TriggerPart(normal_s=9.0, baseline_commits=10, phase=0.5, waited_s=20.0)
    own = {"injection": 1, "at_s": 40.0, "trigger": trigger, "note": "not-steady"}
    assert run_value([one.part(reload_s=reload_s, **own)]) == one.part(reload_s=reload_s)
    assert run_value([one.part(), RecoveryPart.empty()]) == one.part()


@given(st.lists(drawn(), min_size=2, max_size=9))
def test_the_value_lies_between_the_medians_of_the_ends(runs: list[Drawn]) -> None:
    infinite = float("inf")
    lows, highs = [one.low for one in runs], [infinite if one.high is None else one.high for one in runs]
    low, high = bounds(runs)
    assert (low, high) == (pytest.approx(statistics.median(lows), abs=1e-9), statistics.median(highs))


def bounds(runs: list[Drawn]) -> tuple[float, float]:
    found = run_value([one.part() for one in runs])
    if found.recovered:
        assert found.macro_s is not None and found.resolution_s is not None and found.censored_at_s is None
        return found.macro_s - found.resolution_s, found.macro_s
    assert found.macro_s is None and found.resolution_s is None and found.censored_at_s is not None
    return found.censored_at_s, float("inf")


def test_a_part_that_was_not_seen_counts_as_longer_than_any() -> None:
    open_end = Drawn(30.0, None)
    parts = [Drawn(4, 5).part(catchup_s=1.0), open_end.part(), open_end.part()]
    assert run_value(parts).catchup_s is None
    assert run_value([*parts[:2], Drawn(6, 7).part(catchup_s=3.0)]).catchup_s == 3.0
    # What is only unknown says nothing.
    assert run_value([Drawn(4, 5).part(), Drawn(4, 5).part(settled_s=8.0)]).settled_s == 8.0


def test_a_run_without_a_recovery_has_no_value() -> None:
    assert run_value([]) == RecoveryPart.empty()
    assert run_value([RecoveryPart.empty().model_copy(update={"note": "no-effect"})] * 2) == RecoveryPart.empty()
    assert set(OF_ONE) < set(RecoveryPart.model_fields)


ENDS = st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 20))).map(
    lambda one: (one[0], None if one[1] is None else one[0] + one[1])
)


@given(st.lists(ENDS, min_size=2, max_size=7))
def test_what_is_compared_of_a_record_is_the_value_of_its_run(ends: list[tuple[float, float | None]]) -> None:
    low, high = value_of_run(ends)
    assert value_of_run(ends[::-1]) == (low, high) and value_of_run(ends[:1]) == ends[0]
    found = bounds_of(IndexEntry.of(made_run(0, ends)), MACRO)
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
    assert recoveries_of(sample(recoveries=parts, raw_config={"injections": 3}, status="invalid")) == ()


def test_an_entry_knows_window_and_spacing_of_its_run_and_the_index_keeps_them(tmp_path: Path) -> None:
    record = made_run(0, [(8.0, 10.0), (8.0, 10.0), (40.0, None)], spacing_s=40.0)
    write_record(tmp_path, record)
    (entry,) = Index(tmp_path).all()
    assert entry == IndexEntry.of(record, entry.path)
    assert entry.window is not None
    assert (entry.window[1], entry.spacing_s, len(entry.recoveries)) == (160.0, 40.0, 3)
    plain = IndexEntry.of(sample())
    assert (plain.window, plain.spacing_s, plain.recoveries) == (None, None, ())
