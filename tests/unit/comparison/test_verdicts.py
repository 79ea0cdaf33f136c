"""Verdict on two sides of one metric: conditions, direction, and obstacles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from faultline.comparison.compare import Comparison, ComparisonVerdict, compare, series_noise
from faultline.comparison.statistics.estimate import ValueRange, Values, exact_values

FIVE = exact_values([1.0, 1.1, 1.2, 1.3, 1.4])


def compared(before: Values, after: Values, *, floor: float = 0.0, lower_is_better: bool = True) -> Comparison:
    return compare({0: (before, after)}, lower_is_better=lower_is_better, floors={0: floor})[0]


def open_ended(*lows: float) -> list[ValueRange]:
    return [ValueRange(low, math.inf) for low in lows]


def scaled(values: Values, factor: float) -> Values:
    return exact_values([value.low * factor for value in values])


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (FIVE, scaled(FIVE, 2.0), ComparisonVerdict.WORSE),
        (scaled(FIVE, 2.0), FIVE, ComparisonVerdict.BETTER),
        (FIVE, FIVE[:4], ComparisonVerdict.INCONCLUSIVE),
        (exact_values([100.0] * 6), exact_values([104.9] * 6), ComparisonVerdict.EQUIVALENT),
        (exact_values([100.0] * 6), exact_values([95.3] * 6), ComparisonVerdict.EQUIVALENT),
        (exact_values([100.0] * 6), exact_values([105.1] * 6), ComparisonVerdict.WORSE),
        (exact_values([0.0] * 5), exact_values([0.0] * 5), ComparisonVerdict.EQUIVALENT),
        (exact_values([0.0] * 5), exact_values([0.0] * 4 + [1.0]), ComparisonVerdict.INCONCLUSIVE),
        (exact_values([0.0] * 5), exact_values([1.0, 2.0, 3.0, 4.0, 5.0]), ComparisonVerdict.WORSE),
        (FIVE, open_ended(30.0, 30.0, 30.0, 30.0, 30.0), ComparisonVerdict.WORSE),
        (open_ended(30.0, 30.0, 30.0, 30.0, 30.0), FIVE, ComparisonVerdict.BETTER),
        (
            open_ended(30.0, 30.0, 30.0, 30.0, 30.0),
            open_ended(30.0, 30.0, 30.0, 30.0, 30.0),
            ComparisonVerdict.INCONCLUSIVE,
        ),
    ],
)
def test_a_verdict_has_a_direction_and_takes_five_repetitions(
    before: Values, after: Values, verdict: ComparisonVerdict
) -> None:
    assert compared(before, after).verdict is verdict
    turned = {ComparisonVerdict.WORSE: ComparisonVerdict.BETTER, ComparisonVerdict.BETTER: ComparisonVerdict.WORSE}.get(
        verdict, verdict
    )
    assert compared(before, after, lower_is_better=False).verdict is turned
    assert compare({}, lower_is_better=True) == {}


@pytest.mark.parametrize(
    ("before", "after", "floor", "why"),
    [
        (FIVE, FIVE[:4], 0.2, "4 of 5 repetitions"),
        (open_ended(30.0, 30.0, 30.0, 30.0, 30.0), open_ended(40.0, 40.0, 40.0, 40.0, 40.0), 0.0,
         "half of the baseline is censored"),
        (exact_values([0.0] * 4 + [1.0]), exact_values([0.0] * 3 + [1.0, 2.0]), 0.0,
         "the baseline is 0"),
        (FIVE, scaled(FIVE, 1.02), 0.0, ""),
        (FIVE, scaled(FIVE, 1.5), 0.6, "within the noise floor of 60%"),
        (FIVE, exact_values([0.8, 0.9, 1.2, 1.5, 1.9]), 0.6, ""),
    ],
)  # fmt: skip
def test_inconclusive_comparisons_have_a_reason(before: Values, after: Values, floor: float, why: str) -> None:
    found = compared(before, after, floor=floor)
    assert (found.verdict, found.why, found.floor) == (ComparisonVerdict.INCONCLUSIVE, why, floor)


def test_a_change_as_large_as_the_floor_is_not_believed() -> None:
    # With a 0 before, the change is a share of the median: exactly a quarter.
    before, after = exact_values([0.0, 100.0, 100.0, 100.0, 100.0]), exact_values([25.0, 125.0, 125.0, 125.0, 125.0])
    before, after = [*before, *before[1:] * 40], [*after, *after[1:] * 40]
    change = compared(before, after).change
    assert change is not None and change.value == 0.25
    assert [compared(before, after, floor=floor).verdict for floor in (0.2499, 0.25)] == [
        ComparisonVerdict.WORSE, ComparisonVerdict.INCONCLUSIVE
    ]  # fmt: skip
    low = exact_values([1.0, 1.01, 1.02, 1.03, 1.04])
    assert compared(low, low, floor=0.2).verdict is ComparisonVerdict.EQUIVALENT, "independent of the noise floor"


def test_a_change_is_the_ratio_of_means_on_a_log_scale_or_a_share_of_the_median() -> None:
    logs = [np.log([value.low for value in side]) for side in (FIVE, scaled(FIVE, 1.5))]
    ends = stats.ttest_ind(logs[1], logs[0]).confidence_interval(0.95)
    change = compared(FIVE, scaled(FIVE, 1.5)).change
    assert change is not None
    assert (change.value, change.low, change.high) == pytest.approx((0.5, math.expm1(ends.low), math.expm1(ends.high)))
    share = compared(exact_values([0.0, 2.0, 4.0, 6.0, 8.0]), exact_values([1.0, 3.0, 5.0, 7.0, 9.0])).change
    assert share is not None and share.value == pytest.approx(1.0 / 4.0)


def test_many_cells_make_a_verdict_rarer_and_what_shows_larger() -> None:
    before, after = FIVE, scaled(FIVE, 1.35)
    alone = compared(before, after)
    assert alone.verdict is ComparisonVerdict.WORSE
    many = compare({n: (before, after) for n in range(9)} | {9: (before, after[:1])}, lower_is_better=True)
    assert many[0].verdict is ComparisonVerdict.INCONCLUSIVE and many[0].p == pytest.approx(9 * alone.p)
    assert many[0].detectable and alone.detectable and many[0].detectable > alone.detectable
    assert (many[9].p, many[9].why) == (1.0, "1 of 5 repetitions"), "it is not among them"


def test_recoveries_that_end_more_often_are_better_also_where_most_do_not() -> None:
    none, some = open_ended(*[80.0] * 12), [*exact_values([30.0] * 5), *open_ended(*[80.0] * 7)]
    assert compared(none, some).verdict is ComparisonVerdict.BETTER
    assert compared(some, none).verdict is ComparisonVerdict.WORSE


def test_what_was_not_seen_to_end_is_longer_than_what_ended_when_it_was_last_watched() -> None:
    """A recovery lies in (last late, first on time]: of 30 s at most, it is shorter than one of more than 30 s."""
    some = [*exact_values([30.0] * 4), *open_ended(30.0)]
    assert compared(some, open_ended(*[30.0] * 5)).verdict is ComparisonVerdict.WORSE
    assert compared(open_ended(*[30.0] * 5), some).verdict is ComparisonVerdict.BETTER
    assert compared(exact_values([30.0] * 5), some).verdict is ComparisonVerdict.INCONCLUSIVE


@pytest.mark.parametrize(("before", "after"), [((8, 0.1), (8, 0.1)), ((5, 0.1), (8, 0.1)), ((35, 0.02), (5, 0.06))])
def test_detectable_effects_are_detected(before: tuple[int, float], after: tuple[int, float]) -> None:
    """Also for sides of unequal size and variance, such as a run and earlier ones."""
    rng = np.random.default_rng(5)
    sides = [[exact_values(rng.lognormal(0, spread, n).tolist()) for n, spread in (before, after)] for _ in range(300)]
    shares = [one.detectable for one in (compared(*pair) for pair in sides)]
    usual = float(np.median([one for one in shares if one is not None]))
    seen = [compared(a, scaled(b, 1 + usual)).verdict is ComparisonVerdict.WORSE for a, b in sides]
    assert 0.7 <= sum(seen) / len(seen) <= 0.9
    close = exact_values([100.0, 100.1, 100.2, 100.3, 100.4])
    assert compared(close, close).detectable == 0.05, "less would not have been believed"
    assert compared(exact_values([0.0] * 5), FIVE).detectable is None


@pytest.mark.parametrize("deviation", [0.03, 0.1])
def test_equal_sides_are_rarely_different(deviation: float) -> None:
    rng = np.random.default_rng(11)
    sides = [[exact_values(rng.lognormal(3, deviation, 5).tolist()) for _ in range(2)] for _ in range(200)]
    wrong = sum(compared(a, b).verdict in (ComparisonVerdict.BETTER, ComparisonVerdict.WORSE) for a, b in sides)
    assert wrong <= 16  # a binomial with 0.05 exceeds it once in 40


def test_three_series_make_a_floor_and_two_do_not() -> None:
    def series(*levels: float) -> Sequence[Values]:
        return [exact_values([level]) for level in levels]

    assert series_noise(series(90.0, 100.0, 110.0)) == pytest.approx(4.3027 * 10 * math.sqrt(4 / 3) / 100, rel=1e-3)
    assert series_noise(series(-1.0, 0.0, 1.0)) == 0.0
    assert series_noise([*series(90.0, 100.0), ()]) == 0.0
