"""Variance components of recoveries, the best number of injections, and the slope over their numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.allocation import (
    MOST_INJECTIONS,
    best_injections,
    components,
    price,
    slope,
)

RATIOS = st.floats(0, 50)
COSTS = st.floats(1, 500)


def drawn(between: float, within: float, runs: int, sizes: tuple[int, ...], seed: int = 1) -> list[list[float]]:
    """Runs with so many recoveries in turn, of these standard deviations."""
    rng = np.random.default_rng(seed)
    return [
        (10 + between * rng.standard_normal() + within * rng.standard_normal(sizes[n % len(sizes)])).tolist()
        for n in range(runs)
    ]


@pytest.mark.parametrize("sizes", [(3,), (1, 2, 5), (2, 8)])
@pytest.mark.parametrize(("between", "within"), [(0.0, 2.0), (1.0, 2.0), (3.0, 1.0)])
def test_planted_variances_come_back(between: float, within: float, sizes: tuple[int, ...]) -> None:
    shifted = [[one + 50 for one in run] for run in drawn(between, within, 1500, sizes, seed=2)]
    found = components([drawn(between, within, 1500, sizes), shifted])
    assert found is not None and found.between is not None and found.correlation is not None
    assert found.within == pytest.approx(within**2, rel=0.08)
    assert found.between == pytest.approx(between**2, rel=0.12, abs=0.12)
    true = between**2 / (between**2 + within**2)
    assert found.correlation.low - 0.01 <= true <= found.correlation.high + 0.01


def test_balanced_runs_agree_with_the_analysis_of_variance_by_hand() -> None:
    found = components([[[1.0, 3.0], [4.0, 6.0], [10.0, 12.0]]])
    assert found is not None
    # Means 2, 5, 11 about 6: squares 2 · (16 + 1 + 25) / 2 = 42; within (2 + 2 + 2) / 3 = 2.
    assert found.within == pytest.approx(2.0)
    assert found.between == pytest.approx((42 - 2) / 2)
    assert found.ratio is not None and found.ratio.value == pytest.approx(10.0)
    assert (found.runs, found.values) == (3, 6)


def test_a_between_variance_below_zero_is_zero() -> None:
    found = components([[[0.0, 10.0], [1.0, 9.0]]])
    assert found is not None and found.ratio is not None
    assert found.between == 0.0 and found.ratio.value == found.ratio.low == 0.0


def test_the_interval_holds_the_planted_ratio() -> None:
    held = 0
    for seed in range(200):
        found = components([drawn(1.0, 2.0, 6, (4,), seed)])
        assert found is not None and found.ratio is not None
        held += found.ratio.low <= 0.25 <= found.ratio.high
    assert 0.90 <= held / 200 <= 0.99


def test_single_runs_and_single_recoveries_say_less() -> None:
    alone = components([[[1.0, 2.0, 4.0]]])
    assert alone is not None and alone.within > 0
    assert alone.between is None and alone.ratio is None and alone.correlation is None
    assert components([[[1.0], [2.0]], [[3.0]]]) is None
    assert components([]) is None


def test_equal_recoveries_leave_all_scatter_to_the_runs() -> None:
    found = components([[[1.0, 1.0], [2.0, 2.0]]])
    assert found is not None and found.ratio is not None and found.correlation is not None
    assert math.isinf(found.ratio.value) and found.correlation.value == 1.0


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=5), min_size=2, max_size=6), st.randoms())
def test_order_does_not_matter(runs: list[list[float]], random: object) -> None:
    mixed = [random.sample(run, len(run)) for run in random.sample(runs, len(runs))]  # type: ignore[attr-defined]
    one, other = components([runs]), components([mixed])
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.within == pytest.approx(other.within, abs=1e-9)
        assert one.between == pytest.approx(other.between, abs=1e-6)


@given(RATIOS, COSTS, COSTS)
def test_no_other_number_within_bounds_is_cheaper(ratio: float, start_s: float, injection_s: float) -> None:
    best = best_injections(ratio, start_s, injection_s)
    most = best_injections(0.0, start_s, injection_s)
    assert 1 <= best <= most <= MOST_INJECTIONS
    costs = [price(ratio, k, start_s, injection_s) for k in range(1, most + 1)]
    assert price(ratio, best, start_s, injection_s) <= min(costs) * (1 + 1e-9)


def test_the_formula_of_kalibera_and_jones() -> None:
    assert best_injections(1 / 4, 100.0, 25.0) == 4
    assert best_injections(math.inf, 100.0, 25.0) == 1
    assert best_injections(0.0, 50.0, 50.0) == 9, "a start takes a tenth of a run"
    assert best_injections(0.0, 10_000.0, 1.0) == MOST_INJECTIONS


def test_a_slope_is_that_of_the_runs() -> None:
    runs = [[(n, level + 0.5 * n) for n in (1, 2, 3, 4)] for level in (3.0, 9.0, 30.0)]
    found = slope([*runs, [(1, 5.0), (2, 50.0)]])
    assert found is not None and found.runs == 3
    assert found.change.low <= found.change.value + 1e-9 and found.change.value == pytest.approx(0.5)
    alone = slope(runs[:1])
    assert alone is not None and math.isinf(alone.change.high) and alone.change.value == pytest.approx(0.5)
    assert slope([[(1, 5.0), (2, 50.0)]]) is None


def test_a_slope_that_is_none_is_seldom_shown() -> None:
    shown = 0
    for seed in range(300):
        found = slope([list(enumerate(run, 1)) for run in drawn(2.0, 1.0, 5, (4,), seed)])
        assert found is not None
        shown += not found.change.low <= 0 <= found.change.high
    assert shown / 300 <= 0.08
