"""Questions made ready: what is compared, in how many blocks, and what is too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.comparison.decisions import FIGURES, method_of, pose
from faultline.comparison.statistics.sequential import Method, bounds, fewest
from faultline.experiment.decide import Decide
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix
from faultline.records.catalogue import CPU_TOTAL, MACRO
from faultline.records.manifest import Manifest, cells_of
from faultline.system.errors import ConfigError

ASKED = Decide(CPU_TOTAL, "checkpoint_interval_s", 0.1, experiments=40)
RECOVERY = MATRICES["recovery"]


def matrix(repetitions: int = 1, controls: int = 0, **axes: list[Any]) -> Matrix:
    chosen = {"state_mb": [1.0, 8.0], "checkpoint_interval_s": [2.0, 5.0], **axes}
    return Matrix(chosen, {"warmup_s": 15.0, "duration_s": 105.0}, repetitions, controls)


def test_a_block_holds_each_compared_cell_once_and_the_error_is_spent_over_what_the_budget_pays_for() -> None:
    """Of 40 experiments ten blocks of four, or five of them and another ten of the two that are left."""
    cells, question = pose(matrix(), ASKED, "s")
    assert (question.comparisons, question.blocks, question.horizon) == (2, 15, 10)
    assert [sum(cell.repetition == block for cell in cells) for block in range(15)] == [4] * 15
    assert question.method == Method.T and question.bounds == bounds(Method.T, 15, 10, 0.025)


def test_two_cells_leave_nothing_for_each_other() -> None:
    cells, question = pose(matrix(state_mb=[1.0]), ASKED, "s")
    assert (question.blocks, question.horizon, len(cells)) == (20, 20, 40)


@given(st.integers(20, 300), st.integers(0, 5), st.integers(2, 5))
@settings(deadline=None, max_examples=10)
def test_the_budget_pays_for_whole_blocks_and_leaves_none_of_them(
    experiments: int, controls: int, intervals: int
) -> None:
    asked = replace(ASKED, experiments=experiments)
    there = matrix(1, controls, state_mb=[1.0], checkpoint_interval_s=[float(n + 1) for n in range(intervals)])
    try:
        cells, question = pose(there, asked, "s")
    except ConfigError as error:
        least = fewest(Method.T, 0.05 / (intervals - 1)) * intervals + controls
        assert experiments < least and f"give {least} or more" in str(error)
        return
    assert experiments - intervals < question.horizon * intervals + controls <= experiments
    assert question.horizon <= question.blocks <= 2 * question.horizon
    assert len(cells) == question.blocks * intervals + controls
    assert len({cell.cell for cell in cells}) == len(cells)
    assert sum(cell.config.fault == "none" for cell in cells) == controls


def test_controls_on_an_axis_are_measured_as_often_as_the_form_says() -> None:
    params = {
        **RECOVERY.values("default"),
        "fault": ["executor", "none"],
        "checkpoint_interval_s": [2.0, 5.0],
        "repetitions": 2,
    }
    cells, question = pose(Matrix.under(params, RECOVERY.axes), replace(ASKED, figure=MACRO), "s")
    controls = [cell for cell in cells if cell.config.fault == "none"]
    assert (question.comparisons, question.blocks, len(controls)) == (1, 18, 4)
    assert question.method == Method.RANKS


def test_where_nothing_is_broken_all_cells_are_compared() -> None:
    there = MATRICES["input_rate"]
    cells, question = pose(there.preset_matrix(), Decide(CPU_TOTAL, "rate", 0.1, experiments=30), "s")
    assert (question.comparisons, question.horizon, len(cells)) == (2, 10, 3 * question.blocks)


def test_hours_pay_for_blocks_by_what_is_measured() -> None:
    """Four cells of two minutes, and 35 s beside each, are ten minutes and a third."""
    _, question = pose(matrix(), replace(ASKED, experiments=None, hours=2.0), "s")
    assert question.horizon == 11
    _, question = pose(matrix(), replace(ASKED, experiments=32, hours=2.0), "s")
    assert question.horizon == 8


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"experiments": 19}, "decide.experiments: 19 are too few .*: 2 comparisons of 4 cells take 5 blocks at least; "
                              "give 20 or more"),
        ({"experiments": 2000}, "decide.experiments: 2000 are more than 1024"),
        ({"experiments": None, "hours": 0.5}, "decide.hours: 0.5 are too few .*; give 0.87 or more"),
    ],
)  # fmt: skip
def test_a_budget_that_can_decide_nothing_is_refused_with_the_number_needed(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        pose(matrix(), replace(ASKED, **changed), "s")
    if "give 20" in words:
        assert pose(matrix(), replace(ASKED, experiments=20), "s")[1].blocks == 5
    if "give 0.87" in words:
        assert pose(matrix(), replace(ASKED, experiments=None, hours=0.87), "s")[1].horizon == 5


def test_an_axis_on_which_nothing_differs_alone_is_refused() -> None:
    params = {**RECOVERY.values("default"), "fault": ["executor", "none"]}
    with pytest.raises(ConfigError, match="decide.along: no two cells differ in fault alone; choose another axis"):
        pose(Matrix.under(params, RECOVERY.axes), replace(ASKED, along="fault"), "s")


def plan_of(asked: Decide, series: str, **named: Any) -> Manifest:
    cells, question = pose(matrix(), asked, series)
    facts = {"sweep_id": "s1", "matrix": "m", "run_id": "r", "series": series, "build": "b", "logical_date": None,
             "planned_at": "2026-11-21T06:00:00+00:00", "decide": question, "cells": cells_of(cells)}  # fmt: skip
    return Manifest(**{**facts, **named})


def test_a_budget_that_is_raised_spends_the_error_by_the_first_plan() -> None:
    earlier, more = plan_of(ASKED, "s"), replace(ASKED, experiments=80)
    assert pose(matrix(), more, "s", [earlier])[1].horizon == 10
    assert pose(matrix(), more, "s", [earlier])[1].blocks == 35
    assert pose(matrix(), more, "other", [earlier])[1].horizon == 20, "another series is another answer"
    assert pose(matrix(), replace(more, figure="latency_ms.p50"), "s", [earlier])[1].horizon == 20
    wider = matrix(state_mb=[1.0, 2.0, 8.0])
    assert pose(wider, more, "s", [earlier])[1].horizon == 13, "of more comparisons each has other bounds"
    assert pose(matrix(), more, "s", [earlier], fresh=True)[1].horizon == 20
    assert pose(matrix(), more, "s", [earlier.model_copy(update={"decide": None})])[1].horizon == 20


def test_a_plan_is_read_with_its_question() -> None:
    plan = plan_of(ASKED, "s")
    assert Manifest.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


def test_figures_with_a_direction_can_be_decided_and_counts_of_defects_cannot() -> None:
    assert {"latency_ms.p50", CPU_TOTAL, MACRO, "throughput_rps"} <= FIGURES.keys()
    assert not {"audit.lost", "sustained", "source_rps", "stages.failed"} & FIGURES.keys()
    assert method_of(FIGURES[MACRO]) is Method.RANKS
    assert method_of(FIGURES["latency_ms.p99"]) is Method.T
