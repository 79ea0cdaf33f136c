"""Change points over nights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.comparison.statistics.changes import LEAST, change_points


def nights(seed: int, *levels: tuple[int, float]) -> list[float]:
    """So many nights at each level, with 2 % of noise."""
    rng = np.random.default_rng(seed)
    return [float(value) for n, level in levels for value in level * (1 + 0.02 * rng.standard_normal(n))]


@given(st.integers(0, 50), st.integers(8, 22))
@settings(deadline=None, max_examples=25)
def test_a_planted_change_is_found_within_one_night(seed: int, night: int) -> None:
    found = change_points(nights(seed, (night, 100), (30 - night, 110)))
    assert any(abs(one - night) <= 1 for one in found)
    assert len(found) <= 3


def test_seldom_more_is_found_than_was_planted() -> None:
    wrong = sum(len(change_points(nights(seed, (15, 100), (15, 110)))) > 1 for seed in range(30))
    assert wrong <= 2


def test_nothing_is_found_where_nothing_was_planted() -> None:
    wrong = sum(bool(change_points(nights(seed, (30, 100)))) for seed in range(100))
    assert wrong <= 5


def test_two_changes_are_told_apart() -> None:
    assert change_points(nights(3, (10, 100), (10, 120), (10, 100))) == [10, 20]


@pytest.mark.parametrize("values", [[], [1.0] * 30, [1.0, 2.0], [float("nan")] * 10, [0.0] * 8])
def test_a_series_that_says_nothing_has_none(values: list[float]) -> None:
    assert change_points(values) == []


def test_one_wild_night_is_no_change() -> None:
    values = nights(4, (30, 100))
    values[15] = 200
    assert change_points(values) == []


def test_a_level_lasts_some_nights() -> None:
    assert change_points(nights(5, (28, 100), (LEAST - 1, 150))) == []


def test_three_nights_are_a_level_and_two_are_not() -> None:
    before = [100.0 + number % 3 for number in range(28)]
    assert change_points([*before, 150.0, 151.0]) == []
    assert change_points([*before, 150.0, 151.0, 152.0]) == [28]


def test_what_differs_in_the_tenth_digit_is_rounding() -> None:
    assert change_points([1e6] * 10 + [1e6 + 1e-4] * 10) == []
    assert change_points([1e6] * 10 + [1e6 + 0.1] * 10) == [10]
    assert change_points([1e-6] * 10 + [1.1e-6] * 10) == [10], "whatever the unit"


@pytest.mark.parametrize(("step", "found"), [(3.1, []), (3.3, [10])])
def test_a_change_costs_four_times_the_variance_of_a_night_for_each_logarithm_of_the_nights(
    step: float, found: list[int]
) -> None:
    """Nights alternate by ±1: by a robust estimate from one night to the next that is a deviation of 2.1, so among 21
    nights a change in their middle must explain 53 or more: 5.2 times the square of the step, as these nights fall."""
    assert change_points([100 + (-1) ** n + (step if n >= 10 else 0) for n in range(21)]) == found
