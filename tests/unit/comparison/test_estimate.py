"""Differences over rows, paired or not, of values that are known as intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from faultline.comparison.statistics.estimate import (
    PairedRow,
    ValueRange,
    equivalence_p,
    estimate,
    exact_values,
    holm,
    median_interval,
    median_of,
    required_pairs,
    spread_of,
)
from faultline.comparison.statistics.ranks import signed_interval, signed_tail

VALUES = st.floats(-50, 50, allow_nan=False)


def exact(*values: float) -> dict[int, ValueRange]:
    return {n: ValueRange(value, value) for n, value in enumerate(values)}


def test_of_one_row_it_is_the_paired_test_of_student() -> None:
    before, after = [3.1, 2.9, 3.3, 3.0, 3.2], [3.6, 3.3, 3.9, 3.2, 3.8]
    found = estimate([PairedRow(exact(*before), exact(*after))])
    theirs = stats.ttest_rel(after, before)
    ends = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.change.low, found.change.high) == pytest.approx((ends.low, ends.high))
    assert (found.n, found.is_paired, found.freedom) == (5, True, 4)


def test_other_repetitions_on_either_side_are_not_paired() -> None:
    before, after = [3.1, 2.9, 3.3, 3.0], [3.6, 3.3, 3.9, 3.2]
    shifted = {n + 3: value for n, value in exact(*after).items()}
    found = estimate([PairedRow(exact(*before), shifted)])
    theirs = stats.ttest_ind(after, before)
    assert not found.is_paired
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.n == 4


def test_what_both_sides_have_is_paired_and_the_rest_left_out() -> None:
    """A disturbed block affects both sides: twelve and eight runs equal eight pairs."""
    noise = [0.5, -0.9, 0.2, 1.1, -0.4, 0.8, -1.2, 0.3, 0.6, -0.7, 0.1, 0.9]
    before = exact(*(10 + one for one in noise))
    after = exact(*(10.1 + one + 0.01 * (-1) ** n for n, one in enumerate(noise[:8])))
    found, pairs = (
        estimate([PairedRow(before, after)]),
        estimate([PairedRow(exact(*(10 + one for one in noise[:8])), after)]),
    )
    assert found == pairs and found.is_paired and found.n == 8
    assert found.p < 1e-4


def test_rows_keep_their_own_level_and_count_alike() -> None:
    low = PairedRow(exact(1.0, 1.2, 0.8), exact(2.0, 2.2, 1.8))
    high = PairedRow(exact(101.0, 99.0, 100.0), exact(103.0, 101.0, 102.0))
    found = estimate([low, high])
    assert found.change.value == pytest.approx(1.5)
    assert found.rows == pytest.approx((1.0, 2.0))
    assert found.n == 6


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8), st.floats(0, 20))
def test_the_less_is_known_of_values_the_less_is_known_of_their_difference(
    pairs: list[tuple[float, float]], blur: float
) -> None:
    before, after = zip(*pairs, strict=True)
    sharp = estimate([PairedRow(exact(*before), exact(*after))])
    wide = {n: ValueRange(one.low - blur, one.high) for n, one in exact(*after).items()}
    blurred = estimate([PairedRow(exact(*before), wide)])
    assert blurred.change.low <= sharp.change.low + 1e-9
    assert blurred.change.high >= sharp.change.high - 1e-9
    assert blurred.p >= sharp.p - 1e-12 or blur == 0
    assert blurred.blur == pytest.approx(blur / 2, abs=1e-9)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8))
def test_turned_round_the_answer_turns_its_sign(pairs: list[tuple[float, float]]) -> None:
    before, after = (exact(*side) for side in zip(*pairs, strict=True))
    there, back = estimate([PairedRow(before, after)]), estimate([PairedRow(after, before)])
    assert there.change.value == pytest.approx(-back.change.value)
    assert there.change.low == pytest.approx(-back.change.high)
    assert there.p == pytest.approx(back.p)


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_recovery_without_an_end_leaves_the_upper_end_of_its_difference_open_or_farther(
    n: int, open_ended: int
) -> None:
    rng = np.random.default_rng(n)
    before = exact(*rng.normal(10, 1, n))
    after = {k: ValueRange(one.low + 3, one.high + 3) for k, one in exact(*rng.normal(10, 1, n)).items()}
    cut = {k: ValueRange(one.low, math.inf if k < open_ended else one.high) for k, one in after.items()}
    whole, censored = estimate([PairedRow(before, after)]), estimate([PairedRow(before, cut)])
    if open_ended:
        assert censored.change.high >= whole.change.value
        assert censored.blur == math.inf
    else:
        assert censored == whole


def test_sides_of_unequal_number_keep_each_its_own_scatter() -> None:
    rng = np.random.default_rng(4)
    before, after = rng.normal(0, 1, 12).tolist(), rng.normal(1, 3, 5).tolist()
    found = estimate([PairedRow.unpaired(exact_values(before), exact_values(after))])
    theirs = stats.ttest_ind(after, before, equal_var=False)
    ends = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.change.low, found.change.high) == pytest.approx((ends.low, ends.high))


def test_five_runs_with_a_censored_one_are_compared_by_ranks() -> None:
    before = exact(10.0, 11.0, 9.0, 10.5, 9.5)
    after = {n: ValueRange(one.low + 20, math.inf if n == 0 else one.high + 20) for n, one in before.items()}
    found = estimate([PairedRow(before, after)])
    values = [[one.high for one in side.values()] for side in (before, after)]
    theirs = stats.mannwhitneyu(values[1], values[0], method="asymptotic")
    assert found.p == pytest.approx(theirs.pvalue) and found.p < 0.05
    assert 0 < found.change.low < 20 < found.change.high == math.inf
    three = [{n: side[n] for n in range(3)} for side in (before, after)]
    assert estimate([PairedRow(*three)]).p > 0.05 > estimate([PairedRow(*three)] * 2).p


def test_six_pairs_with_a_censored_one_are_compared_by_signed_ranks() -> None:
    before = exact(10.0, 11.0, 9.0, 10.5, 9.5, 10.2)
    after = {n: ValueRange(one.low + 20, math.inf if n == 0 else one.high + 20) for n, one in before.items()}
    found = estimate([PairedRow(before, after)])
    assert (found.p, found.direction) == (pytest.approx(2 / 2**6), 1)
    assert 0 < found.change.low < 20.1 and found.change.high == math.inf
    assert estimate([PairedRow(after, before)]).direction == -1
    assert estimate([PairedRow(*({n: side[n] for n in part} for side in (before, after)))
                     for part in ((0, 1, 2), (3, 4, 5))]
                    ).p == found.p, "pairs of all rows"  # fmt: skip


def test_censored_pairs_keep_the_benefit_of_blocks() -> None:
    """Levels of the blocks scatter more than tenfold what separates the sides."""
    before = exact(*(5.0 + 10 * n for n in range(8)))
    after = {n: ValueRange(one.low + 6 + n % 4 / 5, math.inf if n == 7 else one.high + 6 + n % 4 / 5)
             for n, one in before.items()}  # fmt: skip
    found = estimate([PairedRow(before, after)])
    assert found.p == pytest.approx(2 / 2**8)
    assert 6.0 <= found.change.low < 6.6 and found.change.high == math.inf
    shifted = {n + 8: one for n, one in after.items()}
    assert estimate([PairedRow(before, shifted)]).p > 0.5


def test_a_pair_without_an_end_speaks_for_neither_side_and_against_equality() -> None:
    before = exact(*(10.0 * n for n in range(8))) | {8: ValueRange(90.0, math.inf)}
    after = {n: ValueRange(one.low + 6 + n / 10, one.high + 6 + n / 10) for n, one in before.items()}
    whole, known = PairedRow(before, after), PairedRow(*({n: side[n] for n in range(8)} for side in (before, after)))
    found = estimate([whole])
    assert found.p == pytest.approx(4 / 2**9), "its rank is the least, its sign unknown"
    assert 6.0 <= found.change.low < found.change.high <= 7.0
    assert equivalence_p([known], 8.0) < 0.05 < equivalence_p([whole], 8.0)


@given(st.lists(VALUES.map(lambda one: round(one, 6)).filter(bool), min_size=6, max_size=12, unique_by=abs))
def test_signed_ranks_are_wilcoxons_and_their_interval_is_what_they_do_not_refuse(values: list[float]) -> None:
    pairs = np.array(values)
    asked = stats.wilcoxon(pairs, alternative="greater", method="exact").pvalue
    assert signed_tail(pairs) == pytest.approx(asked)
    low, high = signed_interval(pairs, 0.95)
    for end, towards in ((low, pairs), (-high, -pairs)):
        assert signed_tail(towards - end + 1e-6) <= 0.025 < signed_tail(towards - end - 1e-6)


def test_two_censored_values_have_no_order() -> None:
    lasting = {n: ValueRange(30.0, math.inf) for n in range(8)}
    found = estimate([PairedRow(lasting, lasting)])
    assert (found.change.low, found.change.high) == (-math.inf, math.inf)
    assert found.p == 1.0
    assert equivalence_p([PairedRow(lasting, lasting)], 100.0) == 1.0


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8), st.floats(0.1, 30))
def test_less_than_a_margin_is_believed_just_where_the_interval_lies_within(
    pairs: list[tuple[float, float]], margin: float
) -> None:
    before, after = (exact(*side) for side in zip(*pairs, strict=True))
    change = estimate([PairedRow(before, after)]).change
    if min(abs(abs(end) - margin) for end in (change.low, change.high)) > 1e-6:
        within = -margin < change.low and change.high < margin
        assert (equivalence_p([PairedRow(before, after)], margin) <= 0.05) == within


def test_a_single_pair_is_inconclusive() -> None:
    found = estimate([PairedRow(exact(1.0), exact(2.0))])
    assert (found.p, found.freedom, found.spread) == (1.0, 0, None)
    assert found.change.low == -math.inf
    assert required_pairs(found, 0.5, 0.05) is None


def test_the_true_difference_lies_within_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        rows = []
        for level, n in ((10.0, 3), (30.0, 4), (20.0, 3)):
            block = rng.normal(0, 2, n)  # disturbs both sides of a pair
            rows.append(
                PairedRow(
                    exact(*(level + block + rng.normal(0, 1, n))), exact(*(level + 2 + block + rng.normal(0, 1, n)))
                )
            )
        change = estimate(rows).change
        held += change.low <= 2 <= change.high
    assert held / 400 == pytest.approx(0.95, abs=0.03)


def test_as_many_pairs_as_are_needed_find_it_four_times_in_five() -> None:
    rng = np.random.default_rng(2)
    spread, true = 1.0, 0.9
    pilot = estimate([PairedRow(exact(*rng.normal(0, 1, 4)), exact(*rng.normal(true, 1, 4)))])
    known = type(pilot)(**{**vars(pilot), "change": type(pilot.change)(true, 0, 2), "spread": spread, "blur": 0.0})
    n = required_pairs(known, 0.1, 0.05)
    assert n is not None
    found = sum(
        estimate([PairedRow(exact(*np.zeros(n)), exact(*rng.normal(true, spread, n)))]).p <= 0.05 for _ in range(400)
    )
    assert found / 400 == pytest.approx(0.8, abs=0.06)


def test_what_is_no_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="range: "):
        ValueRange(2.0, 1.0)
    with pytest.raises(ValueError, match="both sides"):
        PairedRow({}, exact(1.0))


@pytest.mark.filterwarnings("error")
def test_censored_sides_cause_no_warning() -> None:
    ends = [{0: 3, 1: math.inf, 2: 5, 3: 6}, {0: math.inf, 1: 4, 2: 6, 3: 7}]
    before, after = ({n: ValueRange(2.0, high) for n, high in side.items()} for side in ends)
    found = estimate([PairedRow(before, after), PairedRow(after, before)])
    assert not math.isnan(found.change.value)
    assert (found.blur, found.p) == (math.inf, 1.0)


def test_one_side_has_a_median_and_an_interval_that_holds_its_centre() -> None:
    assert median_interval(exact_values([3.0])) is None and math.isnan(median_of([]))
    found, theirs = (
        median_interval(exact_values([-1.0, 2.0, 3.0, 5.0])),
        stats.ttest_1samp([-1.0, 2.0, 3.0, 5.0], 0).confidence_interval(),
    )
    assert found is not None and (found.value, found.low, found.high) == pytest.approx((2.5, theirs.low, theirs.high))
    ratios = median_interval(exact_values([1.0, 10.0, 100.0]))
    assert ratios is not None and ratios.low * ratios.high == pytest.approx(100.0)
    ten = [*exact_values([float(one) for one in range(1, 10)]), ValueRange(12.0, math.inf)]
    cut = median_interval(ten)
    assert cut is not None and (cut.value, cut.low, cut.high) == (5.5, 2.0, 9.0), "order statistics"
    few = median_interval(ten[5:])
    assert few is not None and (few.low, few.high) == (-math.inf, math.inf)
    assert median_of([ValueRange(1.0, math.inf)] * 2 + list(exact_values([3.0, 4.0]))) == math.inf


def test_the_interval_of_one_side_covers_its_centre_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(7)
    found = [median_interval(exact_values(rng.lognormal(2.0, 0.4, 6).tolist())) for _ in range(400)]
    covered = [one is not None and one.low <= math.exp(2.0) <= one.high for one in found]
    assert sum(covered) / 400 == pytest.approx(0.95, abs=0.03)


def test_the_spread_is_the_coefficient_of_variation_of_what_has_an_end() -> None:
    assert spread_of([*exact_values([9.0, 10.0, 11.0]), ValueRange(50.0, math.inf)]) == pytest.approx(0.1)
    assert spread_of(exact_values([-9.0, -11.0])) == pytest.approx(math.sqrt(2) / 10)
    assert spread_of(exact_values([3.0])) is spread_of(exact_values([-1.0, 1.0])) is None


@given(st.dictionaries(st.integers(), st.floats(0, 1), max_size=8))
def test_holms_correction_keeps_the_order_and_never_lowers(p_values: dict[int, float]) -> None:
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    assert all(p_values[key] <= adjusted[key] <= 1 for key in p_values)
    order = sorted(p_values, key=lambda key: p_values[key])
    assert [adjusted[key] for key in order] == sorted(adjusted.values())
    assert holm({"a": 0.03, "b": 0.01, "c": 0.02, "d": 0.9}) == pytest.approx(
        {"a": 0.06, "b": 0.04, "c": 0.06, "d": 0.9}
    )
