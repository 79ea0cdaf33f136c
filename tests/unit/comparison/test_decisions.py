"""Decisions of a sweep: from records to decisions on neighbours and remaining cells."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.comparison.decisions import (
    FIGURES,
    Decision,
    change_of,
    decided_configurations,
    decided_in_plan,
    decision_counts,
    decisions_of,
    log_ratio,
    margin_of,
    method_of,
    percent,
    plan_blocks,
)
from faultline.comparison.statistics.sequential import (
    Method,
    SequentialDecision,
    SequentialResult,
    bounds,
    min_decidable_pairs,
)
from faultline.experiment.decide import Decide
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix
from faultline.records.catalogue import CPU_TOTAL, MACRO, bounds_of
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlan
from faultline.reports.views.allocation import decision_lines
from faultline.system.errors import ConfigError
from tests.unit.sample_records import made_plan, sample

P50 = Decide("latency_ms.p50", "checkpoint_interval_s", 0.1, experiments=60)
INTERVALS = [2.0, 5.0, 10.0]
ORDINARY = {2.0: 1000.0, 5.0: 1500.0, 10.0: 1510.0}


def plan_of(asked: Decide = P50) -> SweepPlan:
    cells, question = plan_blocks(Matrix({"checkpoint_interval_s": INTERVALS}, {"duration_s": 105.0}), asked, "b1")
    return made_plan(cells, decide=question)


def entries(
    blocks: int, levels: dict[float, float] = ORDINARY, scatter: float = 0.02, seed: int = 5
) -> list[IndexEntry]:
    """Return a record per cell and block, one per minute; latency varies around the level of its interval."""
    drawn, found = random.Random(seed), []
    for block in range(blocks):
        for number, (interval, level) in enumerate(levels.items()):
            found.append(
                IndexEntry.of(
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
    assert differs.outcome is SequentialDecision.DIFFERS and same.outcome is SequentialDecision.WITHIN
    assert differs.change is not None and differs.change.low < 0.5 < differs.change.high
    assert differs.at_least == differs.change.low > 0.4
    assert same.at_least is None and same.margin == 0.1
    assert decided_in_plan(plan, measured) == {cell.config_id for cell in plan.cells}
    assert differs.text.startswith("checkpoint interval (s) 5 instead of 2: Latency p50 +")
    assert "n = 14 pairs, differs by at least 4" in differs.text and differs.text.endswith(
        f"after {differs.decided_at}"
    )
    assert "differs by less than 10 %, decided after" in same.text
    assert decision_counts([differs, same]) == "2 of 2 comparisons decided"


def test_what_differs_at_least_is_never_rounded_up() -> None:
    plan = plan_of()
    (one, _) = decisions_of(plan, entries(6, scatter=0.001))
    assert one.change is not None
    short = replace(one, change=replace(one.change, low=0.9996))
    assert short.at_least == 0.9996 and "differs by at least 99.9 %" in short.text
    assert "differs by at least 4.1 %" in replace(one, change=replace(one.change, low=0.0419)).text


def test_a_cell_is_settled_when_all_of_its_comparisons_are() -> None:
    """2 and 5 are decided, 5 and 10 are not: 5 continues, 2 does not."""
    plan = plan_of()
    levels = {2.0: 1000.0, 5.0: 1500.0, 10.0: 1605.0}
    measured = entries(7, levels, scatter=0.05)
    decisions = decisions_of(plan, measured)
    assert [one.is_decided for one in decisions] == [True, False]
    (done,) = decided_configurations(decisions)
    assert {cell.config["checkpoint_interval_s"] for cell in plan.cells if cell.config_id == done} == {2.0}
    assert decision_counts(decisions) == "1 of 2 comparisons decided, 1 open"
    assert decisions[1].outcome is SequentialDecision.INCONCLUSIVE and decisions[1].more_pairs is not None
    assert "more pairs needed" in decisions[1].text


def test_nothing_measured_is_open_and_nothing_asked_is_nothing() -> None:
    plan = plan_of()
    for one in decisions_of(plan, []):
        assert (one.outcome, one.pairs, one.change, one.more_pairs) == (SequentialDecision.INCONCLUSIVE, 0, None, None)
        assert one.text.endswith("no pairs yet") and one.requirement.startswith("the number of further pairs")
    asks_nothing = plan.model_copy(update={"decide": None})
    assert decisions_of(asks_nothing, entries(14)) == [] and decision_counts([]) == ""
    assert decided_in_plan(asks_nothing, entries(14)) == frozenset()


def test_a_spent_budget_is_reported() -> None:
    plan = plan_of(replace(P50, experiments=21))
    found = decisions_of(plan, entries(7, {2.0: 1000.0, 5.0: 1060.0, 10.0: 1120.0}, scatter=0.1))
    assert {one.outcome for one in found} == {SequentialDecision.SPENT}
    assert not decided_configurations(found), "a larger budget continues with them"


def test_what_was_spent_on_few_cells_is_spent_for_all() -> None:
    """21 experiments are seven blocks of three, or fewer of them and more of the two that are still open."""
    plan, measured = plan_of(replace(P50, experiments=21)), entries(8, {2.0: 1.0, 5.0: 1060.0, 10.0: 1120.0}, 0.1)
    plan_cells = {cell.config_id for cell in plan.cells}
    lasting = [one for one in measured if one.repetition < 5 or one.config["checkpoint_interval_s"] > 2.0]
    assert len(lasting) == 21
    assert decided_in_plan(plan, lasting) == plan_cells
    assert [one.outcome for one in decisions_of(plan, lasting)] == [
        SequentialDecision.DIFFERS,
        SequentialDecision.SPENT,
    ]
    assert decided_in_plan(plan, lasting[:-1]) < plan_cells
    by_hours = plan_of(replace(P50, experiments=None, hours=1.0))
    assert decided_in_plan(by_hours, lasting) < plan_cells, "who counts hours counts no experiments"


def test_only_sound_records_of_the_series_and_the_build_count() -> None:
    plan, measured = plan_of(), entries(14)
    for changed in ({"series": "b2"}, {"build": "b2"}, {"status": "invalid"}, {"status": "failed"}):
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
    (first, _) = decisions_of(plan, [replace(again, status="invalid"), *measured])
    assert first.change is not None and first.change.value > 0


def test_an_undecided_recovery_advises_runs_or_injections() -> None:
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
            found.append(IndexEntry.of(one))
    decisions = decisions_of(plan, found)
    assert not all(one.is_decided for one in decisions)
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
    decided_after = by_interval(decisions_of(plan, measured))["5 instead of 2"].decided_at
    late = [
        replace(one, attempt=f"20261121T08{one.attempt[11:]}", metrics={"latency_ms.p50": 1.0})
        if one.repetition == 0 and one.config["checkpoint_interval_s"] == 5.0
        else one
        for one in measured
    ]
    found = by_interval(decisions_of(plan, late))["5 instead of 2"]
    assert found.outcome is SequentialDecision.DIFFERS and found.decided_at == decided_after


def recovery(**known: float | bool | None) -> IndexEntry:
    return IndexEntry.of(sample(recovery=known))


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
    assert first.outcome is SequentialDecision.INCONCLUSIVE


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
    judged = SequentialResult(SequentialDecision.INCONCLUSIVE, 1.0, -math.inf, math.log(2), None, math.inf)
    found = change_of(judged)
    assert (found.value, found.low, found.high) == (pytest.approx(1.0), -1.0, pytest.approx(1.0))
    assert change_of(replace(judged, value=0.0, high=math.inf)).high == math.inf
    assert [percent(one) for one in (-0.38, 0.042, 0.0, math.inf)] == ["−38", "+4.2", "+0.0", "∞"]


ASKED = Decide(CPU_TOTAL, "checkpoint_interval_s", 0.1, experiments=40)
RECOVERY = MATRICES["recovery"]


def matrix(repetitions: int = 1, controls: int = 0, **axes: list[Any]) -> Matrix:
    chosen = {"state_mb": [1.0, 8.0], "checkpoint_interval_s": [2.0, 5.0], **axes}
    return Matrix(chosen, {"warmup_s": 15.0, "duration_s": 105.0}, repetitions, controls)


def test_a_block_holds_each_compared_cell_once_and_the_error_is_spent_over_what_the_budget_pays_for() -> None:
    """40 experiments allow ten blocks of four, or five and another ten of the two remaining cells."""
    cells, question = plan_blocks(matrix(), ASKED, "s")
    assert (question.comparisons, question.blocks, question.horizon) == (2, 15, 10)
    assert [sum(cell.repetition == block for cell in cells) for block in range(15)] == [4] * 15
    assert question.method == Method.T and question.bounds == bounds(Method.T, 15, 10, 0.025)


def test_two_cells_leave_nothing_for_each_other() -> None:
    cells, question = plan_blocks(matrix(state_mb=[1.0]), ASKED, "s")
    assert (question.blocks, question.horizon, len(cells)) == (20, 20, 40)


@given(st.integers(20, 300), st.integers(0, 5), st.integers(2, 5))
@settings(deadline=None, max_examples=10)
def test_the_budget_pays_for_whole_blocks_and_leaves_none_of_them(
    experiments: int, controls: int, intervals: int
) -> None:
    asked = replace(ASKED, experiments=experiments)
    there = matrix(1, controls, state_mb=[1.0], checkpoint_interval_s=[float(n + 1) for n in range(intervals)])
    try:
        cells, question = plan_blocks(there, asked, "s")
    except ConfigError as error:
        least = min_decidable_pairs(Method.T, 0.05 / (intervals - 1)) * intervals + controls
        assert experiments < least and f"give {least} or more" in str(error)
        return
    assert experiments - intervals < question.horizon * intervals + controls <= experiments
    assert question.horizon <= question.blocks <= 2 * question.horizon
    assert len(cells) == question.blocks * intervals + controls
    assert len({cell.cell for cell in cells}) == len(cells)
    assert sum(cell.config.fault == "none" for cell in cells) == controls


def test_controls_are_measured_as_often_as_planned() -> None:
    params = {
        **RECOVERY.values("default"),
        "fault": ["executor", "none"],
        "checkpoint_interval_s": [2.0, 5.0],
        "repetitions": 2,
    }
    cells, question = plan_blocks(Matrix.under(params, RECOVERY.axes), replace(ASKED, figure=MACRO), "s")
    controls = [cell for cell in cells if cell.config.fault == "none"]
    assert (question.comparisons, question.blocks, len(controls)) == (1, 18, 4)
    assert question.method == Method.RANKS


def test_where_nothing_is_broken_all_cells_are_compared() -> None:
    there = MATRICES["input_rate"]
    cells, question = plan_blocks(there.preset_matrix(), Decide(CPU_TOTAL, "rate", 0.1, experiments=30), "s")
    assert (question.comparisons, question.horizon, len(cells)) == (2, 10, 3 * question.blocks)


def test_hours_pay_for_blocks_by_what_is_measured() -> None:
    """Four cells of two minutes with an overhead of 35 s each take ten minutes and a third."""
    _, question = plan_blocks(matrix(), replace(ASKED, experiments=None, hours=2.0), "s")
    assert question.horizon == 11
    _, question = plan_blocks(matrix(), replace(ASKED, experiments=32, hours=2.0), "s")
    assert question.horizon == 8


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"experiments": 19}, "decide.experiments: got 19; expected 20 or more"),
        ({"experiments": 2000}, "decide.experiments: got 2000; expected at most 1024"),
        ({"experiments": None, "hours": 0.5}, "decide.hours: got 0.5; expected 0.87 or more"),
    ],
)  # fmt: skip
def test_a_budget_that_can_decide_nothing_is_refused_with_the_number_needed(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_blocks(matrix(), replace(ASKED, **changed), "s")
    if "expected 20" in words:
        assert plan_blocks(matrix(), replace(ASKED, experiments=20), "s")[1].blocks == 5
    if "expected 0.87" in words:
        assert plan_blocks(matrix(), replace(ASKED, experiments=None, hours=0.87), "s")[1].horizon == 5


def test_an_axis_on_which_nothing_differs_alone_is_refused() -> None:
    params = {**RECOVERY.values("default"), "fault": ["executor", "none"]}
    with pytest.raises(ConfigError, match="decide.along: "):
        plan_blocks(Matrix.under(params, RECOVERY.axes), replace(ASKED, along="fault"), "s")


def asked_plan() -> SweepPlan:
    cells, question = plan_blocks(matrix(), ASKED, "s")
    return made_plan(cells, series="s", decide=question)


def test_a_budget_that_is_raised_spends_the_error_by_the_first_plan() -> None:
    earlier, more = asked_plan(), replace(ASKED, experiments=80)
    assert plan_blocks(matrix(), more, "s", [earlier])[1].horizon == 10
    assert plan_blocks(matrix(), more, "s", [earlier])[1].blocks == 35
    assert plan_blocks(matrix(), more, "other", [earlier])[1].horizon == 20, "another series is another answer"
    assert plan_blocks(matrix(), replace(more, figure="latency_ms.p50"), "s", [earlier])[1].horizon == 20
    wider = matrix(state_mb=[1.0, 2.0, 8.0])
    assert plan_blocks(wider, more, "s", [earlier])[1].horizon == 13, "of more comparisons each has other bounds"
    assert plan_blocks(matrix(), more, "s", [earlier], fresh=True)[1].horizon == 20
    assert plan_blocks(matrix(), more, "s", [earlier.model_copy(update={"decide": None})])[1].horizon == 20


def test_a_plan_is_read_with_its_question() -> None:
    plan = asked_plan()
    assert SweepPlan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


def test_figures_with_a_direction_can_be_decided_and_counts_of_defects_cannot() -> None:
    assert {"latency_ms.p50", CPU_TOTAL, MACRO, "throughput_rps"} <= FIGURES.keys()
    assert not {"audit.lost", "sustained", "source_rps", "stages.failed"} & FIGURES.keys()
    assert method_of(FIGURES[MACRO]) is Method.RANKS
    assert method_of(FIGURES["latency_ms.p99"]) is Method.T
