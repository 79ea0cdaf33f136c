"""Regression gate: suspicion, confirmation, and failure without a regression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from faultline.comparison.compare import metrics_named
from faultline.comparison.regression_gate.nightly_pairs import (
    default_primary,
    paired_run_of,
    paired_runs_of,
    paired_verdict,
    reason_text,
)
from faultline.comparison.regression_gate.verdict import (
    CENSORED_SIZE,
    CERTAIN,
    POOLED,
    SUSPECTED,
    GateStatus,
    PairedRun,
    Pairs,
    cell_p_values,
    count_tests,
    judge_cells,
    judge_gate,
    min_p,
    min_pairs,
    p_above,
    replace_infinite,
)
from faultline.comparison.statistics.estimate import Interval, ValueRange
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.records.sweep_plan import ReferenceBuild, SweepPlan
from faultline.reports.notes import MAX_NOTE, nightly_note
from tests.unit.nightly_records import date_of
from tests.unit.pages_store import record
from tests.unit.sample_records import made_plan

P50, RPS, MACRO = metrics_named(["latency_ms.p50", "rps_per_core", "recovery.macro_s"])


def pairs(change: float, seed: int, *, n: int = 12, name: str = "a", spread: float = 0.05) -> Pairs:
    """Return pairs around a change, as a logarithm."""
    values = tuple(change + spread * np.random.default_rng(seed).standard_normal(n))
    return Pairs(name, name, P50, values, values, 12)


def make_run(day: int, *cells: Pairs, baseline: str = "b0", problem: str = "") -> PairedRun:
    return PairedRun(f"2026-11-{day:02d}T02:00:00+00:00", "b1", baseline, cells, problem)


def exact(*values: float) -> list[ValueRange]:
    return [ValueRange(one, one) for one in values]


def test_equal_builds_pass_with_detectable_effects() -> None:
    verdict = judge_gate([make_run(1, pairs(0.0, 1), pairs(0.0, 2, name="b"))])
    assert not verdict.red and [one.status for one in verdict.cells] == [GateStatus.NO_CHANGE] * 3
    assert [one.name for one in verdict.cells] == ["a", "b", POOLED]
    alone, _, together = verdict.cells
    assert alone.detectable and 0.03 < alone.detectable < 0.12
    assert together.detectable is None, "each is scaled by its own scatter"
    assert alone.change and alone.change.low < 0 < alone.change.high and alone.since is None


def test_a_confirmed_suspicion_fails_the_gate() -> None:
    first, second = make_run(1, pairs(0.1, 5)), make_run(2, pairs(0.1, 8))
    assert [one.status for one in judge_gate([first]).cells] == [GateStatus.SUSPECTED]
    assert not judge_gate([first]).red
    verdict = judge_gate([first, second])
    assert verdict.red and verdict.cells[0].since == first.date and verdict.cells[0].nights == 2
    between = make_run(2, pairs(0.0, 3))
    third = make_run(3, pairs(0.1, 8))
    assert not judge_gate([first, between, third]).red, "a run without finding ends the suspicion"
    blind = make_run(2, pairs(0.1, 3, n=3))
    assert judge_gate([first, blind, third]).red, "an inconclusive run does not"
    assert not judge_gate([make_run(1, pairs(0.1, 5), baseline="old"), second]).red, "against another baseline"


def test_what_is_certain_beyond_doubt_is_red_at_once() -> None:
    verdict = judge_gate([make_run(1, pairs(0.5, 1), pairs(0.5, 2, name="b"))])
    assert verdict.red and {one.status for one in verdict.cells} >= {GateStatus.WORSE}
    together = verdict.cells[-1]
    assert together.status is GateStatus.WORSE and together.q <= CERTAIN and together.nights == 1
    better = judge_gate([make_run(1, pairs(-0.5, 1), pairs(-0.5, 2, name="b"))])
    assert not better.red and {one.status for one in better.cells} == {GateStatus.BETTER}


def test_too_few_pairs_and_failed_runs_fail_the_gate() -> None:
    few = judge_gate([make_run(1, pairs(0.0, 1), pairs(0.0, 2, n=7, name="b"))])
    assert few.red and few.problems == ("b: 7 of 12 pairs are usable; at least 8 are needed",)
    assert few.cells[1].status is GateStatus.INCONCLUSIVE
    assert judge_gate([make_run(1, pairs(0.0, 1, n=0))]).problems == ("no pair was measured by both builds",)
    broken = judge_gate([make_run(1, problem="the baseline did not run: no such file")])
    assert broken.red and broken.problems == ("the baseline did not run: no such file",) and broken.cells == ()
    with pytest.raises(ValueError, match="runs: empty"):
        judge_gate([])


@pytest.mark.parametrize("cells", [1, 2, 4, 9])
def test_so_many_pairs_can_just_be_suspected(cells: int) -> None:
    need = min_pairs(cells)
    assert count_tests(cells) * 2.0**-need <= SUSPECTED < count_tests(cells) * 2.0 ** -(need - 1)


def test_more_is_worse_or_better_as_the_figure_is() -> None:
    before, after = exact(100, 100), exact(110, 121)
    values = list(zip(before, after, strict=True))
    slower, faster = (Pairs.of("a", "a", metric, values, 2) for metric in (P50, RPS))
    assert slower.low == pytest.approx((math.log(1.1), math.log(1.21))) == slower.high
    assert faster.low == pytest.approx([-one for one in slower.low])
    rising = Pairs.of("a", "a", RPS, list(zip(exact(*[100] * 12), exact(*range(70, 82)), strict=True)), 12)
    (cell,) = judge_gate([make_run(1, rising)]).cells
    assert cell.status is GateStatus.SUSPECTED and cell.change and -0.3 < cell.change.value < -0.19
    assert cell.change.low <= cell.change.value <= cell.change.high < 0


def test_recoveries_take_part_as_intervals_and_count_by_the_end_that_proves_least() -> None:
    known = [(ValueRange(8, 10), ValueRange(11, 13)), (ValueRange(8, 10), ValueRange(60, math.inf))]
    found = Pairs.of("a", "a", MACRO, known, 2)
    assert found.low == pytest.approx((math.log(11 / 10), math.log(60 / 10)))
    assert found.high == pytest.approx((math.log(13 / 8), math.inf))
    assert replace_infinite(found.high) == [found.high[0], found.high[0]] and replace_infinite(
        [math.inf, -math.inf]
    ) == [
        CENSORED_SIZE,
        -CENSORED_SIZE,
    ]
    unseen = [(ValueRange(60, math.inf), ValueRange(60, math.inf))] * 12
    (cell,) = judge_gate([make_run(1, Pairs.of("a", "a", MACRO, unseen, 12))]).cells
    assert cell.status is GateStatus.NO_CHANGE, "two censored values have no order"
    assert cell.change and (cell.change.low, cell.change.high) == (-1.0, math.inf)
    blurred = [(ValueRange(9, 11), ValueRange(10, 12))] * 12
    assert judge_cells([Pairs.of("a", "a", MACRO, blurred, 12)])[0].status is GateStatus.NO_CHANGE


def test_a_figure_that_is_nothing_has_no_ratio() -> None:
    assert (
        len(Pairs.of("a", "a", P50, [(ValueRange(0, 0), ValueRange(1, 1)), (ValueRange(1, 1), ValueRange(2, 2))], 2))
        == 1
    )


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.1, 0.3]), st.integers(8, 14))
def test_a_builds_loss_is_the_others_gain(seed: int, change: float, n: int) -> None:
    cells = [pairs(change, seed, n=n), pairs(change, seed + 1, n=n, name="b")]
    turned = [
        Pairs(c.config_id, c.name, c.metric, tuple(-v for v in c.high), tuple(-v for v in c.low), 12) for c in cells
    ]
    for (p, q, p_better, q_better), other in zip(cell_p_values(cells), cell_p_values(turned), strict=True):
        assert (p, q) == pytest.approx(other[2:]) and (p_better, q_better) == pytest.approx(other[:2])
        assert p <= q <= 1


DIFFERENCES = st.lists(st.floats(-2, 2).map(lambda one: round(one, 3)), min_size=2, max_size=12)


@given(DIFFERENCES, st.floats(0.01, 100))
def test_its_p_is_students_whatever_scale_and_order_and_never_less_than_the_signs_could_give(
    values: list[float], scale: float
) -> None:
    p = p_above(values)
    if np.ptp(values) > 0:
        asked = stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
        assert p == pytest.approx(max(asked, min_p(len(values))))
    assert p_above([scale * one for one in reversed(values)]) == pytest.approx(p)
    assert p + p_above([-one for one in values]) >= 1 - 1e-9


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ([], 1.0),
        ([0.1], 1.0),
        ([0.0] * 10, 1.0),
        ([0.1] * 10, 2.0**-10),
        ([-0.1] * 10, 1.0),
        ([1.0 + n / 1000 for n in range(5)], 2.0**-5),
        ([math.inf] * 8, 2.0**-8),
        # Number of sign patterns that reach the rank sums 28 of 8 and 18 of 6.
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, -math.inf], 25 / 2**8),
        ([0.1, 0.2, -0.3, 0.4, 0.5, math.inf], 5 / 2**6),
    ],
)
def test_its_p_of_nothing_of_no_scatter_and_of_pairs_without_an_end(values: list[float], p: float) -> None:
    assert p_above(values) == pytest.approx(p)


def test_the_interval_of_a_change_covers_it_nineteen_times_in_twenty_and_of_one_pair_nothing_is_known() -> None:
    rng, covered = np.random.default_rng(11), 0
    for _ in range(400):
        values = tuple((0.1 + 0.05 * rng.standard_t(4, 10)).tolist())
        (found,) = judge_gate([make_run(1, Pairs("a", "a", P50, values, values, 10))]).cells
        assert found.change and found.change.low <= found.change.value <= found.change.high
        covered += found.change.low <= math.expm1(0.1) <= found.change.high
    assert 0.92 <= covered / 400 <= 0.985
    (one,) = judge_gate([make_run(1, Pairs("a", "a", P50, (0.1,), (0.1,), 10))]).cells
    assert one.change == Interval(pytest.approx(math.expm1(0.1)), -1.0, math.inf) and one.detectable is None


def test_what_would_have_been_seen_is_seen_in_two_nights_four_times_in_five() -> None:
    detectable = [judge_gate([make_run(1, pairs(0.0, seed))]).cells[0].detectable or math.nan for seed in range(200)]
    size = math.log1p(float(np.median(detectable)))
    seen = [judge_gate([make_run(n, pairs(size, 2 * seed + n)) for n in (1, 2)]).red for seed in range(300)]
    assert 0.7 <= sum(seen) / 300 <= 0.9


CONFIG = parse_configuration({"fault": "none"})
PAIRS = 10


def plan(number: int, *, primary: str = "latency_ms.p50", spec: dict[str, Any] | None = None) -> SweepPlan:
    date = date_of(number)
    reference = ReferenceBuild(
        series=f"{date}.baseline", build="b0", spec=spec or {"revision": "v1.3"}, primary={CONFIG.config_id: primary}
    )
    cells = [PlannedCell(CONFIG, repetition, date) for repetition in range(PAIRS)]
    run = {"matrix": NIGHTLY, "series": date, "logical_date": date, "planned_at": date}
    return made_plan(cells, sweep_id=f"s{number}", baseline=reference, **run)


def both(number: int, slower: float, **other: Any) -> list[Record]:
    """Return the records of both builds in one run."""
    rng, made = np.random.default_rng(number), []
    for repetition in range(PAIRS):
        for build, times in (("b0", 1.0), ("b1", 1 + slower)):
            series = date_of(number) + (".baseline" if build == "b0" else "")
            one = record(
                f"202611{number:02d}T02{repetition:02d}{build[1]}0Z-00000{build[1]}", sweep=f"s{number}", build=build,
                series=series, latency={"p50": 100 * times * (1 + 0.02 * rng.standard_normal())}, **other,
            )  # fmt: skip
            update = {"repetition": repetition, "config": CONFIG.model_dump(mode="json"), "config_id": CONFIG.config_id}
            made.append(one.model_copy(update=update))
    return made


def entries(*records: Record) -> list[IndexEntry]:
    return [IndexEntry.of(one) for one in records]


def test_repetitions_are_paired_and_what_is_invalid_or_of_another_build_is_left_out() -> None:
    found = both(1, 0.05)
    run = paired_run_of(plan(1), entries(*found))
    (cell,) = run.cells
    assert len(cell) == cell.planned == PAIRS and (run.build, run.baseline, run.problem) == ("b1", "b0", "")
    assert float(np.mean(cell.low)) == pytest.approx(np.log(1.05), abs=0.02)
    found[0] = found[0].model_copy(update={"status": "invalid"})
    found[3] = found[3].model_copy(update={"build": "b9"})
    assert len(paired_run_of(plan(1), entries(*found)).cells[0]) == PAIRS - 2
    again = found[0].model_copy(update={"status": "valid", "attempt": "20261101T050000Z-000000"})
    assert len(paired_run_of(plan(1), entries(*found, again)).cells[0]) == PAIRS - 1, "measured again, it counts"
    with pytest.raises(ValueError, match="no reference build"):
        paired_run_of(plan(1).model_copy(update={"baseline": None}), [])


def test_a_side_that_is_missing_is_named_with_its_reason() -> None:
    found = both(1, 0.0)
    ours = [one for one in found if one.build == "b1"]
    assert paired_run_of(plan(1), entries(*ours)).problem.startswith("the reference build did not run: no attempt")
    failed = [one.model_copy(update={"status": "failed", "reasons": ["x" * 900]}) for one in found if one.build == "b0"]
    problem = paired_run_of(plan(1), entries(*ours, *failed)).problem
    assert problem.startswith("the reference build did not run: xxx") and len(problem) < 240
    invalid = [one.model_copy(update={"status": "invalid", "reasons": ["background-load"]}) for one in ours]
    run = paired_run_of(plan(1), entries(*invalid, *failed))
    assert run.problem == "the installed build has no usable record: background-load"


def test_the_note_has_change_certainty_and_start() -> None:
    plans = [plan(1), plan(2), plan(3)]
    records = entries(*both(1, 0.0), *both(2, 0.06), *both(3, 0.06))
    nights = paired_runs_of(reversed(plans), records)
    assert [run.date for run in nights] == [date_of(number) for number in (1, 2, 3)]
    green, suspicion, red = (judge_gate(nights[:number]) for number in (1, 2, 3))
    assert paired_verdict(green, {}).summary == "green: 1 no change detected; compared with the reference build b0"
    assert suspicion.cells[0].status is GateStatus.SUSPECTED and not suspicion.red
    line = reason_text(red.cells[0])
    assert line.startswith("word_count: Latency p50 +") and "n = 10 pairs, q = 0.00" in line
    assert line.endswith("since 2026-11-02 (2 runs in a row)")
    kept = paired_verdict(red, {"revision": "v1.3"})
    assert kept.red and kept.reasons == (line,) and kept.baseline == {"build": "b0", "spec": "v1.3"}
    note = nightly_note(kept, "s3")
    assert "**worse**" in note and "minimum detectable effect" in note and len(note) <= MAX_NOTE
    shut = judge_gate(paired_runs_of([plan(1)], entries(*[one for one in both(1, 0.0) if one.build == "b1"])))
    assert "**red** the reference build did not run" in nightly_note(paired_verdict(shut, {}), "s1")
    assert "unknown" in reason_text(shut.cells[0])


def test_recoveries_take_part_as_they_are_known() -> None:
    faulted = parse_configuration({"fault": "executor"})
    assert default_primary(faulted) == "cpu_s_per_million.engine" and default_primary(CONFIG) == "latency_ms.p50"
    run = paired_run_of(plan(1, primary="recovery.macro_s"), entries(*both(1, 0.0)))
    assert len(run.cells[0]) in (0, PAIRS) and all(
        a <= b for a, b in zip(run.cells[0].low, run.cells[0].high, strict=True)
    )
