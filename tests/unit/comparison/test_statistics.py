"""Medians, intervals, rank tests, verdicts: held against plain enumeration, other libraries and simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from faultline.comparison.statistics import LEAST
from faultline.comparison.statistics.comparison import Verdict, between, compare, detectable
from faultline.comparison.statistics.intervals import change_interval, median_interval
from faultline.comparison.statistics.ranks import MOST_PAIRS, holm, needed_shift, orders, p_value, scores
from faultline.comparison.statistics.sample import Sample

FIGURES = st.floats(0.1, 1000, allow_nan=False)
SAMPLES = st.lists(FIGURES, min_size=2, max_size=6).map(Sample.of)


@st.composite
def censored_samples(draw: st.DrawFn) -> Sample:
    values = draw(st.lists(st.integers(1, 20), min_size=2, max_size=5))
    return Sample(tuple(map(float, values)), tuple(draw(st.booleans()) for _ in values))


def verdict_of(before: Sample, after: Sample, *, lower_is_better: bool = True, floor: float = 0.0) -> Verdict:
    pairs = {"cell": (before, after)}
    return compare(pairs, lower_is_better=lower_is_better, floors={"cell": floor})["cell"].verdict


def test_the_median_of_censored_values_is_kaplan_and_meiers() -> None:
    # At 2 one of four ends; at 5 one of the two that are left does: half, then a quarter are still going on.
    assert Sample((2.0, 3.0, 5.0, 9.0), (False, True, False, False)).median == 5
    assert Sample((2.0, 4.0, 9.0, 9.0), (False, False, False, True)).median == 6.5, "as of four that ended"
    assert Sample((2.0, 4.0, 6.0, 9.0), (False, False, False, True)).median == 5, "half-way to the next end"
    assert Sample((2.0, 4.0, 9.0, 9.0), (False, False, True, True)).median == 4, "nobody knows of a later end"
    assert Sample((2.0, 3.0, 3.0), (False, True, True)).median == math.inf
    assert Sample((7.0,), (True,)).median == math.inf
    assert math.isnan(Sample(()).median)


@given(SAMPLES)
def test_without_censoring_it_is_the_plain_median(sample: Sample) -> None:
    assert sample.median == pytest.approx(np.median(sample.values))


@pytest.mark.parametrize(
    ("values", "censored"), [((1.0, math.nan), ()), ((1.0, math.inf), ()), ((1.0,), (True, False))]
)
def test_what_is_no_sample_is_refused(values: tuple[float, ...], censored: tuple[bool, ...]) -> None:
    with pytest.raises(ValueError, match=r"finite|marks"):
        Sample(values, censored)


@given(censored_samples(), censored_samples())
@settings(deadline=None)
def test_p_is_the_share_of_orders_that_are_as_far_apart(a: Sample, b: Sample) -> None:
    pooled = scores(np.array(a.values + b.values), np.array(a.censored + b.censored, dtype=bool))
    n, total = len(a), len(pooled)

    def apart(chosen: tuple[int, ...]) -> float:
        others = [place for place in range(total) if place not in chosen]
        return float(pooled[list(chosen)].mean() - pooled[others].mean())

    found = apart(tuple(range(n)))
    every = [apart(chosen) for chosen in combinations(range(total), n)]
    above = sum(one >= found - 1e-9 for one in every) / len(every)
    below = sum(one <= found + 1e-9 for one in every) / len(every)
    assert p_value(a, b) == pytest.approx(min(1.0, 2 * min(above, below)))


@given(censored_samples(), censored_samples())
@settings(deadline=None)
def test_scores_count_what_is_surely_smaller_and_larger(a: Sample, b: Sample) -> None:
    values, censored = a.values + b.values, a.censored + b.censored
    found = scores(np.array(values), np.array(censored, dtype=bool))
    for place, score in enumerate(found):
        sure = 0
        for other in range(len(values)):
            if not censored[other] and (
                values[place] > values[other] or (censored[place] and values[place] == values[other])
            ):
                sure += 1
            if not censored[place] and (
                values[other] > values[place] or (censored[other] and values[other] == values[place])
            ):
                sure -= 1
        assert score - sure == 0


@given(st.lists(FIGURES, min_size=4, max_size=8, unique=True), st.data())
@settings(deadline=None)
def test_without_censoring_and_ties_it_is_mann_and_whitneys_test(pooled: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(2, len(pooled) - 2))
    a, b = pooled[:cut], pooled[cut:]
    expected = stats.mannwhitneyu(a, b, method="exact").pvalue
    assert p_value(Sample.of(a), Sample.of(b)) == pytest.approx(expected)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=3))
@settings(deadline=None)
def test_orders_are_counted_right(sizes: list[int]) -> None:
    chances = orders(sizes)
    assert chances.sum() == pytest.approx(1)
    assert chances == pytest.approx(chances[::-1])
    if len(sizes) == 2:
        assert chances[-1] == pytest.approx(1 / math.comb(sum(sizes), sizes[0]))


@given(st.dictionaries(st.integers(), st.floats(0, 1), max_size=8))
def test_holms_correction_keeps_the_order_and_never_lowers(p_values: dict[int, float]) -> None:
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    for key, p in p_values.items():
        assert p <= adjusted[key] <= 1
        assert adjusted[key] <= max(p * len(p_values), max(adjusted[one] for one in p_values if p_values[one] <= p))
        assert all(adjusted[key] <= adjusted[one] for one in p_values if p_values[one] >= p)
    if p_values:
        least = min(p_values.values())
        assert min(adjusted.values()) == pytest.approx(min(1.0, least * len(p_values)))


@given(SAMPLES, SAMPLES)
@settings(deadline=None, max_examples=40)
def test_an_interval_holds_its_figure(a: Sample, b: Sample) -> None:
    for found in (median_interval(a), change_interval(a, b)):
        assert found is not None
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9


def test_the_interval_of_a_median_covers_it_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(7)
    found = [median_interval(Sample.of(rng.normal(10, 1, 20))) for _ in range(200)]
    covered = sum(one is not None and one.low <= 10 <= one.high for one in found)
    assert 180 <= covered <= 199


def test_an_interval_has_no_end_where_too_many_did_not_recover() -> None:
    before, after = Sample.of([5, 6, 7, 8, 9]), Sample((20.0, 30.0, 30.0, 30.0, 30.0), (False, True, True, True, True))
    found = change_interval(before, after)
    assert found is not None
    assert found.value == math.inf
    assert found.high == math.inf
    assert found.low > 1
    assert change_interval(after, before) is None


def test_verdicts_have_a_direction() -> None:
    low, high = Sample.of([1.0, 1.01, 1.02, 1.03, 1.04]), Sample.of([2.0, 2.01, 2.02, 2.03, 2.04])
    assert verdict_of(low, high) is Verdict.WORSE
    assert verdict_of(high, low) is Verdict.BETTER
    assert verdict_of(low, high, lower_is_better=False) is Verdict.BETTER
    assert verdict_of(low, low) is Verdict.SAME
    # Three per cent more, surely; but it may be none that anybody minds, or hardly more than that.
    assert verdict_of(low, Sample.of([value * 1.03 for value in low.values])) is Verdict.CANNOT_TELL
    assert verdict_of(low, Sample.of([value * 1.01 for value in low.values])) is Verdict.SAME


def test_five_repetitions_a_side_are_needed() -> None:
    few, many = Sample.of([1.0, 1.1, 1.2, 1.3]), Sample.of([2.0, 2.1, 2.2, 2.3, 2.4])
    found = compare({0: (few, many)}, lower_is_better=True)[0]
    assert (found.verdict, found.why) == (Verdict.CANNOT_TELL, f"4 of {LEAST} repetitions")


def test_a_difference_below_the_noise_floor_is_not_believed() -> None:
    before = Sample.of([1.0, 1.01, 1.02, 1.03, 1.04])
    after = Sample.of([value * 1.2 for value in before.values])
    assert verdict_of(before, after, floor=0.1) is Verdict.WORSE
    found = compare({0: (before, after)}, lower_is_better=True, floors={0: 0.25})[0]
    assert found.verdict is Verdict.CANNOT_TELL and found.detectable == 0.25
    wide = Sample.of([1.1, 1.15, 1.2, 1.3, 1.6])
    found = compare({0: (before, wide)}, lower_is_better=True, floors={0: 0.25})[0]
    assert (found.verdict, found.why) == (Verdict.CANNOT_TELL, "runs without a fault, or nights, differ by 25% anyway")


def test_many_cells_make_a_verdict_rarer() -> None:
    low, high = Sample.of([1.0, 1.1, 1.2, 1.3, 1.4]), Sample.of([2.0, 2.1, 2.2, 2.3, 2.4])
    alone = compare({0: (low, high)}, lower_is_better=True)[0]
    among = compare({0: (low, high), **{n: (low, Sample.of([1.05, 1.1, 1.2, 1.3, 1.35])) for n in range(1, 8)}},
                    lower_is_better=True)[0]  # fmt: skip
    assert (alone.verdict, among.verdict) == (Verdict.WORSE, Verdict.CANNOT_TELL)
    assert among.p == pytest.approx(8 * alone.p)
    assert among.detectable is None


def test_censored_recoveries_are_worse_than_any_that_ended() -> None:
    before = Sample.of([10.0, 11.0, 12.0, 13.0, 14.0])
    after = Sample((30.0,) * 5, (True,) * 5)
    assert verdict_of(before, after) is Verdict.WORSE
    # Nobody knows what two censored ones are to each other.
    assert verdict_of(after, Sample((40.0,) * 5, (True,) * 5)) is Verdict.CANNOT_TELL


def test_recoveries_that_end_more_often_are_better_also_where_most_do_not() -> None:
    none = Sample((80.0,) * 12, (True,) * 12)
    some = Sample((30.0,) * 5 + (80.0,) * 7, (False,) * 5 + (True,) * 7)
    assert verdict_of(none, some) is Verdict.BETTER
    assert verdict_of(some, none) is Verdict.WORSE


def test_many_nights_are_no_trouble() -> None:
    """A baseline of a year, of which 1,825 repetitions are held against five."""
    shift = needed_shift(1825, 5, 0.05)
    assert shift is not None and 1.2 < shift < 1.4
    assert orders((400, 5)).sum() == pytest.approx(1)
    # Beside the bound the simulation and the formula agree.
    side = math.isqrt(MOST_PAIRS)
    below, above = needed_shift(side, side, 0.05), needed_shift(side + 1, side + 1, 0.05)
    assert below is not None and above is not None and below == pytest.approx(above, rel=0.1)


def test_nights_that_differ_anyway_make_a_floor() -> None:
    nights = [Sample.of([level, level + 1, level - 1]) for level in (100, 104, 96, 100)]
    # Student's t for three degrees of freedom, and the spread of four medians.
    spread = np.std([100, 104, 96, 100], ddof=1)
    assert between(nights) == pytest.approx(3.182 * spread * math.sqrt(1.25) / 100, rel=1e-3)
    assert between(nights[:2]) == 0.0
    assert between([*nights[:2], Sample((9.0,), (True,))]) == 0.0, "an unknown median is none"


def test_the_shift_that_is_said_to_show_does_show() -> None:
    rng = np.random.default_rng(5)
    shift = needed_shift(5, 8, 0.05)
    assert shift is not None
    tries = [(Sample.of(rng.normal(0, 1, 5)), Sample.of(rng.normal(shift, 1, 8))) for _ in range(200)]
    assert 0.7 <= sum(p_value(a, b) <= 0.05 for a, b in tries) / len(tries) <= 0.9
    assert needed_shift(3, 3, 0.05) is None


def test_what_is_detectable_is_a_share_of_the_figure() -> None:
    before, after = Sample.of([9.0, 9.5, 10.0, 10.5, 11.0]), Sample.of([9.0, 9.5, 10.0, 10.5, 11.0])
    shift = needed_shift(5, 5, 0.05)
    assert shift is not None
    assert detectable(before, after) == pytest.approx(shift * math.sqrt(2.5 / 4) / 10)
    assert detectable(Sample.of([0.0] * 5), after) is None


@pytest.mark.parametrize("deviation", [0.03, 0.1])
def test_equal_sides_are_rarely_told_apart(deviation: float) -> None:
    """At most one time in twenty; the thousand comparisons of measured shapes are in `./faultline bench verdicts`."""
    rng = np.random.default_rng(11)
    sides = [(Sample.of(rng.lognormal(3, deviation, 5)), Sample.of(rng.lognormal(3, deviation, 5))) for _ in range(200)]
    wrong = sum(verdict_of(a, b) in (Verdict.BETTER, Verdict.WORSE) for a, b in sides)
    assert wrong <= 16  # a binomial with 0.05 exceeds it once in 40


def test_a_change_takes_two_values_on_each_side() -> None:
    one, two = Sample.of([2.0]), Sample.of([2.0, 2.0])
    assert change_interval(one, two) is change_interval(two, one) is median_interval(one) is None
    assert change_interval(two, two) is not None and median_interval(two) is not None
    assert change_interval(Sample.of([0.0, 0.0]), two) is None


def test_a_change_of_censored_values_is_a_share_less_one() -> None:
    before = Sample.of([10.0] * 5)
    after = Sample((20.0,) * 4 + (30.0,), (False,) * 4 + (True,))
    found = change_interval(before, after)
    assert found is not None and (found.value, found.low) == (1.0, 1.0)
    found = change_interval(Sample((10.0,) * 4 + (10.0,), (False,) * 4 + (True,)), Sample.of([15.0] * 5))
    assert found is not None and (found.value, found.high) == (0.5, 0.5)


def test_what_cannot_be_told_says_why() -> None:
    five = Sample.of([1.0, 1.1, 1.2, 1.3, 1.4])
    few = compare({0: (Sample.of([1.0] * 4), five)}, lower_is_better=True, floors={0: 0.2})[0]
    assert (few.p, few.detectable, few.floor) == (1.0, None, 0.2)
    none = compare({0: (Sample.of([0.0, 0.0, 0.0, 1.0, 1.0]), five)}, lower_is_better=True, floors={0: 0.0})[0]
    assert none.change is None
    endless = Sample((30.0,) * 5, (True,) * 5)
    again = compare({0: (endless, Sample((40.0,) * 5, (True,) * 5))}, lower_is_better=True)[0]
    assert again.why == "half of them never ended before"
    zero = compare({0: (Sample.of([0.0] * 4 + [1.0]), Sample.of([0.0] * 3 + [1.0, 2.0]))}, lower_is_better=True)[0]
    assert (zero.verdict, zero.why) == (Verdict.CANNOT_TELL, "a change has no share of what was 0 before")
    plain = compare({0: (five, Sample.of([1.05, 1.15, 1.2, 1.35, 1.5]))}, lower_is_better=True)[0]
    assert (plain.verdict, plain.why) == (Verdict.CANNOT_TELL, "")


@pytest.mark.parametrize(("share", "verdict"), [(0.049, Verdict.SAME), (-0.049, Verdict.SAME), (0.051, Verdict.WORSE)])
def test_what_lies_within_five_per_cent_is_the_same(share: float, verdict: Verdict) -> None:
    assert verdict_of(Sample.of([100.0] * 6), Sample.of([100.0 * (1 + share)] * 6)) is verdict


def test_the_shift_of_large_samples_is_that_of_the_normal_test_over_its_efficiency() -> None:
    # 1.95996 and 0.84162 are the normal quantiles of 97.5 % and 80 %.
    expected = (1.95996 + 0.84162) * math.sqrt((1 / 1000 + 1 / 500) * math.pi / 3)
    assert needed_shift(1000, 500, 0.05) == pytest.approx(expected, rel=1e-3)
    assert needed_shift(1000, 500, 0.01) == pytest.approx(expected * (2.57583 + 0.84162) / 2.80158, rel=1e-3)


def test_holms_factors_count_down() -> None:
    assert holm({"a": 0.03, "b": 0.01, "c": 0.02, "d": 0.9}) == pytest.approx(
        {"a": 0.06, "b": 0.04, "c": 0.06, "d": 0.9}
    )


def test_the_spread_is_the_coefficient_of_variation_of_what_is_known() -> None:
    assert Sample((9.0, 10.0, 11.0, 50.0), (False, False, False, True)).spread == pytest.approx(0.1)
    assert Sample.of([-9.0, -11.0]).spread == pytest.approx(math.sqrt(2) / 10)
    assert Sample.of([3.0]).spread is Sample.of([-1.0, 1.0]).spread is None


def test_three_series_make_a_floor_and_two_do_not() -> None:
    three = [Sample.of([level]) for level in (90.0, 100.0, 110.0)]
    assert between(three) == pytest.approx(4.3027 * 10 * math.sqrt(4 / 3) / 100, rel=1e-3)
    assert between([Sample.of([-1.0]), Sample.of([0.0]), Sample.of([1.0])]) == 0.0
    assert between([*three[:2], Sample(())]) == 0.0


def test_of_one_value_on_a_side_nobody_can_tell_and_of_two_hardly() -> None:
    one, two, three = Sample.of([1.0]), Sample.of([1.0, 2.0]), Sample.of([3.0, 4.0, 5.0])
    assert p_value(one, three) == p_value(three, one) == 1.0
    assert p_value(two, Sample.of([3.0, 4.0])) == pytest.approx(2 / 6)
    assert p_value(two, three) == p_value(three, two) == pytest.approx(2 / 10)
    endless = Sample((5.0,) * 3, (True,) * 3)
    assert p_value(endless, endless) == p_value(two, Sample.of([1.0, 2.0])) == 1.0


def test_samples_that_are_too_small_show_nothing_however_far_apart() -> None:
    """Three against three have one order in twenty at each end, four against four one in seventy."""
    assert needed_shift(3, 3, 0.05) is None
    four, five = needed_shift(4, 4, 0.05), needed_shift(5, 5, 0.05)
    assert four is not None and five is not None and 2.7 < four < 3.0 and 2.1 < five < 2.4
    assert needed_shift(3, 3, 0.1) is not None, "one in twenty at each end is one in ten"
    assert needed_shift(4, 4, 2 / 70) is not None and needed_shift(4, 4, 0.028) is None


def test_what_is_detectable_rests_on_the_sides_whose_spread_is_known() -> None:
    """One value has none; of two sides the variances are pooled."""
    shift = needed_shift(5, 5, 0.05)
    assert shift is not None
    known = Sample.of([9.0, 9.5, 10.0, 10.5, 11.0])
    ended = (False, True, True, True, True)
    assert detectable(known, Sample((12.0,) * 5, ended)) == pytest.approx(shift * math.sqrt(2.5 / 4) / 10)
    two = Sample((8.0, 12.0, 30.0, 30.0, 30.0), (False, False, True, True, True))
    assert detectable(known, two) == pytest.approx(shift * math.sqrt((2.5 + 8) / 5) / 10)
    assert detectable(Sample((8.0,) * 5, (True,) * 5), known) is None, "nobody knows what it is a share of"
    assert detectable(Sample.of([-value for value in known.values]), known) == pytest.approx(
        shift * math.sqrt(2.5 / 4) / 10
    )


def test_what_would_have_shown_counts_how_many_cells_there_are() -> None:
    before = Sample.of([9.0, 9.5, 10.0, 10.5, 11.0])
    after = Sample.of([9.1, 9.5, 10.0, 10.5, 11.1])
    one = compare({0: (before, after)}, lower_is_better=True)[0]
    assert (one.detectable, one.floor) == (pytest.approx(detectable(before, after, 0.05)), 0.0)
    two = compare({0: (before, after), 1: (before, after)}, lower_is_better=True)[0]
    assert two.detectable == pytest.approx(detectable(before, after, 0.025))
    # A cell that has too few repetitions is not among them.
    few = compare({0: (before, after), 1: (before, Sample.of([1.0]))}, lower_is_better=True)
    assert few[0].detectable == one.detectable and (few[1].p, few[1].why) == (1.0, "1 of 5 repetitions")
    # What lies within five per cent would not have been believed.
    close = Sample.of([100.0, 100.1, 100.2, 100.3, 100.4])
    again = Sample.of([100.0, 100.1, 100.2, 100.3, 100.5])
    assert compare({0: (close, again)}, lower_is_better=True)[0].detectable == 0.05


def test_a_change_as_large_as_the_floor_is_not_believed_and_says_so() -> None:
    """A quarter more, surely; but that is what runs differ by that nothing was done to."""
    before, after = Sample.of([100.0] * 5), Sample.of([125.0] * 5)
    for floor, verdict, why in (
        (0.24, Verdict.WORSE, ""),
        (0.25, Verdict.CANNOT_TELL, "runs without a fault, or nights, differ by 25% anyway"),
    ):
        found = compare({0: (before, after)}, lower_is_better=True, floors={0: floor})[0]
        assert (found.verdict, found.why) == (verdict, why)


def test_a_floor_is_no_excuse_for_what_it_does_not_hide() -> None:
    """Not where both sides are the same, nor where no difference was seen, nor where five per cent is the limit."""
    low = Sample.of([1.0, 1.01, 1.02, 1.03, 1.04])
    wide = Sample.of([0.8, 0.9, 1.02, 1.1, 1.2])
    more = Sample.of([value * 1.045 for value in low.values])
    for pair, floor, verdict in (
        ((low, low), 0.2, Verdict.SAME),
        ((low, wide), 0.2, Verdict.CANNOT_TELL),
        ((low, more), 0.05, Verdict.CANNOT_TELL),
    ):
        found = compare({0: pair}, lower_is_better=True, floors={0: floor})[0]
        assert (found.verdict, found.why) == (verdict, "")


def test_equal_values_are_the_same_only_where_all_of_them_ended() -> None:
    ended, open_ended = Sample.of([30.0] * 5), Sample((30.0,) * 5, (False,) * 4 + (True,))
    zero = Sample.of([0.0] * 5)
    assert verdict_of(ended, ended) is verdict_of(zero, zero) is Verdict.SAME
    assert verdict_of(zero, Sample.of([0.0] * 4 + [1.0])) is Verdict.CANNOT_TELL
    assert verdict_of(open_ended, Sample((30.0,) * 5, (True,) * 5)) is Verdict.WORSE


def test_a_change_from_nothing_is_seen_by_its_ranks() -> None:
    """It has no share, but a direction."""
    zero, more = Sample.of([0.0] * 5), Sample.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert verdict_of(zero, more) is Verdict.WORSE
    assert verdict_of(zero, more, lower_is_better=False) is Verdict.BETTER
    assert verdict_of(zero, more, floor=0.5) is Verdict.WORSE


def test_an_interval_leaves_a_fortieth_out_at_each_end() -> None:
    """Of the medians of resamples of 1, 2, … 20 a fortieth is below 6.5 at most, and as many are above 14.5."""
    values = tuple(float(number) for number in range(1, 21))
    plain, open_ended = median_interval(Sample(values)), median_interval(Sample(values, (False,) * 19 + (True,)))
    assert plain is not None and open_ended is not None
    assert (open_ended.value, open_ended.low, open_ended.high) == (10.5, 6.5, 14.5)
    assert plain.value == 10.5 and 6.0 <= plain.low <= 7.0 and 14.0 <= plain.high <= 15.0


def test_a_share_of_what_may_be_nothing_has_no_ends() -> None:
    nothing_in_half = Sample.of([0.0, 0.0, 1.0, 1.0, 1.0])
    found = change_interval(nothing_in_half, nothing_in_half)
    assert found is not None and (found.value, found.low, found.high) == (0.0, -math.inf, math.inf)
