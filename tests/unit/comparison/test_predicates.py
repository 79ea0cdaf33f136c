"""Predicates of claims with few repetitions, and the compared runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from faultline.comparison.findings.catalogue import correct_verdicts
from faultline.comparison.findings.claims import LATENCY, REPLAY, ClaimResult, ClaimVerdict
from faultline.comparison.findings.predicates import (
    Level,
    Lies,
    Moves,
    Series,
    Stays,
    contrast,
    differences_of,
    direction,
    is_stable,
    mean_of,
    series_of,
    trend,
    unanimous,
)
from faultline.comparison.statistics.estimate import ALPHA
from faultline.records.record import Record
from tests.unit.sample_records import sample

AGREES, DISAGREES, INCONCLUSIVE = ClaimVerdict.AGREES, ClaimVerdict.DISAGREES, ClaimVerdict.INCONCLUSIVE
FIGURES = st.floats(0.1, 1e5).map(lambda value: round(value, 3))
LEVELS = st.lists(st.lists(FIGURES, min_size=1, max_size=4), min_size=2, max_size=4)
STEADY = [99.0, 100.0, 101.0, 100.5]


def series(*levels: list[float]) -> Series:
    return Series("x", "", tuple(Level(at, tuple(values)) for at, values in enumerate(levels)))


def test_a_contrast_of_two_levels_is_welchs_test_and_several_are_averaged() -> None:
    before, after = [3.1, 2.9, 3.3, 3.0], [3.6, 3.3, 4.9]
    found, theirs = contrast([before, after], (-1.0, 1.0)), stats.ttest_ind(after, before, equal_var=False)
    assert (found.p, found.freedom) == pytest.approx((theirs.pvalue, theirs.df))
    ends = theirs.confidence_interval(0.95)
    assert found.p_at(ends.low) == found.p_at(ends.high) == pytest.approx(0.05)
    assert mean_of([found, found]).value == pytest.approx(found.value)
    assert mean_of([found, found]).p < found.p
    assert contrast([before, after[:1]], (-1.0, 1.0)).p == 1.0, "a single run has no scatter"
    two = contrast([before[:2], after[:2]], (-1.0, 1.0))
    assert two.p == 1.0 > mean_of([two, two]).p, (
        "two runs at each value are inconclusive, unless there are several series"
    )


@given(LEVELS, LEVELS)
def test_turning_the_axis_around_turns_the_answer_around(first: list[list[float]], second: list[list[float]]) -> None:
    there = trend([series(*first), series(*second)])
    back = trend([series(*first[::-1]), series(*second[::-1])])
    assert there.moves == -back.moves and there.step.p == pytest.approx(back.step.p)
    assert there.runs == sum(map(len, first)) + sum(map(len, second))


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=4))
def test_single_runs_are_inconclusive(pairs: list[tuple[float, float]]) -> None:
    assert direction([series([a], [b]) for a, b in pairs], LATENCY, rises=True)[0] is INCONCLUSIVE


def test_equal_figures_are_believed_to_move_one_time_in_twenty_at_most() -> None:
    rng = np.random.default_rng(7)
    found = [trend([series(*rng.normal(0, 1, (3, 4)).tolist()) for _ in range(2)]) for _ in range(600)]
    assert sum(bool(one.moves) for one in found) / len(found) <= ALPHA + 0.02


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]), AGREES),
        (([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]), DISAGREES),
        (([1.0, 1.1], [2.0, 2.1]), INCONCLUSIVE),
        (([1.0, 1.1, 2.05, 2.06], [2.0, 2.1, 2.2, 2.3]), INCONCLUSIVE),
        (([1.0, 1.1, 1.2], [4.0, 4.1, 4.2], [2.0, 2.1, 2.2]), INCONCLUSIVE),
        ((STEADY, STEADY[::-1]), DISAGREES),
        ((STEADY, [102.0, 103.0, 104.0, 103.5]), AGREES),
        ((STEADY, [90.0, 99.0, 100.0, 112.0]), INCONCLUSIVE),
    ],
)
def test_a_figure_rises(levels: tuple[list[float], ...], expected: ClaimVerdict) -> None:
    """From three runs at each value on; not where a step between goes back, nor where it is shown to stay."""
    assert direction([series(*levels)], LATENCY, rises=True).verdict is expected
    turned = {AGREES: DISAGREES, DISAGREES: AGREES}.get(expected, expected)
    if levels[0] is not STEADY:
        assert direction([series(*levels)], LATENCY, rises=False).verdict is turned


@pytest.mark.parametrize(
    ("levels", "stays", "rises"),
    [
        ((STEADY, STEADY[::-1]), AGREES, DISAGREES),
        (([1.0, 1.02, 1.0, 1.03], [1.01, 1.05, 1.02, 1.0]), AGREES, DISAGREES),
        ((STEADY, STEADY, [120.0, 121.0, 119.0, 120.5]), DISAGREES, AGREES),
        (([2.0, 2.01, 2.02, 2.03], [1.0, 1.01, 1.02, 1.03]), DISAGREES, DISAGREES),
        (([1.0, 2.0, 3.0], [1.5, 2.5, 3.5]), INCONCLUSIVE, INCONCLUSIVE),
        (([1.0], [1.0]), INCONCLUSIVE, INCONCLUSIVE),
        (([98.5, 100.0, 100.0, 101.5], [103.3, 104.8, 104.8, 106.3]), INCONCLUSIVE, INCONCLUSIVE),
        (([-100.5, -100.0, -99.0, -98.5], [-80.5, -80.0, -79.8, -79.5]), DISAGREES, AGREES),
    ],
)
def test_a_figure_stays_or_rises_noticeably(
    levels: tuple[list[float], ...], stays: ClaimVerdict, rises: ClaimVerdict
) -> None:
    for noticeably, expected in ((False, stays), (True, rises)):
        claim = Stays(REPLAY, "state_mb", rises=noticeably)
        assert claim.judge([series(*levels)]).verdict is expected
        assert claim([]).verdict is ClaimVerdict.NOT_COVERED


@pytest.mark.parametrize(("added", "expected"), [(25.0, True), (100.0, None)])
def test_differences_stay_within_a_share_of_what_they_begin_from(added: float, expected: bool | None) -> None:
    records = [
        run(1000.0 + (sign * added if mode == "aligned" else 0.0), repetition, skew=skew, commit_mode=mode)
        for skew in (0.0, 1.0)
        for repetition, sign in enumerate((1, -1, 1, -1))
        for mode in ("none", "aligned")
    ]
    found = differences_of(records, "skew", "commit_mode", ("none", "aligned"), LATENCY.read)
    assert [one.base for one in found] == [1000.0] and is_stable(found) is expected


def lies(values: list[float], low: float = -math.inf, high: float = math.inf) -> ClaimResult:
    return Lies(lambda _: (values, "named_text"), low, high)([])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10.0, 11.0, 12.0], True), ([10.0, 11.0], None), ([10.0], None), ([7.4, 10.0, 16.7], None),
        ([6.0, 10.0, 12.0, 15.0, 19.0], True), ([24.0, 24.5, 25.0], False), ([1.0, 1.05, 1.1], False),
        ([20.0, 20.0, 20.0], None), ([19.0, 20.0, 21.0], None),
    ],
)  # fmt: skip
def test_a_figure_lies_in_a_range(values: list[float], expected: bool | None) -> None:
    verdicts = {True: AGREES, False: DISAGREES, None: INCONCLUSIVE}
    found = lies(values, 5, 20)
    assert found.verdict is verdicts[expected] and (found.p <= ALPHA) == (expected is not None)
    assert lies(values).verdict is (AGREES if len(values) > 2 else INCONCLUSIVE)


@given(st.lists(FIGURES, min_size=3, max_size=8, unique=True), FIGURES)
def test_beyond_a_limit_is_where_the_interval_of_the_mean_lies(values: list[float], limit: float) -> None:
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    low, high = (float(np.mean(values)) + side * error * stats.t.ppf(0.975, len(values) - 1) for side in (-1, 1))
    if min(abs(limit - low), abs(limit - high)) > 1e-6:
        above, below = lies(values, low=limit), lies(values, high=limit)
        ways = (AGREES, DISAGREES) if limit < low else (DISAGREES, AGREES) if limit > high else (INCONCLUSIVE,) * 2
        assert (above.verdict, below.verdict) == ways
        assert above.p == below.p == pytest.approx(stats.ttest_1samp(values, limit).pvalue)


def test_all_runs_answer_where_there_are_several() -> None:
    assert [unanimous(one) for one in ([], [True], [True, True], [False, False], [True, False])] == [
        None, None, True, False, None
    ]  # fmt: skip


def test_of_the_verdicts_of_a_page_those_that_chance_explains_are_taken_back() -> None:
    strong, weak = ClaimResult(ClaimVerdict.AGREES, "a", 0.0001), ClaimResult(ClaimVerdict.DISAGREES, "b", 0.04)
    untested, open_ = ClaimResult(ClaimVerdict.AGREES, "c"), ClaimResult(ClaimVerdict.INCONCLUSIVE, "d", 0.6)
    assert correct_verdicts([strong, weak]) == [(ClaimVerdict.AGREES, "a"), (ClaimVerdict.DISAGREES, "b")]
    found = correct_verdicts([strong, weak, open_, open_, untested])
    assert found[0] == (ClaimVerdict.AGREES, "a") and found[4] == (ClaimVerdict.AGREES, "c")
    assert found[1] == (ClaimVerdict.INCONCLUSIVE, "b; p = 0.08 after correction for this page")
    assert found[2] == (ClaimVerdict.INCONCLUSIVE, "d")
    assert correct_verdicts([]) == [] and correct_verdicts([untested]) == [(ClaimVerdict.AGREES, "c")]


def run(latency: float | None, repetition: int = 0, **config: object) -> Record:
    return sample(latency={"mean": latency}, repetition=repetition, fault="none", **config)


def test_runs_are_compared_only_where_nothing_else_differs() -> None:
    records = [
        run(1.0, state_mb=1),
        run(2.0, state_mb=8),
        run(3.0, state_mb=8, rate=100),
        run(4.0, state_mb=1, rate=70),
    ]
    (one,) = series_of(records, "state_mb", LATENCY.read)
    assert [(level.at, level.values) for level in one.levels] == [(1.0, (1.0,)), (8.0, (2.0,))]
    assert series_of(records, "rate", LATENCY.read) != []
    two = series_of([*records, run(5.0, state_mb=1, rate=100)], "state_mb", LATENCY.read)
    assert [each.name for each in two] == ["rate 100", "rate 500"], "in order of their numbers, not of their texts"


def test_a_machine_of_its_own_is_a_series_of_its_own() -> None:
    other = run(2.0, state_mb=8)
    other = other.model_copy(update={"environment": other.environment.model_copy(update={"cores": 64})})
    assert series_of([run(1.0, state_mb=1), other], "state_mb", LATENCY.read) == []


def test_an_unknown_figure_takes_its_series_with_it() -> None:
    assert series_of([run(1.0, state_mb=1), run(None, state_mb=8)], "state_mb", LATENCY.read) == []


def test_the_instant_of_the_fault_is_no_difference_and_missing_fields_are_defaults() -> None:
    first = sample(checkpoint_interval_s=1, duration_s=100)
    second = sample(checkpoint_interval_s=5, duration_s=100)
    assert first.config["fault_at_s"] != second.config["fault_at_s"]
    older = {key: value for key, value in second.config.items() if key != "iterations"}
    second = second.model_copy(update={"config": older})
    assert len(series_of([first, second], "checkpoint_interval_s", LATENCY.read)) == 1


def test_differences_pair_equal_repetitions() -> None:
    records = [
        run(10.0, 0, skew=0.0, commit_mode="none"),
        run(13.0, 0, skew=0.0, commit_mode="aligned"),
        run(20.0, 1, skew=0.0, commit_mode="none"),
        run(22.0, 1, skew=0.0, commit_mode="aligned"),
        run(99.0, 2, skew=0.0, commit_mode="aligned"),
        run(10.0, 0, skew=1.0, commit_mode="none"),
        run(15.0, 0, skew=1.0, commit_mode="aligned"),
    ]
    (one,) = differences_of(records, "skew", "commit_mode", ("none", "aligned"), LATENCY.read)
    assert [(level.at, level.values) for level in one.levels] == [(0.0, (3.0, 2.0)), (1.0, (5.0,))]


def test_at_most_four_series_are_named() -> None:
    def records(many: int) -> list[Record]:
        return [run(1.0 * state, state_mb=state, rate=rate) for rate in range(100, 100 + many) for state in (1, 8)]

    def named_text(many: int) -> str:
        return direction(series_of(records(many), "state_mb", LATENCY.read), LATENCY, rises=True)[1]

    assert named_text(1).startswith("mean latency by state_mb: 1.0 ms at 1, 8.0 ms at 8 (n = 2")
    assert named_text(4).count(" at 8 (rate 1") == 4 and "more" not in named_text(4)
    assert named_text(6).count(" at 8 (rate 1") == 4 and "(rate 103); and 2 more (n = 12" in named_text(6)


def test_a_series_is_named_by_its_fault_in_words_and_its_other_parameters() -> None:
    records = [
        sample(fault=fault, rate=rate, state_mb=state, latency={"mean": 1.0}, duration_s=100)
        for fault in ("executor", "driver")
        for rate in (70, 1000)
        for state in (1, 8)
    ]
    assert [one.name for one in series_of(records, "state_mb", LATENCY.read)] == [
        "driver kill, rate 70", "driver kill, rate 1,000", "executor kill, rate 70", "executor kill, rate 1,000"
    ]  # fmt: skip


def test_an_axis_of_repeated_values_leaves_out_the_others_and_asks_about_a_part() -> None:
    records = [
        run(float(rate + number), number, rate=rate)
        for rate, times in ((100, 2), (200, 1), (300, 2), (400, 2))
        for number in range(times)
    ]
    for part, values in (((None, None), (100, 300, 400)), ((1, -1), (300,)), ((-2, None), (300, 400))):
        (one,) = Moves(LATENCY, "rate", repeated=3, part=part).series(records)
        assert tuple(level.at for level in one.levels) == values
    few = Moves(LATENCY, "rate", repeated=4, remark=lambda there: f"; of {len(there)}")(records)
    assert few == (ClaimVerdict.NOT_COVERED, "requires 4 values of rate, each measured more than once; of 7", None)


def test_only_numbers_are_an_axis_unless_its_values_are_named() -> None:
    modes = ("aligned", "aligned-changelog", "none")
    records = [run(number, commit_mode=mode) for number, mode in enumerate(modes)]
    assert series_of(records, "commit_mode", LATENCY.read) == []
    (one,) = series_of(records, "commit_mode", LATENCY.read, ("none", "aligned"))
    assert [(level.at, level.values) for level in one.levels] == [("none", (2.0,)), ("aligned", (0.0,))]
    truths = [run(1.0, accept_overload=truth) for truth in (False, True)]
    assert series_of(truths, "accept_overload", LATENCY.read) == [], "truth is not a number"


def test_of_a_repetition_that_was_measured_twice_the_latest_counts_in_a_difference() -> None:
    records = [
        run(10.0 * (1 + skew), 0, skew=skew, commit_mode=mode)
        for skew in (0.0, 1.0)
        for mode in ("none", "aligned", "aligned-changelog")
    ]
    again = run(17.0, 0, skew=0.0, commit_mode="aligned")
    unknown = [run(None, 1, skew=0.0, commit_mode="none"), run(12.0, 1, skew=0.0, commit_mode="aligned")]
    unknown += [run(12.0, 2, skew=0.0, commit_mode="none"), run(None, 2, skew=0.0, commit_mode="aligned")]
    (one,) = differences_of([*records, again, *unknown], "skew", "commit_mode", ("none", "aligned"), LATENCY.read)
    assert [(level.at, level.values) for level in one.levels] == [(0.0, (7.0,)), (1.0, (0.0,))]
    records = [run(1.0, commit_mode=mode, skew=0.0) for mode in ("none", "aligned")]
    assert differences_of(records, "skew", "commit_mode", ("none", "aligned"), LATENCY.read) == [], "one value is none"
