"""The trend test and the slope, each against a slow and obvious version."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from faultline.analysis.steady_state import mann_kendall, slope_interval, sustained


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_mann_kendall_is_exact_without_ties(values: list[int]) -> None:
    def score(order: tuple[int, ...]) -> int:
        return sum(np.sign(b - a) for a, b in itertools.combinations(order, 2))

    seen = abs(score(tuple(values)))
    orders = list(itertools.permutations(range(6)))
    extreme = sum(abs(score(order)) >= seen for order in orders)
    assert mann_kendall(values) == pytest.approx(extreme / len(orders))


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=8, max_size=20))
def test_mann_kendall_with_ties_is_the_corrected_normal_test(values: list[int]) -> None:
    n = len(values)
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    ties = [values.count(value) for value in set(values)]
    if max(ties) == 1:
        return
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    expected = 2 * stats.norm.sf(max(0, abs(score) - 1) / variance**0.5) if variance else 1.0
    assert mann_kendall(values) == pytest.approx(min(1.0, expected))


def test_mann_kendall_beyond_sixty_values_goes_on_smoothly() -> None:
    values = np.random.default_rng(3).permutation(61)
    exact = stats.kendalltau(np.arange(61), values, method="exact").pvalue
    assert mann_kendall(values) == pytest.approx(exact, abs=0.01)


def test_four_bins_can_never_show_a_trend_and_ten_rising_ones_do() -> None:
    assert mann_kendall([1, 2, 3, 4]) > 0.05
    assert mann_kendall(range(10)) < 0.001
    assert mann_kendall([5.0] * 10) == 1.0
    assert mann_kendall([1, 2]) == 1.0


def test_lag_that_grows_for_sure_is_not_sustained() -> None:
    times = np.arange(20, dtype=float)
    noise = np.where(times % 2, 3.0, -3.0)
    assert sustained(times, 50 + noise) is True
    assert sustained(times, 50 - 5 * times + noise) is True
    assert sustained(times, 50 + 5 * times + noise) is False
    assert sustained(times[:2], noise[:2]) is None


def test_the_slope_interval_holds_the_planted_slope_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    times = np.arange(15, dtype=float)
    intervals = [slope_interval(times, 2 * times + random.normal(0, 4, 15)) for _ in range(400)]
    inside = [low <= 2 <= high for low, high in (i for i in intervals if i is not None)]
    assert 0.92 <= sum(inside) / 400 <= 0.98


def test_what_rises_as_often_as_it_falls_has_no_trend() -> None:
    assert mann_kendall([1, 2, 2, 1]) == 1.0
    assert mann_kendall([1, 2, 3]) == pytest.approx(1 / 3)
    assert mann_kendall([3, 2, 1]) == pytest.approx(1 / 3)


def test_a_slope_takes_three_points_at_more_than_one_instant() -> None:
    line = np.array([0.0, 1.0, 2.0])
    assert slope_interval(line[:2], line[:2]) is None
    assert slope_interval(np.array([1.0, 1.0, 1.0]), line) is None
    assert slope_interval(line, 3 * line + 7) == pytest.approx((3, 3))
    # One of three points half off: the slope is 1, its deviation is 1/sqrt(12), and t is 12.706.
    found = slope_interval(line, np.array([0.0, 1.5, 2.0]))
    assert found == pytest.approx((1 - 12.7062 * 12**-0.5, 1 + 12.7062 * 12**-0.5), rel=1e-4)
    flat = np.array([5.0, 5.0, 5.0])
    assert sustained(line, flat) is True, "an interval that begins at 0 is no growth"


@pytest.mark.parametrize(("slope", "answer"), [(0.5, False), (0.001, False), (0.0, True), (-0.5, True)])
def test_however_slowly_lag_grows_it_is_not_sustained(slope: float, answer: bool) -> None:
    times = np.arange(20.0)
    assert sustained(times, 100 + slope * times) is answer
