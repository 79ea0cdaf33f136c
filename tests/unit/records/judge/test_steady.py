"""Steadiness, sustained load and change points of an engine."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge.steady import (
    MIN_LEVEL_VALUES,
    Drift,
    Floats,
    drift_interval,
    is_steady,
    level_starts,
    slope_interval,
    steady_stretch,
    sustained,
    trailing_lengths,
)


@given(st.integers(0, 50), st.integers(6, 24))
def test_planted_change_point_is_found(seed: int, begin: int) -> None:
    noise = 0.02 * np.random.default_rng(seed).standard_normal(30)
    found = level_starts(np.where(np.arange(30) < begin, 10.0, 5.0) + noise)
    assert begin in found
    assert all(MIN_LEVEL_VALUES <= one <= 30 - MIN_LEVEL_VALUES for one in found)


def test_flat_short_or_unknown_series_has_no_change_point() -> None:
    assert level_starts(np.full(30, 7.0)) == []
    assert level_starts(np.array([1.0, 9.0, 1.0, 9.0, 1.0])) == []
    assert level_starts(np.array([1.0] * 10 + [np.nan] * 10)) == []


@pytest.mark.parametrize(("step", "found"), [(3.1, []), (3.3, [10])])
def test_change_point_penalty_is_four_variances_per_log_n(step: float, found: list[int]) -> None:
    """Values alternate by ±1, which gives a robust standard deviation of 2.1.

    Among 21 values, a change in the middle must explain at least 53, which is 5.2 times the square of the step.
    """
    assert level_starts(np.array([100 + (-1) ** n + (step if n >= 10 else 0) for n in range(21)])) == found


def slopes_of(times: Floats, values: Floats) -> list[float]:
    pairs = itertools.combinations(zip(times, values, strict=True), 2)
    return [(v - u) / (t - s) for (s, u), (t, v) in pairs if t != s]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-100, 100)), min_size=4, max_size=12))
def test_drift_is_the_median_of_all_slopes(points: list[tuple[int, int]]) -> None:
    ordered = sorted(points)
    times = np.array([float(t) for t, _ in ordered])
    values = np.array([float(v) for _, v in ordered])
    if np.ptp(times) == 0:
        return
    found = drift_interval(times, values, 7.0)
    assert found is not None
    middle = statistics.median(slopes_of(times, values)) * np.ptp(times) / 7
    assert found.share == pytest.approx(middle)
    assert found.low <= found.share <= found.high


@given(st.integers(4, 30), st.floats(-0.5, 0.5), st.floats(10, 1e4))
def test_drift_of_a_straight_line_is_exact(n: int, share: float, level: float) -> None:
    times = np.arange(n, dtype=float)
    found = drift_interval(times, level * (1 + share * times / (n - 1)), level)
    assert found is not None
    assert (found.share, found.low, found.high) == pytest.approx((share,) * 3, abs=1e-9)
    # At the limit, rounding of both bounds decides.
    assert found.steady is (max(abs(found.low), abs(found.high)) <= 0.25)


def test_confidence_intervals_have_nominal_coverage() -> None:
    random, few, many = np.random.default_rng(11), np.arange(12, dtype=float), np.arange(15, dtype=float)
    drifts = [drift_interval(few, 100 + 2 * few + random.normal(0, 8, 12), 100.0) for _ in range(200)]
    assert 0.9 <= sum(one.low <= 0.22 <= one.high for one in drifts if one is not None) / 200
    random = np.random.default_rng(7)
    slopes = [slope_interval(many, 2 * many + random.normal(0, 4, 15)) for _ in range(400)]
    assert 0.92 <= sum(one[0] <= 2 <= one[1] for one in slopes if one is not None) / 400 <= 0.98


FLAT, NONE = [2000.0] * 10, [float("nan")] * 10
FALLING = [4000 - 200.0 * n for n in range(10)]


@pytest.mark.parametrize(
    ("latency", "lag", "steady"),
    [
        (FLAT, FLAT, True),
        (FALLING, FLAT, False),
        (FLAT, FALLING, False),
        (NONE, FLAT, True),
        ([*NONE[:7], 2000.0, 2000.0, 2000.0], FLAT, False),
        (FLAT[:3], FLAT[:3], False),
        ([], [], False),
    ],
    ids=["both", "latency falls", "lag falls", "no latency", "few values", "few bins", "none"],
)
def test_baseline_is_steady_if_both_signals_are(latency: list[float], lag: list[float], steady: bool) -> None:
    """A signal without values is ignored; one with too few values is not steady."""
    times = np.arange(len(lag), dtype=float)
    found = is_steady(times, np.array(latency), np.array(lag), checkpoint_interval_s=1.0, offered_rps=1000.0)
    assert found[0] is steady


@given(st.integers(4, 60), st.integers(0, 400))
def test_trailing_lengths_grow_from_the_minimum(fewest: int, commits: int) -> None:
    found = trailing_lengths(fewest, commits)
    assert found[:1] == ([fewest] if fewest <= commits else [])
    assert all(a < b <= 1.5 * a + 1 for a, b in itertools.pairwise(found))
    assert all(length <= commits < 2 * found[-1] for length in found)


def test_stretch_grows_until_it_is_decisive() -> None:
    random, times = np.random.default_rng(3), np.arange(40, dtype=float)
    scattered, flat = 1000 * (1 + random.normal(0, 0.08, 40)), np.full(40, 100.0)

    def stretch(latency: Floats, n: int = 40) -> int:
        return steady_stretch(
            times[-n:], latency[-n:], flat[-n:], min_commits=10, checkpoint_interval_s=1, offered_rps=100
        )[0]

    assert stretch(flat) == 10
    assert stretch(scattered) > 10
    # A falling latency is not steady over any length.
    assert stretch(np.linspace(4000, 1000, 40)) == 0
    assert stretch(flat, 9) == 0


def test_steady_module_imports_neither_scipy_nor_pandas() -> None:
    code = "import sys, faultline.records.judge.steady; print(*{'scipy', 'pandas'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not found.stdout.split()


def test_drift_hidden_by_noise_is_not_steady() -> None:
    assert [Drift(0.0, *ends).steady for ends in ((-0.25, 0.25), (-0.26, 0.1), (-0.1, 0.26))] == [True, False, False]
    random, times = np.random.default_rng(5), np.arange(10, dtype=float)
    for spread, least, most in ((3, 100, 100), (60, 0, 10)):
        drawn = [drift_interval(times, 100 + random.normal(0, spread, 10), 100.0) for _ in range(100)]
        assert least <= sum(one.steady for one in drawn if one) <= most


def test_drift_without_values_is_none() -> None:
    times = np.arange(4.0)
    assert drift_interval(times[:3], times[:3], 1.0) is None
    assert drift_interval(times, np.array([1.0, np.nan, 1.0, 1.0]), 1.0) is None
    assert drift_interval(np.zeros(4), times, 1.0) is None
    assert drift_interval(times, times, 0.0) is None


@pytest.mark.parametrize(
    ("growth", "answer"),
    [
        ((-5.0, 10.0), True), ((-50.0, -20.0), True), ((9.9, 10.1), None), ((-100.0, 100.0), None),
        ((10.1, 20.0), False), (None, None),
    ],
)  # fmt: skip
def test_sustained_is_true_false_or_unknown(growth: tuple[float, float] | None, answer: bool | None) -> None:
    assert sustained(growth, 1000.0) is answer
    assert sustained(growth, 0.0) is None


def test_slope_needs_three_points_at_distinct_instants() -> None:
    line = np.array([0.0, 1.0, 2.0])
    assert slope_interval(line[:2], line[:2]) is None
    assert slope_interval(np.array([1.0, 1.0, 1.0]), line) is None
    assert slope_interval(line, 3 * line + 7) == pytest.approx((3, 3))
    # One of three points is off by 0.5: slope 1, standard error 1/sqrt(12), t = 12.706.
    found = slope_interval(line, np.array([0.0, 1.5, 2.0]))
    assert found == pytest.approx((1 - 12.7062 * 12**-0.5, 1 + 12.7062 * 12**-0.5), rel=1e-4)
