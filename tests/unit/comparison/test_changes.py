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
    assert len(found) <= 2


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
