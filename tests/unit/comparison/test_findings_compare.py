"""The rules for few repetitions, against slow and obvious versions, and what they must never believe."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from faultline.comparison.findings.catalogue import corrected
from faultline.comparison.findings.compare import (
    ALPHA,
    Level,
    Series,
    between,
    beyond,
    constant,
    differences_of,
    direction,
    hardly_changes,
    noticeable,
    p_not_above,
    p_of_contrast,
    series_of,
    trend,
)
from faultline.comparison.findings.finding import Outcome, Verdict
from faultline.comparison.findings.measures import LATENCY, REPLAY
from faultline.records.record import Record
from tests.unit.sample_records import sample

AGREES, CANNOT_TELL = Verdict.AGREES, Verdict.CANNOT_TELL
NOT_ASKED, NOT_TESTABLE = Verdict.NOT_ASKED, Verdict.NOT_TESTABLE
FIGURES = st.floats(0.1, 1e5).map(lambda value: round(value, 3))
LEVELS = st.lists(st.lists(FIGURES, min_size=1, max_size=4), min_size=2, max_size=4)


def series(*levels: list[float]) -> Series:
    return Series("x", "", tuple(Level(at, tuple(values)) for at, values in enumerate(levels)))


def votes(levels: list[list[float]]) -> int:
    return sum(b > a for low, high in itertools.combinations(levels, 2) for a in low for b in high)


def split(values: tuple[int, ...], sizes: list[int]) -> list[list[int]]:
    ends = list(itertools.accumulate(sizes, initial=0))
    return [list(values[a:b]) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("sizes", [[1, 1], [3, 3], [2, 1, 3], [1, 1, 1, 1], [4, 2]])
def test_chances_are_those_of_all_orders(sizes: list[int]) -> None:
    orders = [split(order, sizes) for order in itertools.permutations(range(sum(sizes)))]
    counted = [votes(order) for order in orders]
    for order, seen in list(zip(orders, counted, strict=True))[:: max(1, len(orders) // 40)]:
        found = trend([series(*order)])
        assert found.rising_p == pytest.approx(sum(other >= seen for other in counted) / len(counted))
        assert found.falling_p == pytest.approx(sum(other <= seen for other in counted) / len(counted))


@pytest.mark.parametrize("sizes", [[4, 4], [2, 2, 2], [4, 2]])
def test_of_all_orders_at_most_one_in_twenty_is_believed(sizes: list[int]) -> None:
    found = [trend([series(*split(order, sizes))]) for order in itertools.permutations(range(sum(sizes)))]
    believed = sum(one.rises or one.falls for one in found)
    assert believed <= ALPHA * len(found) + 1e-9
    assert believed or sizes == [4, 2], "four against two are 1 in 15 at best"
    assert sum(one.rises for one in found) == sum(one.falls for one in found)


@given(LEVELS, LEVELS)
def test_turning_the_axis_around_turns_the_answer_around(first: list[list[float]], second: list[list[float]]) -> None:
    there = trend([series(*first), series(*second)])
    back = trend([series(*first[::-1]), series(*second[::-1])])
    assert (there.rises, there.falls) == (back.falls, back.rises)
    assert there.rising_p == pytest.approx(back.falling_p)
    assert not (there.rises and there.falls)
    assert there.runs == sum(map(len, first)) + sum(map(len, second))


@given(st.lists(FIGURES, min_size=2, max_size=6, unique=True), st.lists(FIGURES, min_size=2, max_size=6, unique=True))
def test_two_values_are_mann_and_whitney(low: list[float], high: list[float]) -> None:
    if set(low) & set(high):
        return
    found = trend([series(low, high)])
    expected = stats.mannwhitneyu(high, low, alternative="greater", method="exact").pvalue
    assert found.rising_p == pytest.approx(float(expected))


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=3))
def test_single_runs_tell_nothing_in_fewer_than_five_series(pairs: list[tuple[float, float]]) -> None:
    assert direction([series([a], [b]) for a, b in pairs], LATENCY, rises=True)[0] is Verdict.CANNOT_TELL


@given(LEVELS, st.floats(0.5, 4))
def test_a_belief_is_one_of_two_and_hangs_on_nothing_but_the_order(levels: list[list[float]], factor: float) -> None:
    found = trend([series(*levels)])
    assert not (found.rises and found.falls)
    assert (found.rises or found.falls) == (found.p <= ALPHA)
    turned = trend([series(*([-value for value in values] for values in levels))])
    assert (turned.rises, turned.falls, turned.p) == (found.falls, found.rises, pytest.approx(found.p))
    scaled = trend([series(*([value * factor for value in values] for values in levels))])
    assert scaled.rising_p <= found.rising_p + 0.5, "scaling may only make ties"


def test_equal_figures_are_believed_to_move_one_time_in_twenty_at_most() -> None:
    rng = np.random.default_rng(7)
    found = [trend([series(*rng.normal(0, 1, (3, 4)).tolist()) for _ in range(2)]) for _ in range(600)]
    assert sum(one.rises or one.falls for one in found) / len(found) <= ALPHA + 0.02


def test_four_against_four_without_overlap_is_enough_and_three_are_not() -> None:
    apart = [series([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3])]
    assert direction(apart, REPLAY, rises=True).verdict is Verdict.AGREES
    assert direction(apart, REPLAY, rises=False).verdict is Verdict.DISAGREES
    assert direction(apart, REPLAY, rises=True).p == pytest.approx(2 / 70)
    overlapping = [series([1.0, 1.1, 2.05, 2.06], [2.0, 2.1, 2.2, 2.3])]
    assert direction(overlapping, REPLAY, rises=True).verdict is Verdict.CANNOT_TELL
    three = series([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])
    assert direction([three], REPLAY, rises=True).verdict is Verdict.CANNOT_TELL
    assert direction([three, three], REPLAY, rises=True).verdict is Verdict.AGREES


def test_of_the_verdicts_of_a_page_those_that_chance_explains_are_taken_back() -> None:
    strong, weak = Outcome(Verdict.AGREES, "a", 0.0001), Outcome(Verdict.DISAGREES, "b", 0.04)
    untested, open_ = Outcome(Verdict.AGREES, "c"), Outcome(Verdict.CANNOT_TELL, "d", 0.6)
    assert corrected([strong, weak]) == [(Verdict.AGREES, "a"), (Verdict.DISAGREES, "b")]
    found = corrected([strong, weak, open_, open_, untested])
    assert found[0] == (Verdict.AGREES, "a") and found[4] == (Verdict.AGREES, "c")
    assert found[1] == (Verdict.CANNOT_TELL, "b; p = 0.08 beside the others of this page")
    assert found[2] == (Verdict.CANNOT_TELL, "d")
    assert corrected([]) == [] and corrected([untested]) == [(Verdict.AGREES, "c")]


def test_a_contrast_of_nothing_is_believed_one_time_in_twenty() -> None:
    rng = np.random.default_rng(11)
    drawn = [[Level(at, tuple(rng.normal(0, 1, 5))) for at in range(3)] for _ in range(800)]
    found = [p_of_contrast(levels, (1.0, -2.0, 1.0))[1] for levels in drawn]
    assert 0.02 <= sum(p <= ALPHA for p in found) / len(found) <= 0.07
    steep = [Level(0, (1.0, 1.1, 1.2)), Level(1, (1.0, 1.1, 1.2)), Level(2, (9.0, 9.1, 9.2))]
    assert p_of_contrast(steep, (1.0, -2.0, 1.0)) == (pytest.approx(8.0), pytest.approx(0.0, abs=0.01))
    assert p_of_contrast([*steep[:2], Level(2, (9.0, 9.1))], (1.0, -2.0, 1.0))[1] == 1.0, "too few runs"
    assert p_of_contrast([Level(at, (at**2, at**2, at**2)) for at in range(3)], (1.0, -2.0, 1.0)) == (2.0, 0.0)
    assert p_of_contrast([Level(at, (1.0, 1.0, 1.0)) for at in range(3)], (1.0, -2.0, 1.0)) == (0.0, 1.0)


def test_a_bootstrap_says_no_more_than_the_runs_can() -> None:
    always = np.ones(100)
    assert [p_not_above(always, runs) for runs in (4, 8, 10)] == pytest.approx([2 / 6, 2 / 70, 2 / 252])
    assert p_not_above(-always, 5) == 1.0


def test_many_repetitions_make_sameness_surer_not_rarer() -> None:
    rng = np.random.default_rng(5)
    close = [rng.normal(100, 4, 30).tolist() for _ in range(2)]
    assert max(map(max, close)) - min(map(min, close)) > 10, "not all runs lie within a tenth"
    assert constant([series(*close)], REPLAY).verdict is Verdict.AGREES
    few = [rng.normal(100, 12, 5).tolist() for _ in range(2)]
    assert constant([series(*few)], REPLAY).verdict is Verdict.CANNOT_TELL


def test_a_constant_needs_repetitions_close_together() -> None:
    close = [series([1.0, 1.02, 1.0, 1.03], [1.01, 1.05, 1.02, 1.0])]
    assert constant(close, REPLAY)[0] is Verdict.AGREES
    assert noticeable(close, REPLAY)[0] is Verdict.DISAGREES
    single = [series([1.0], [1.0])]
    assert constant(single, REPLAY)[0] is noticeable(single, REPLAY)[0] is Verdict.CANNOT_TELL
    rising = [series([1.0, 1.01, 1.02, 1.03], [2.0, 2.01, 2.02, 2.03])]
    assert constant(rising, REPLAY)[0] is Verdict.DISAGREES
    assert noticeable(rising, REPLAY)[0] is Verdict.AGREES
    falling = [series(*[list(level.values) for level in reversed(rising[0].levels)])]
    assert constant(falling, REPLAY)[0] is noticeable(falling, REPLAY)[0] is Verdict.DISAGREES
    noisy = [series([1.0, 2.0, 3.0], [1.5, 2.5, 3.5])]
    assert constant(noisy, REPLAY)[0] is noticeable(noisy, REPLAY)[0] is Verdict.CANNOT_TELL
    assert hardly_changes(noisy) is None
    assert constant([], REPLAY)[0] is noticeable([], REPLAY)[0] is Verdict.NOT_ASKED


@given(st.lists(FIGURES, max_size=8), FIGURES)
def test_a_limit_is_passed_by_all_or_not_at_all(values: list[float], limit: float) -> None:
    found = beyond(values, limit)
    if found is not None:
        assert len(values) > 2
        assert all((value > limit) is found for value in values)
    if len(values) >= 5 and (min(values) > limit or max(values) < limit):
        assert found is not None
    assert between(values, limit, math.inf) in ((True, None) if found is not False else (False,))


def test_limits_with_few_runs() -> None:
    assert beyond([3.0, 3.05, 3.1], 1.0) is True
    assert beyond([3.0, 3.1], 1.0) is None, "two of twelve runs agree on what the others contradict"
    assert beyond([1.2, 2.0, 3.1], 1.0) is None, "nearer to the limit than to each other"
    assert beyond([3.0], 1.0) is None, "a single run has no spread"
    assert between([10.0, 11.0, 12.0], 5, 20) is True
    assert between([7.4, 16.7], 5, 20) is None
    assert between([6.0, 12.0, 19.0], 5, 20) is None, "nearer to an end than to each other"
    assert between([6.0, 10.0, 12.0, 15.0, 19.0], 5, 20) is True, "five are no accident"
    assert between([21.0, 21.5, 22.5], 5, 20) is None
    assert between([24.0, 24.5, 25.0], 5, 20) is False
    assert between([1.0, 1.05, 1.1], 5, 20) is False


def test_figures_about_a_limit_seldom_pass_as_beyond_it() -> None:
    """Evenly spread about it, so that believing anything is an error: three runs err no more than ALPHA allows."""
    grid = [(place + 0.5) / 10 for place in range(-10, 10)]
    for runs, allowed in ((2, 0.0), (3, ALPHA)):
        believed = [beyond(values, 0.0) for values in itertools.product(grid, repeat=runs)]
        assert believed.count(True) == believed.count(False)
        assert believed.count(True) <= allowed * len(believed)


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


def test_votes_that_tell_nothing_say_how_likely_they_are() -> None:
    found = direction([series([1.0, 2.0], [1.5, 2.5])], REPLAY, rises=True)
    assert found.verdict is CANNOT_TELL and found.evidence.endswith("(n = 4, p = 0.67)")


def test_a_tenth_of_the_median_is_hardly_a_change() -> None:
    same = [100.0, 100.0, 100.0]
    assert hardly_changes([series([95.0, *same], [*same, 105.0])]) is True
    assert hardly_changes([series([94.5, *same], [*same, 105.0])]) is None
    assert hardly_changes([series([-95.0, -100.0, -100.0, -100.0], [-100.0, -100.0, -100.0, -105.0])]) is True
    # Of several series each must be still, and of each every value repeated often enough.
    still, moving = series([*same, 100.0], [*same, 101.0]), series([*same, 100.0], [140.0, 150.0, 151.0, 100.0])
    assert hardly_changes([still]) is True and hardly_changes([still, moving]) is None
    assert hardly_changes([series([*same, 100.0], same)]) is None


def test_what_hardly_changes_does_not_rise() -> None:
    same = [99.0, 100.0, 101.0, 100.5]
    for rises in (True, False):
        found = direction([series(same, same[::-1])], LATENCY, rises=rises)
        assert found.verdict is Verdict.DISAGREES and found.evidence.endswith("it hardly changes") and found.p == 1.0
    # A change that is believed is one, however small.
    assert direction([series(same, [102.0, 103.0, 104.0, 103.5])], LATENCY, rises=True).verdict is Verdict.AGREES
    assert direction([series(same, [90.0, 99.0, 100.0, 112.0])], LATENCY, rises=True).verdict is CANNOT_TELL


@pytest.mark.parametrize(("added", "expected"), [(40.0, True), (50.5, None)])
def test_differences_hardly_change_within_a_tenth_of_what_they_begin_from(added: float, expected: bool | None) -> None:
    records = [
        run(1000.0 + (sign * added if mode == "aligned" else 0.0), repetition, skew=skew, commit_mode=mode)
        for skew in (0.0, 1.0)
        for repetition, sign in enumerate((1, -1, 1, -1))
        for mode in ("none", "aligned")
    ]
    found = differences_of(records, "skew", "commit_mode", ("none", "aligned"), LATENCY.read)
    assert [one.base for one in found] == [1000.0] and hardly_changes(found) is expected


def test_a_believed_change_of_a_tenth_is_neither_none_nor_noticeable() -> None:
    """Eight runs that do not overlap: a rise is believed; but only from a tenth of the first median on it matters."""
    for last, expected in ((110.0, None), (110.5, False)):
        one = series([98.5, 100.0, 100.0, 100.5], [last - 0.5, last, last, last + 0.5])
        assert trend([one]).rises
        assert hardly_changes([one]) is expected
    negative = series([-100.5, -100.0, -99.0, -98.5], [-80.5, -80.0, -79.8, -79.5])
    assert hardly_changes([negative]) is False


def test_a_limit_is_passed_from_three_runs_on_that_are_nearer_to_each_other_than_to_it() -> None:
    assert beyond([2.0, 2.5, 3.0], 1.0) is None, "as far from the limit as from each other"
    assert beyond([2.1, 2.5, 3.0], 1.0) is True
    assert beyond([-1.0, -0.5, -0.1], 1.0) is False
    assert beyond([1.1, 2.0, 3.0, 4.0], 1.0) is None, "four are not enough by their number alone"
    assert beyond([1.1, 2.0, 3.0, 4.0, 5.0], 1.0) is True
    assert beyond([1.0, 2.0, 3.0, 4.0, 5.0], 1.0) is beyond([0.1, 0.2, 0.3, 0.4, 1.0], 1.0) is None


def test_at_most_four_series_are_told_by_name() -> None:
    def records(many: int) -> list[Record]:
        return [run(1.0 * state, state_mb=state, rate=rate) for rate in range(100, 100 + many) for state in (1, 8)]

    def said(many: int) -> str:
        return direction(series_of(records(many), "state_mb", LATENCY.read), LATENCY, rises=True)[1]

    assert said(1).startswith("mean latency by state_mb: 1.0 ms at 1, 8.0 ms at 8 (n = 2")
    assert said(4).count(" at 8 (rate 1") == 4 and "more" not in said(4)
    assert said(6).count(" at 8 (rate 1") == 4 and "(rate 103); and 2 more (n = 12" in said(6)


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


def test_only_numbers_are_an_axis_unless_its_values_are_named() -> None:
    modes = ("aligned", "aligned-changelog", "none")
    records = [run(number, commit_mode=mode) for number, mode in enumerate(modes)]
    assert series_of(records, "commit_mode", LATENCY.read) == []
    (one,) = series_of(records, "commit_mode", LATENCY.read, ("none", "aligned"))
    assert [(level.at, level.values) for level in one.levels] == [("none", (2.0,)), ("aligned", (0.0,))]
    truths = [run(1.0, accept_overload=truth) for truth in (False, True)]
    assert series_of(truths, "accept_overload", LATENCY.read) == [], "truth is no number"


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
