"""More runs or more injections: what records of runs with several recoveries say of the next ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from faultline.comparison.advise import advise
from faultline.comparison.allocation import Allocation, allocation_of, costs_of
from faultline.comparison.answer import answer_of
from faultline.comparison.candidates import choice_of
from faultline.comparison.cells import Step, axes_of, points_of, values_of
from faultline.comparison.decisions import BESIDES_S, FIGURES, Decision
from faultline.comparison.effects import Verdict, effects_along, repetitions_of
from faultline.comparison.statistics.sequential import Outcome
from faultline.records.catalogue import MACRO
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.answers import answer_json
from faultline.reports.figures.front import answer_view
from faultline.reports.views.allocation import allocation_json, allocation_lines, next_step
from faultline.reports.views.answer import answer_lines
from tests.unit.sample_records import made_run

Ends = Sequence[tuple[float, float | None]]


def runs(
    between: float, within: float, number: int = 8, recoveries: int = 3, *, cell: int = 1, level: float = 20.0,
    slope: float = 0.0, seed: int = 1,
) -> list[Record]:  # fmt: skip
    """Runs of one configuration, whose recoveries are known to 1 s."""
    rng = np.random.default_rng([seed, cell])
    found = []
    for run in range(number):
        values = level + between * rng.standard_normal() + within * rng.standard_normal(recoveries)
        values = np.maximum(values + slope * np.arange(recoveries), 1.0)
        found.append(made_run(run, [(one - 1, one) for one in values.tolist()], number=cell))
    return found


def found_in(records: Sequence[Record], others: Sequence[Entry] = ()) -> Allocation:
    found = allocation_of(points_of([Entry.of(one) for one in records]), others)
    assert found is not None
    return found


def undecided(pairs: int, more: int | None) -> Decision:
    points = points_of([Entry.of(one) for one in runs(0, 1, 1)])
    axis = axes_of(points_of([Entry.of(one) for cell in (1, 5) for one in runs(0, 1, 1, cell=cell)]))[0]
    step = Step(axis, points[0], points[0])
    return Decision(step, FIGURES[MACRO], Outcome.OPEN, None, 0.1, pairs, None, more)


def test_runs_that_differ_little_need_more_injections_and_others_more_runs() -> None:
    alike, unlike = found_in(runs(0.2, 4.0, 40)), found_in(runs(6.0, 1.0, 40))
    assert alike.best is not None and alike.best > alike.injections == 3 and alike.worth_it
    assert unlike.best == 1 and unlike.worth_it
    assert alike.runs_instead(20) < 20 < unlike.runs_instead(20)
    assert f"a new one with injections={alike.best} about" in next_step([undecided(8, 12)], alike)
    assert "about 20 pairs in all with 3 injections per run" in next_step([undecided(8, 12)], alike)


def test_a_number_that_is_nearly_the_best_is_kept() -> None:
    found = found_in(runs(1.0, 2.0, 60))
    # A start costs 35 s and the warm-up, an injection 30 s: sqrt(55 / 30 · 4) = 2.7.
    assert found.best in (2, 3) and not found.worth_it
    assert next_step([undecided(8, 4)], found).startswith(
        "This sweep needs about 12 pairs in all with 3 injections per run: measure more runs."
    )
    assert "no other number saves a tenth of the time" in allocation_lines(found)[1]


def test_there_is_no_advice_where_nothing_is_open_or_one_run_is_all_there_is() -> None:
    found, alone = found_in(runs(1.0, 2.0)), found_in(runs(1.0, 2.0, 1))
    assert next_step([undecided(8, None)], found) == next_step([], found) == next_step([undecided(8, 4)], None) == ""
    assert alone.best is None and next_step([undecided(1, 4)], alone) == ""
    assert "Single runs cannot show how much runs differ." in allocation_lines(alone)[0]
    assert alone.components.within > 0, "it may describe its own scatter"


def test_no_variance_between_runs_is_bounded_by_what_a_start_costs() -> None:
    flat = found_in([made_run(n, [(10.0, 10.0), (20.0, 20.0), (30.0, 30.0)]) for n in range(4)])
    assert flat.components.between == 0.0
    # Starts of 55 s, injections of 30 s: at 17 a start takes a tenth of a run.
    assert flat.best == flat.most == math.ceil(9 * 55 / 30)
    assert flat.least is not None and flat.least <= flat.best


def test_costs_come_from_the_clock_of_the_records_and_are_assumed_where_it_says_nothing() -> None:
    entries = [Entry.of(one) for one in runs(1.0, 2.0, 6)]
    # A run begins every 7 minutes; its window lasts 4 × 30 s.
    measured = costs_of(entries, entries)
    assert (measured.start_s, measured.injection_s, measured.measured) == (300.0, 30.0, (True, True))
    assumed = costs_of(entries, entries[:3])
    assert assumed.start_s == BESIDES_S + float(entries[0].config["warmup_s"]) and assumed.measured == (False, True)
    blind = costs_of([replace(one, spacing_s=None) for one in entries])
    assert blind.injection_s == 120.0 / 3 and blind.measured == (False, False)
    began_s, window_s = entries[5].window or (0.0, 0.0)
    interrupted = [*entries[:5], replace(entries[5], window=(began_s + 86_400, window_s))]
    assert costs_of(entries, interrupted).start_s == 300.0
    elsewhere = [replace(one, surroundings={"host": f"h{n}"}) for n, one in enumerate(entries)]
    assert costs_of(entries, elsewhere).measured == (False, True)


def test_an_engine_that_ages_shows_it() -> None:
    ageing = found_in(runs(2.0, 0.5, 8, 4, slope=1.5)).ageing
    assert ageing is not None and ageing.runs == 8
    assert ageing.change.low < 1.5 < ageing.change.high and ageing.change.low > 0
    assert "The engine ages" in allocation_lines(found_in(runs(2.0, 0.5, 8, 4, slope=1.5)))[-1]
    assert "No change with the number is shown" in allocation_lines(found_in(runs(2.0, 0.5, 8, 4)))[-1]
    assert "Later recoveries take less time" in allocation_lines(found_in(runs(2.0, 0.5, 8, 4, slope=-1.5)))[-1]
    assert found_in(runs(2.0, 0.5, 8, 2)).ageing is None


def test_what_was_not_seen_to_end_counts_as_far_as_it_was_watched() -> None:
    found = found_in([made_run(n, [(9.0 + n, 10.0 + n), (40.0, None)]) for n in range(4)])
    assert found.open_ended == 4 and found.components.values == 8
    assert "4 not seen to end" in allocation_lines(found)[0]


@pytest.mark.parametrize("count", [1, 4])
def test_recoveries_of_one_run_are_one_value_to_every_reader(count: int) -> None:
    """What was wrong: eight recoveries of two runs taken for eight repetitions."""
    records = [one for cell in (1, 5) for one in runs(3.0, 1.0, count, 8, cell=cell)]
    entries = [Entry.of(one) for one in records]
    points = points_of(entries)
    axes = axes_of(points)
    (effect,) = [one for one in effects_along(points, axes, axes) if one.metric.key == MACRO]
    assert effect.found.n == count and effect.repetitions == count
    assert effect.verdict is Verdict.OPEN or count > 1
    for point in points:
        assert len(repetitions_of(point, MACRO)) == point.figure(MACRO).n == count
        assert len(values_of(point.valid, MACRO)) == count
    choice = choice_of(points)
    assert {one.repetitions for one in choice.candidates} == {count}
    answer = answer_of(entries)
    assert answer is not None and answer.single == (count == 1)
    assert answer.advice is not None and not answer.advice.told
    assert not advise(choice, answer.advice.wish).told


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
    assert allocation_of(points_of([Entry.of(one) for one in single])) is None


def effects_of(records: Sequence[Record]) -> list[tuple[str, object, float, Verdict]]:
    points = points_of([Entry.of(one) for one in records])
    axes = axes_of(points)
    return [(one.metric.key, one.found, one.p, one.verdict) for one in effects_along(points, axes, axes)]


def test_the_answer_shows_it_on_the_terminal_on_the_page_and_in_json() -> None:
    records = [one for cell in (1, 5) for one in runs(1.0, 2.0, 5, 4, cell=cell)]
    answer = answer_of([Entry.of(one) for one in records])
    assert answer is not None and answer.allocation is not None
    lines = allocation_lines(answer.allocation)
    assert [one in answer_lines(answer) for one in lines] == [True] * 3
    view = answer_view(answer, None, {})
    assert view is not None and view["scatter"] == lines
    kept = json.loads(json.dumps(answer_json(answer), allow_nan=False))["scatter"]
    assert kept == allocation_json(answer.allocation)
    assert kept["runs"] == 10 and kept["recoveries"] == 40
    assert kept["best_injections_range"][0] <= kept["best_injections"] <= kept["best_injections_range"][1]
    alone = answer_of([Entry.of(records[0])])
    assert alone is not None
    json.dumps(answer_json(alone), allow_nan=False)
