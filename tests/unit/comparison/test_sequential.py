"""Sequential test: error rate under interim analyses, and coverage of its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.noise_profiles import draw, load_shapes
from faultline.comparison.statistics.sequential import (
    MIN_PAIRS,
    RESERVED,
    Method,
    Pair,
    SequentialDecision,
    bounds,
    judge,
    look_interval,
    min_decidable_pairs,
    point_estimate,
    spent_error,
)

METHODS = list(Method)
MARGIN = (math.log(0.9), math.log(1.1))
BLOCKS, ALPHA = 15, 0.05
numbers = st.floats(-2, 2).map(lambda value: round(value, 6))
many = st.lists(numbers, min_size=MIN_PAIRS, max_size=BLOCKS)


def known(values: list[float]) -> list[Pair]:
    return [(value, value) for value in values]


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.001, 0.4))
def test_the_error_is_spent_ever_more_and_never_exceeded(pairs: int, horizon: int, alpha: float) -> None:
    assert 0 < spent_error(pairs, horizon, alpha) < spent_error(pairs + 1, horizon, alpha) <= alpha
    assert spent_error(horizon, horizon, alpha) == pytest.approx((1 - RESERVED) * alpha), (
        "the rest is for a raised budget"
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scatter", ["normal", "measured", "outliers"])
def test_looks_at_every_pair_are_wrong_no_more_often_than_accepted(method: Method, scatter: str) -> None:
    """Equal cells, whose scatter is normal, or as it was measured, or with one value in twenty far off."""
    rng, sweeps = np.random.default_rng(7), 1500
    limits = bounds(method, BLOCKS, BLOCKS, ALPHA)
    shape = load_shapes()["word_count cpu_cores.total"]

    def cell() -> np.ndarray:
        if scatter == "measured":
            return np.log(draw(shape, BLOCKS, rng))
        values = rng.normal(0, 0.1, BLOCKS)
        return values + (rng.random(BLOCKS) < 0.05) * rng.exponential(0.7, BLOCKS) * (scatter == "outliers")

    judged = [judge(known((cell() - cell()).tolist()), limits, method, MARGIN) for _ in range(sweeps)]
    wrong = sum(one.outcome is SequentialDecision.DIFFERS for one in judged) / sweeps
    missed = sum(not one.low <= 0 <= one.high for one in judged) / sweeps
    # Three standard deviations of a share of 4 %.
    assert wrong <= missed <= ALPHA * (1 - RESERVED) + 3 * math.sqrt(0.04 * 0.96 / sweeps)
    if scatter == "normal":
        assert missed > 0.02, "else the error is not made use of"


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_that_is_raised_keeps_the_error(method: Method) -> None:
    """Planned for 8, then gone on with to 30: looks beyond the first plan live on what was kept for them."""
    limits = bounds(method, 30, 8, ALPHA)
    rng, sweeps = np.random.default_rng(11), 1500
    missed = [judge(known(rng.normal(0, 1, 30).tolist()), limits, method, MARGIN) for _ in range(sweeps)]
    share = sum(not one.low <= 0 <= one.high for one in missed) / sweeps
    assert share <= ALPHA + 3 * math.sqrt(0.05 * 0.95 / sweeps)
    assert limits[:8] == bounds(method, 8, 8, ALPHA), "what was decided before stays decided"


@pytest.mark.parametrize("method", METHODS)
def test_an_equal_figure_is_called_equal_and_a_planted_difference_is_found(method: Method) -> None:
    rng, limits = np.random.default_rng(3), bounds(method, 30, 30, ALPHA)
    for planted, outcome in (
        (0.0, SequentialDecision.WITHIN),
        (math.log(1.3), SequentialDecision.DIFFERS),
        (math.log(0.7), SequentialDecision.DIFFERS),
    ):
        one = judge(known((planted + rng.normal(0, 0.06, 30)).tolist()), limits, method, MARGIN)
        assert one.outcome is outcome
        assert one.decided_at is not None and MIN_PAIRS <= one.decided_at < 30
        assert one.low <= planted <= one.high


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data(), values=many)
@settings(deadline=None)
def test_more_pairs_undo_no_decision(method: Method, data: st.DataObject, values: list[float]) -> None:
    limits = bounds(method, BLOCKS, BLOCKS, ALPHA)
    first = judge(known(values[: data.draw(st.integers(1, len(values)))]), limits, method, MARGIN)
    later = judge(known(values), limits, method, MARGIN)
    assert first.low <= later.low or first.high >= later.high
    if first.decided_at is not None:
        assert (later.outcome, later.decided_at) == (first.outcome, first.decided_at)


@pytest.mark.parametrize("method", METHODS)
@given(values=many, widths=st.lists(st.floats(0, 0.5), min_size=BLOCKS, max_size=BLOCKS), data=st.data())
@settings(deadline=None)
def test_decisions_on_ranges_hold_for_every_value(
    method: Method, values: list[float], widths: list[float], data: st.DataObject
) -> None:
    """The truth may lie anywhere in each: no choice of it has a difference of the means beyond the reach."""
    limit = 3.0 if method is Method.T else len(values) * (len(values) + 1) / 4 - 1.5
    pairs = [(value, value + width) for value, width in zip(values, widths, strict=False)]
    low, high = look_interval(pairs, limit, method)
    ends = [look_interval(known([pair[end] for pair in pairs]), limit, method) for end in (0, 1)]
    assert (low, high) == (ends[0][0], ends[1][1])
    if method is Method.RANKS:
        truth = [low_end + data.draw(st.floats(0, 1)) * (high_end - low_end) for low_end, high_end in pairs]
        inner = look_interval(known(truth), limit, method)
        assert low <= inner[0] + 1e-12 and inner[1] <= high + 1e-12


@pytest.mark.parametrize("method", METHODS)
@given(values=many)
@settings(deadline=None)
def test_sides_that_are_swapped_swap_the_interval(method: Method, values: list[float]) -> None:
    limits = bounds(method, BLOCKS, BLOCKS, ALPHA)
    one = judge(known(values), limits, method, (-0.1, 0.1))
    other = judge(known([-value for value in values]), limits, method, (-0.1, 0.1))
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=1e-9)
    assert one.outcome is other.outcome


def test_censored_pairs_stop_ranks_no_more_than_they_must() -> None:
    """Two of twelve are censored; one of them is unknown."""
    pairs = [*known([0.5 + 0.01 * number for number in range(10)]), (0.4, math.inf), (-math.inf, math.inf)]
    by_ranks = judge(pairs, bounds(Method.RANKS, 12, 12, ALPHA), Method.RANKS, MARGIN)
    assert by_ranks.outcome is SequentialDecision.DIFFERS and by_ranks.low > 0.2
    limits = bounds(Method.T, 12, 12, ALPHA)
    low, high = look_interval(pairs[:11], limits[10] or 0.0, Method.T)
    assert 0 < low < high == math.inf, "of means the upper end is open"
    assert look_interval(pairs, limits[11] or 0.0, Method.T) == (-math.inf, math.inf)


@given(st.lists(numbers, min_size=1, max_size=8))
def test_the_middle_is_the_mean_or_the_median_of_averages(values: list[float]) -> None:
    assert point_estimate(known(values), Method.T) == pytest.approx(np.mean(values))
    assert min(values) <= point_estimate(known(values), Method.RANKS) <= max(values)


def test_the_middle_of_half_open_pairs_is_what_is_known_of_them() -> None:
    assert point_estimate([(1.0, 3.0), (2.0, math.inf), (-math.inf, 2.0)], Method.RANKS) == 2.0
    assert math.isnan(point_estimate([], Method.T))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("comparisons", [1, 4, 20])
def test_the_fewest_pairs_are_the_first_number_that_can_decide(method: Method, comparisons: int) -> None:
    alpha = ALPHA / comparisons
    need = min_decidable_pairs(method, alpha)
    assert need >= MIN_PAIRS
    assert any(bounds(method, need, need, alpha))
    assert need == MIN_PAIRS or not any(bounds(method, need - 1, need - 1, alpha))
    assert need <= min_decidable_pairs(method, alpha / 10)


def test_ranks_are_looked_at_from_where_all_of_one_sign_are_rare_enough() -> None:
    """Six of one sign have a chance of 1 in 32, which is less than the 4 % that six planned pairs may spend."""
    assert bounds(Method.RANKS, 6, 6, ALPHA) == (None, None, None, None, None, 10.5)
