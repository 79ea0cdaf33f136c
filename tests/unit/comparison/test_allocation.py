"""Allocation of runs and injections from records with several recoveries."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.allocation import (
    MAX_INJECTIONS,
    Allocation,
    allocation_of,
    best_injections,
    components,
    costs_of,
    price,
    slope,
)
from faultline.comparison.candidates import choice_of
from faultline.comparison.config_points import AxisStep, axes_of, points_of, values_of
from faultline.comparison.decisions import FIGURES, OVERHEAD_S, Decision
from faultline.comparison.effects import EffectVerdict, axis_effects, repetitions_of
from faultline.comparison.recommendation import recommend
from faultline.comparison.statistics.sequential import SequentialDecision
from faultline.comparison.sweep_summary import summary_of
from faultline.records.catalogue import MACRO
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.console import summary_json
from faultline.reports.figures.front import summary_view
from faultline.reports.views.allocation import allocation_json, allocation_lines, next_step_text
from faultline.reports.views.sweep_summary import summary_lines
from tests.unit.sample_records import made_run

Ends = Sequence[tuple[float, float | None]]


def runs(
    between: float, within: float, number: int = 8, recoveries: int = 3, *, cell: int = 1, level: float = 20.0,
    slope: float = 0.0, seed: int = 1,
) -> list[Record]:  # fmt: skip
    """Return runs of one configuration with a resolution of 1 s."""
    rng = np.random.default_rng([seed, cell])
    found = []
    for run in range(number):
        values = level + between * rng.standard_normal() + within * rng.standard_normal(recoveries)
        values = np.maximum(values + slope * np.arange(recoveries), 1.0)
        found.append(made_run(run, [(one - 1, one) for one in values.tolist()], number=cell))
    return found


def found_in(records: Sequence[Record], others: Sequence[IndexEntry] = ()) -> Allocation:
    found = allocation_of(points_of([IndexEntry.of(one) for one in records]), others)
    assert found is not None
    return found


def undecided(pairs: int, more: int | None) -> Decision:
    points = points_of([IndexEntry.of(one) for one in runs(0, 1, 1)])
    axis = axes_of(points_of([IndexEntry.of(one) for cell in (1, 5) for one in runs(0, 1, 1, cell=cell)]))[0]
    step = AxisStep(axis, points[0], points[0])
    return Decision(step, FIGURES[MACRO], SequentialDecision.INCONCLUSIVE, None, 0.1, pairs, None, more)


def test_runs_that_differ_little_need_more_injections_and_others_more_runs() -> None:
    alike, unlike = found_in(runs(0.2, 4.0, 40)), found_in(runs(6.0, 1.0, 40))
    assert alike.best is not None and alike.best > alike.injections == 3 and alike.is_worthwhile
    assert unlike.best == 1 and unlike.is_worthwhile
    assert alike.equivalent_runs(20) < 20 < unlike.equivalent_runs(20)
    assert f"a new one with injections={alike.best} about" in next_step_text([undecided(8, 12)], alike)
    assert "about 20 pairs with 3 injections per run" in next_step_text([undecided(8, 12)], alike)


def test_a_number_that_is_nearly_the_best_is_kept() -> None:
    found = found_in(runs(1.0, 2.0, 60))
    # A start costs 35 s and the warm-up, an injection 30 s: sqrt(55 / 30 · 4) = 2.7.
    assert found.best in (2, 3) and not found.is_worthwhile
    assert next_step_text([undecided(8, 4)], found).startswith(
        "This sweep needs about 12 pairs with 3 injections per run: measure more runs."
    )
    assert "no other number saves 10 %" in allocation_lines(found)[1]


def test_there_is_no_advice_where_nothing_is_open_or_one_run_is_all_there_is() -> None:
    found, alone = found_in(runs(1.0, 2.0)), found_in(runs(1.0, 2.0, 1))
    assert (
        next_step_text([undecided(8, None)], found)
        == next_step_text([], found)
        == next_step_text([undecided(8, 4)], None)
        == ""
    )
    assert alone.best is None and next_step_text([undecided(1, 4)], alone) == ""
    assert "requires several runs." in allocation_lines(alone)[0]
    assert alone.components.within > 0, "it may describe its own scatter"


def test_no_variance_between_runs_is_bounded_by_what_a_start_costs() -> None:
    flat = found_in([made_run(n, [(10.0, 10.0), (20.0, 20.0), (30.0, 30.0)]) for n in range(4)])
    assert flat.components.between == 0.0
    # Starts of 55 s, injections of 30 s: at 17 a start takes a tenth of a run.
    assert flat.best == flat.most == math.ceil(9 * 55 / 30)
    assert flat.least is not None and flat.least <= flat.best


def test_costs_are_measured_or_assumed() -> None:
    entries = [IndexEntry.of(one) for one in runs(1.0, 2.0, 6)]
    # A run begins every 7 minutes; its window lasts 4 × 30 s.
    measured = costs_of(entries, entries)
    assert (measured.start_s, measured.injection_s, measured.measured) == (300.0, 30.0, (True, True))
    assumed = costs_of(entries, entries[:3])
    assert assumed.start_s == OVERHEAD_S + float(entries[0].config["warmup_s"]) and assumed.measured == (False, True)
    blind = costs_of([replace(one, spacing_s=None) for one in entries])
    assert blind.injection_s == 120.0 / 3 and blind.measured == (False, False)
    began_s, window_s = entries[5].window or (0.0, 0.0)
    interrupted = [*entries[:5], replace(entries[5], window=(began_s + 86_400, window_s))]
    assert costs_of(entries, interrupted).start_s == 300.0
    elsewhere = [replace(one, surroundings={"host": f"h{n}"}) for n, one in enumerate(entries)]
    assert costs_of(entries, elsewhere).measured == (False, True)


def test_an_engine_that_ages_shows_it() -> None:
    ageing = found_in(runs(2.0, 0.5, 8, 4, slope=1.5)).drift
    assert ageing is not None and ageing.runs == 8
    assert ageing.change.low < 1.5 < ageing.change.high and ageing.change.low > 0
    assert "Later recoveries take longer." in allocation_lines(found_in(runs(2.0, 0.5, 8, 4, slope=1.5)))[-1]
    assert "No trend detected" in allocation_lines(found_in(runs(2.0, 0.5, 8, 4)))[-1]
    assert "Later recoveries are faster" in allocation_lines(found_in(runs(2.0, 0.5, 8, 4, slope=-1.5)))[-1]
    assert found_in(runs(2.0, 0.5, 8, 2)).drift is None


def test_what_was_not_seen_to_end_counts_as_far_as_it_was_watched() -> None:
    found = found_in([made_run(n, [(9.0 + n, 10.0 + n), (40.0, None)]) for n in range(4)])
    assert found.censored == 4 and found.components.values == 8
    assert "4 of them censored" in allocation_lines(found)[0]


@pytest.mark.parametrize("count", [1, 4])
def test_recoveries_of_one_run_are_one_value_to_every_reader(count: int) -> None:
    """Regression: eight recoveries of two runs counted as eight repetitions."""
    records = [one for cell in (1, 5) for one in runs(3.0, 1.0, count, 8, cell=cell)]
    entries = [IndexEntry.of(one) for one in records]
    points = points_of(entries)
    axes = axes_of(points)
    (effect,) = [one for one in axis_effects(points, axes, axes) if one.metric.key == MACRO]
    assert effect.found.n == count and effect.repetitions == count
    assert effect.verdict is EffectVerdict.INCONCLUSIVE or count > 1
    for point in points:
        assert len(repetitions_of(point, MACRO)) == point.figure(MACRO).n == count
        assert len(values_of(point.valid, MACRO)) == count
    choice = choice_of(points)
    assert {one.repetitions for one in choice.candidates} == {count}
    answer = summary_of(entries)
    assert answer is not None and answer.is_unrepeated == (count == 1)
    assert answer.recommendation is not None and not answer.recommendation.is_conclusive
    assert not recommend(choice, answer.recommendation.objective).is_conclusive


def test_with_one_recovery_per_run_nothing_changes() -> None:
    """The same values from runs of one injection and of several, bit for bit."""
    several = [made_run(n, [(8.0 + n / 3, 9.0 + n / 7 + 1)] * 3, number=cell) for cell in (1, 5) for n in range(6)]
    single = [
        one.model_copy(
            update={
                "config": {key: value for key, value in one.config.items() if key != "injections"},
                "metrics": one.metrics.model_copy(update={"recoveries": [one.metrics.recovery]}),
            }
        )
        for one in several
    ]
    found = [effects_of(records) for records in (several, single)]
    assert found[0] == found[1]
    assert allocation_of(points_of([IndexEntry.of(one) for one in single])) is None


def effects_of(records: Sequence[Record]) -> list[tuple[str, object, float, EffectVerdict]]:
    points = points_of([IndexEntry.of(one) for one in records])
    axes = axes_of(points)
    return [(one.metric.key, one.found, one.p, one.verdict) for one in axis_effects(points, axes, axes)]


def test_the_answer_shows_it_on_the_terminal_on_the_page_and_in_json() -> None:
    records = [one for cell in (1, 5) for one in runs(1.0, 2.0, 5, 4, cell=cell)]
    answer = summary_of([IndexEntry.of(one) for one in records])
    assert answer is not None and answer.allocation is not None
    lines = allocation_lines(answer.allocation)
    assert [one in summary_lines(answer) for one in lines] == [True] * 3
    view = summary_view(answer, None, {})
    assert view is not None and view["scatter"] == lines
    kept = json.loads(json.dumps(summary_json(answer), allow_nan=False))["scatter"]
    assert kept == allocation_json(answer.allocation)
    assert kept["runs"] == 10 and kept["recoveries"] == 40
    assert kept["best_injections_range"][0] <= kept["best_injections"] <= kept["best_injections_range"][1]
    alone = summary_of([IndexEntry.of(records[0])])
    assert alone is not None
    json.dumps(summary_json(alone), allow_nan=False)


RATIOS = st.floats(0, 50)
COSTS = st.floats(1, 500)


def drawn(between: float, within: float, runs: int, sizes: tuple[int, ...], seed: int = 1) -> list[list[float]]:
    """Return runs with these numbers of recoveries and standard deviations."""
    rng = np.random.default_rng(seed)
    return [
        (10 + between * rng.standard_normal() + within * rng.standard_normal(sizes[n % len(sizes)])).tolist()
        for n in range(runs)
    ]


@pytest.mark.parametrize("sizes", [(3,), (1, 2, 5), (2, 8)])
@pytest.mark.parametrize(("between", "within"), [(0.0, 2.0), (1.0, 2.0), (3.0, 1.0)])
def test_planted_variances_come_back(between: float, within: float, sizes: tuple[int, ...]) -> None:
    shifted = [[one + 50 for one in run] for run in drawn(between, within, 1500, sizes, seed=2)]
    found = components([drawn(between, within, 1500, sizes), shifted])
    assert found is not None and found.between is not None and found.correlation is not None
    assert found.within == pytest.approx(within**2, rel=0.08)
    assert found.between == pytest.approx(between**2, rel=0.12, abs=0.12)
    true = between**2 / (between**2 + within**2)
    assert found.correlation.low - 0.01 <= true <= found.correlation.high + 0.01


def test_balanced_runs_agree_with_the_analysis_of_variance_by_hand() -> None:
    found = components([[[1.0, 3.0], [4.0, 6.0], [10.0, 12.0]]])
    assert found is not None
    # Means 2, 5, 11 about 6: squares 2 · (16 + 1 + 25) / 2 = 42; within (2 + 2 + 2) / 3 = 2.
    assert found.within == pytest.approx(2.0)
    assert found.between == pytest.approx((42 - 2) / 2)
    assert found.ratio is not None and found.ratio.value == pytest.approx(10.0)
    assert (found.runs, found.values) == (3, 6)


def test_a_between_variance_below_zero_is_zero() -> None:
    found = components([[[0.0, 10.0], [1.0, 9.0]]])
    assert found is not None and found.ratio is not None
    assert found.between == 0.0 and found.ratio.value == found.ratio.low == 0.0


def test_the_interval_holds_the_planted_ratio() -> None:
    held = 0
    for seed in range(200):
        found = components([drawn(1.0, 2.0, 6, (4,), seed)])
        assert found is not None and found.ratio is not None
        held += found.ratio.low <= 0.25 <= found.ratio.high
    assert 0.90 <= held / 200 <= 0.99


def test_single_runs_and_single_recoveries_say_less() -> None:
    alone = components([[[1.0, 2.0, 4.0]]])
    assert alone is not None and alone.within > 0
    assert alone.between is None and alone.ratio is None and alone.correlation is None
    assert components([[[1.0], [2.0]], [[3.0]]]) is None
    assert components([]) is None


def test_equal_recoveries_leave_all_scatter_to_the_runs() -> None:
    found = components([[[1.0, 1.0], [2.0, 2.0]]])
    assert found is not None and found.ratio is not None and found.correlation is not None
    assert math.isinf(found.ratio.value) and found.correlation.value == 1.0


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=5), min_size=2, max_size=6), st.randoms())
def test_order_does_not_matter(runs: list[list[float]], random: object) -> None:
    mixed = [random.sample(run, len(run)) for run in random.sample(runs, len(runs))]  # type: ignore[attr-defined]
    one, other = components([runs]), components([mixed])
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.within == pytest.approx(other.within, abs=1e-9)
        assert one.between == pytest.approx(other.between, abs=1e-6)


@given(RATIOS, COSTS, COSTS)
def test_no_other_number_within_bounds_is_cheaper(ratio: float, start_s: float, injection_s: float) -> None:
    best = best_injections(ratio, start_s, injection_s)
    most = best_injections(0.0, start_s, injection_s)
    assert 1 <= best <= most <= MAX_INJECTIONS
    costs = [price(ratio, k, start_s, injection_s) for k in range(1, most + 1)]
    assert price(ratio, best, start_s, injection_s) <= min(costs) * (1 + 1e-9)


def test_the_formula_of_kalibera_and_jones() -> None:
    assert best_injections(1 / 4, 100.0, 25.0) == 4
    assert best_injections(math.inf, 100.0, 25.0) == 1
    assert best_injections(0.0, 50.0, 50.0) == 9, "a start takes a tenth of a run"
    assert best_injections(0.0, 10_000.0, 1.0) == MAX_INJECTIONS


def test_a_slope_is_that_of_the_runs() -> None:
    runs = [[(n, level + 0.5 * n) for n in (1, 2, 3, 4)] for level in (3.0, 9.0, 30.0)]
    found = slope([*runs, [(1, 5.0), (2, 50.0)]])
    assert found is not None and found.runs == 3
    assert found.change.low <= found.change.value + 1e-9 and found.change.value == pytest.approx(0.5)
    alone = slope(runs[:1])
    assert alone is not None and math.isinf(alone.change.high) and alone.change.value == pytest.approx(0.5)
    assert slope([[(1, 5.0), (2, 50.0)]]) is None


def test_a_slope_that_is_none_is_seldom_shown() -> None:
    shown = 0
    for seed in range(300):
        found = slope([list(enumerate(run, 1)) for run in drawn(2.0, 1.0, 5, (4,), seed)])
        assert found is not None
        shown += not found.change.low <= 0 <= found.change.high
    assert shown / 300 <= 0.08
