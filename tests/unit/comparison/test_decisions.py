"""Decisions of a sweep: from records to what is said of neighbours, and which cells need not be measured any more."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.decisions import (
    Decision,
    change_of,
    decisions_of,
    log_ratio,
    margin_of,
    percent,
    pose,
    settled,
    settled_in,
    tally,
)
from faultline.comparison.statistics.sequential import Judged, Outcome
from faultline.experiment.decide import Decide
from faultline.experiment.matrix import Matrix
from faultline.records.catalogue import MACRO, bounds_of
from faultline.records.manifest import Manifest, cells_of
from faultline.records.summary import Entry
from faultline.reports.views.allocation import decision_lines
from tests.unit.sample_records import sample

P50 = Decide("latency_ms.p50", "checkpoint_interval_s", 0.1, experiments=60)
INTERVALS = [2.0, 5.0, 10.0]
ORDINARY = {2.0: 1000.0, 5.0: 1500.0, 10.0: 1510.0}


def plan_of(asked: Decide = P50, **named: Any) -> Manifest:
    cells, question = pose(Matrix({"checkpoint_interval_s": INTERVALS}, {"duration_s": 105.0}), asked, "b1")
    facts = {"sweep_id": "s1", "matrix": "m", "run_id": "r", "series": "b1", "build": "b1", "logical_date": None,
             "planned_at": "2026-11-21T06:00:00+00:00", "decide": question, "cells": cells_of(cells)}  # fmt: skip
    return Manifest(**{**facts, **named})


def entries(blocks: int, levels: dict[float, float] = ORDINARY, scatter: float = 0.02, seed: int = 5) -> list[Entry]:
    """A record of each cell in each block, one a minute; latency around the level of its interval."""
    drawn, found = random.Random(seed), []
    for block in range(blocks):
        for number, (interval, level) in enumerate(levels.items()):
            found.append(
                Entry.of(
                    sample(
                        attempt=f"20261121T06{block:02d}{number:02d}Z-00000{number}",
                        repetition=block,
                        checkpoint_interval_s=interval,
                        duration_s=105.0,
                        latency={"p50": level * math.exp(drawn.gauss(0, scatter))},
                    )
                )
            )
    return found


def by_interval(decisions: list[Decision]) -> dict[str, Decision]:
    return {one.step.label: one for one in decisions}


def test_neighbours_that_differ_and_neighbours_that_do_not() -> None:
    plan, measured = plan_of(), entries(14)
    found = by_interval(decisions_of(plan, measured))
    differs, same = found["5 instead of 2"], found["10 instead of 5"]
    assert differs.outcome is Outcome.DIFFERS and same.outcome is Outcome.WITHIN
    assert differs.change is not None and differs.change.low < 0.5 < differs.change.high
    assert differs.at_least == differs.change.low > 0.4
    assert same.at_least is None and same.margin == 0.1
    assert settled_in(plan, measured) == {cell.config_id for cell in plan.cells}
    assert differs.text.startswith("checkpoint interval (s) 5 instead of 2: Latency p50 +")
    assert "n = 14 pairs, differs by at least 4" in differs.text and differs.text.endswith(f"after {differs.looked}")
    assert "differs by less than 10 %, decided after" in same.text
    assert tally([differs, same]) == "2 of 2 comparisons decided"


def test_what_differs_at_least_is_never_rounded_up() -> None:
    plan = plan_of()
    (one, _) = decisions_of(plan, entries(6, scatter=0.001))
    assert one.change is not None
    short = replace(one, change=replace(one.change, low=0.9996))
    assert short.at_least == 0.9996 and "differs by at least 99.9 %" in short.text
    assert "differs by at least 4.1 %" in replace(one, change=replace(one.change, low=0.0419)).text


def test_a_cell_is_settled_when_all_of_its_comparisons_are() -> None:
    """2 against 5 is decided, 5 against 10 is not: 5 goes on, 2 does not."""
    plan = plan_of()
    levels = {2.0: 1000.0, 5.0: 1500.0, 10.0: 1605.0}
    measured = entries(7, levels, scatter=0.05)
    decisions = decisions_of(plan, measured)
    assert [one.decided for one in decisions] == [True, False]
    (done,) = settled(decisions)
    assert {cell.config["checkpoint_interval_s"] for cell in plan.cells if cell.config_id == done} == {2.0}
    assert tally(decisions) == "1 of 2 comparisons decided, 1 open"
    assert decisions[1].outcome is Outcome.OPEN and decisions[1].more is not None
    assert "more pairs would tell, if they scatter as these do" in decisions[1].text


def test_nothing_measured_is_open_and_nothing_asked_is_nothing() -> None:
    plan = plan_of()
    for one in decisions_of(plan, []):
        assert (one.outcome, one.pairs, one.change, one.more) == (Outcome.OPEN, 0, None, None)
        assert one.text.endswith("no pairs yet") and one.needs.startswith("nobody can tell yet")
    asks_nothing = plan.model_copy(update={"decide": None})
    assert decisions_of(asks_nothing, entries(14)) == [] and tally([]) == ""
    assert settled_in(asks_nothing, entries(14)) == frozenset()


def test_a_budget_that_is_spent_says_so() -> None:
    plan = plan_of(replace(P50, experiments=21))
    found = decisions_of(plan, entries(7, {2.0: 1000.0, 5.0: 1060.0, 10.0: 1120.0}, scatter=0.1))
    assert {one.outcome for one in found} == {Outcome.SPENT}
    assert not settled(found), "a larger budget goes on with them"


def test_what_was_spent_on_few_cells_is_spent_for_all() -> None:
    """21 experiments are seven blocks of three, or fewer of them and more of the two that are still open."""
    plan, measured = plan_of(replace(P50, experiments=21)), entries(8, {2.0: 1.0, 5.0: 1060.0, 10.0: 1120.0}, 0.1)
    plan_cells = {cell.config_id for cell in plan.cells}
    lasting = [one for one in measured if one.repetition < 5 or one.config["checkpoint_interval_s"] > 2.0]
    assert len(lasting) == 21
    assert settled_in(plan, lasting) == plan_cells
    assert [one.outcome for one in decisions_of(plan, lasting)] == [Outcome.DIFFERS, Outcome.SPENT]
    assert settled_in(plan, lasting[:-1]) < plan_cells
    by_hours = plan_of(replace(P50, experiments=None, hours=1.0))
    assert settled_in(by_hours, lasting) < plan_cells, "who counts hours counts no experiments"


def test_only_sound_records_of_the_series_the_build_and_the_schema_count() -> None:
    plan, measured = plan_of(), entries(14)
    for changed in ({"series": "b2"}, {"build": "b2"}, {"schema": 1}, {"status": "unsound"}, {"status": "failed"}):
        assert {one.pairs for one in decisions_of(plan, [replace(one, **changed) for one in measured])} == {0}
    assert {one.pairs for one in decisions_of(plan, [replace(one, sweep_id="s0") for one in measured])} == {14}
    assert plan.decide is not None
    fresh = plan.model_copy(update={"decide": plan.decide.model_copy(update={"fresh": True})})
    assert {one.pairs for one in decisions_of(fresh, [replace(one, sweep_id="s0") for one in measured])} == {0}
    assert {one.pairs for one in decisions_of(fresh, measured)} == {14}


def test_of_a_cell_that_was_measured_twice_the_newest_sound_one_counts() -> None:
    plan, measured = plan_of(), entries(1)
    again = replace(measured[0], attempt="20261121T0700Z", metrics={"latency_ms.p50": 2000.0})
    (first, _) = decisions_of(plan, [again, *measured])
    assert first.change is not None and first.change.value < 0
    (first, _) = decisions_of(plan, [replace(again, status="unsound"), *measured])
    assert first.change is not None and first.change.value > 0


def test_an_undecided_recovery_says_whether_more_runs_or_more_injections_are_the_way() -> None:
    """Within a run recoveries scatter by 4 s and more, between runs hardly: more of them per run are cheaper."""
    plan, drawn, found = plan_of(Decide(MACRO, "checkpoint_interval_s", 0.1, experiments=60)), random.Random(7), []
    for block in range(12):
        for number, cell in enumerate(plan.cells[: len(INTERVALS)]):
            macros = [15.0 + number + drawn.gauss(0, 4.0) for _ in range(2)]
            parts = [{"recovered": True, "macro_s": one, "resolution_s": 0.0} for one in macros]
            whole = {"recovered": True, "macro_s": sum(macros) / 2, "resolution_s": 0.0}
            one = sample(
                attempt=f"20261121T06{block:02d}{number:02d}Z-00000{number}", repetition=block, recovery=whole,
                recoveries=parts, duration_s=105.0, checkpoint_interval_s=cell.config["checkpoint_interval_s"],
                raw_config={"injections": 2},
            )  # fmt: skip
            found.append(Entry.of(one))
    decisions = decisions_of(plan, found)
    assert not all(one.decided for one in decisions)
    *lines, further = decision_lines(plan, found, decisions)
    assert lines == [one.text for one in decisions]
    assert "with 2 injections per run, a new one with injections=" in further and "less time" in further
    assert decision_lines(plan_of(), entries(14), decisions_of(plan_of(), entries(14)))[2:] == []


@given(st.randoms())
def test_the_order_of_the_records_changes_nothing(shuffled: random.Random) -> None:
    plan, measured = plan_of(), entries(9, scatter=0.05)
    expected = decisions_of(plan, measured)
    shuffled.shuffle(measured)
    assert decisions_of(plan, measured) == expected


def test_what_came_late_changes_no_look_that_was_before_it() -> None:
    """The pair of a block that was measured again at the end comes last, as it did."""
    plan = plan_of()
    measured = entries(12)
    decided_after = by_interval(decisions_of(plan, measured))["5 instead of 2"].looked
    late = [
        replace(one, attempt=f"20261121T08{one.attempt[11:]}", metrics={"latency_ms.p50": 1.0})
        if one.repetition == 0 and one.config["checkpoint_interval_s"] == 5.0
        else one
        for one in measured
    ]
    found = by_interval(decisions_of(plan, late))["5 instead of 2"]
    assert found.outcome is Outcome.DIFFERS and found.looked == decided_after


def recovery(**known: float | bool | None) -> Entry:
    return Entry.of(sample(recovery=known))


def test_a_recovery_is_an_interval_and_one_that_did_not_end_is_open() -> None:
    assert bounds_of(recovery(recovered=True, macro_s=12.0, resolution_s=2.0), MACRO) == (10.0, 12.0)
    assert bounds_of(recovery(recovered=True, macro_s=1.0, resolution_s=2.0), MACRO) == (0.0, 1.0)
    assert bounds_of(recovery(recovered=False, censored_at_s=30.0), MACRO) == (30.0, math.inf)
    assert bounds_of(recovery(recovered=False, censored_at_s=30.0), "recovery.replay_s") is None
    assert bounds_of(recovery(recovered=True, reload_s=3.0), "recovery.reload_s") == (3.0, 3.0)
    assert bounds_of(recovery(), MACRO) is None


def test_the_margin_is_never_narrower_than_what_a_recovery_is_known_to() -> None:
    plan = plan_of(replace(P50, figure=MACRO))
    measured = [
        replace(one, metrics={MACRO: 10.0, "recovery.resolution_s": 2.0, "recovery.recovered": True})
        for one in entries(9)
    ]
    (first, _) = decisions_of(plan, measured)
    assert first.margin == pytest.approx(0.2) and first.change is not None
    assert first.change.low == pytest.approx(-0.2) and first.change.high == pytest.approx(0.25)
    assert first.outcome is Outcome.OPEN


positive = st.floats(0.001, 1e6)


@given(positive, positive, positive, positive)
def test_a_ratio_of_intervals_holds_every_ratio_in_them(a: float, b: float, c: float, d: float) -> None:
    before, after = (min(a, b), max(a, b)), (min(c, d), max(c, d))
    low, high = log_ratio(before, after)
    for one in before:
        for other in after:
            assert low - 1e-9 <= math.log(other / one) <= high + 1e-9


def test_ratios_of_what_is_unbounded_or_nothing() -> None:
    assert log_ratio((30.0, math.inf), (10.0, 10.0)) == (-math.inf, pytest.approx(math.log(1 / 3)))
    assert log_ratio((30.0, math.inf), (30.0, math.inf)) == (-math.inf, math.inf)
    assert log_ratio((0.0, 0.0), (0.0, 0.0)) == (0.0, 0.0)
    assert log_ratio((0.0, 0.0), (1.0, 1.0)) == (math.inf, math.inf)


def test_margins_and_changes_are_shares_of_what_was_before() -> None:
    assert [math.expm1(end) for end in margin_of(0.1)] == pytest.approx([-0.1, 0.1])
    assert margin_of(1.0)[0] == -math.inf
    judged = Judged(Outcome.OPEN, 1.0, -math.inf, math.log(2), None, math.inf)
    found = change_of(judged)
    assert (found.value, found.low, found.high) == (pytest.approx(1.0), -1.0, pytest.approx(1.0))
    assert change_of(replace(judged, value=0.0, high=math.inf)).high == math.inf
    assert [percent(one) for one in (-0.38, 0.042, 0.0, math.inf)] == ["−38", "+4.2", "+0.0", "∞"]
