"""Permutation over pairs: exact where it can be counted, indifferent to scale, and covering what is true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.comparison.statistics import sign_flips as subject
from faultline.comparison.statistics.sign_flips import least_p, mean_interval, p_above, spread, visible

VALUES = st.lists(st.floats(-2, 2).map(lambda one: round(one, 3)), min_size=1, max_size=10)


@given(VALUES)
def test_it_is_what_counting_all_ways_gives(values: list[float]) -> None:
    ways = [
        sum(s * v for s, v in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    total = sum(values)
    assert p_above(values) == pytest.approx(sum(one >= total - 1e-7 for one in ways) / len(ways))


@given(VALUES, st.floats(0.01, 100))
def test_neither_scale_nor_order_matters_and_the_two_sides_cover_all(values: list[float], scale: float) -> None:
    p = p_above(values)
    assert p_above([scale * one for one in reversed(values)]) == pytest.approx(p)
    assert p + p_above([-one for one in values]) >= 1 - 1e-12
    assert least_p(len(values)) <= p <= 1


@pytest.mark.parametrize("pairs", [1, 5, 10, 24, 25, 60])
def test_no_p_is_smaller_than_the_ways_allow(pairs: int) -> None:
    assert p_above([1.0 + number / 100 for number in range(pairs)]) == pytest.approx(least_p(pairs))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=14))
def test_the_lattice_of_many_pairs_agrees_with_the_list_of_few(values: list[float]) -> None:
    whole = [round(one / (max(map(abs, values)) or 1) * 1000) for one in values]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subject, "MOST_LISTED", 0)
        counted = p_above(values)
    assert counted == pytest.approx(p_above([float(one) for one in whole]))


@given(st.lists(st.floats(-1, 1).map(lambda one: round(one, 3)), min_size=6, max_size=12), st.floats(-3, 3))
@settings(max_examples=40)
def test_the_interval_moves_with_the_values_and_holds_their_mean(values: list[float], shift: float) -> None:
    found, moved = (mean_interval(one, one) for one in (values, [value + shift for value in values]))
    assert found.low <= found.value <= found.high
    assert moved.low == pytest.approx(found.low + shift, abs=1e-6)
    assert moved.high == pytest.approx(found.high + shift, abs=1e-6)


def test_the_interval_covers_what_is_true_as_often_as_it_says() -> None:
    rng, count = np.random.default_rng(11), 400
    covered = 0
    for _ in range(count):
        values = (0.1 + 0.2 * rng.standard_t(4, 10)).tolist()
        found = mean_interval(values, values)
        covered += found.low <= 0.1 <= found.high
    assert 0.92 <= covered / count <= 0.985


def test_differences_that_are_known_as_intervals_make_it_wider_and_few_pairs_make_it_endless() -> None:
    low = [0.1, 0.2, 0.15, 0.12, 0.18, 0.22, 0.11, 0.14]
    exact, blurred = mean_interval(low, low), mean_interval(low, [one + 0.1 for one in low])
    assert blurred.low == exact.low and blurred.high == pytest.approx(exact.high + 0.1)
    assert blurred.value == pytest.approx(exact.value + 0.05)
    few = mean_interval(low[:5], low[:5])
    assert (few.low, few.high) == (-math.inf, math.inf)


def test_nothing_is_said_of_nothing() -> None:
    assert p_above([]) == 1.0 and spread([0.1]) is None
    assert p_above([0.0] * 10) == 1.0


def test_what_would_be_seen_shrinks_with_pairs_and_is_seen_so_often() -> None:
    seen = [visible(0.1, pairs, 0.01, 0.8) for pairs in (4, 7, 10, 20, 40)]
    assert seen[0] == math.inf and seen[1:] == sorted(seen[1:], reverse=True)
    rng, size = np.random.default_rng(5), visible(0.1, 12, 0.01, 0.8)
    hits = sum(p_above((size + 0.1 * rng.standard_normal(12)).tolist()) <= 0.01 for _ in range(400))
    assert 0.73 <= hits / 400 <= 0.87
