"""The calibration of two-level statistics: what it draws, and that it computes what the product computes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.records import made_run
from benchmarks.truth.levels import (
    DRAWS,
    LEAST_RUNS,
    Design,
    calibrate,
    intervals,
    row,
    run,
    split_runs,
    splits_of,
)
from faultline.comparison.statistics.pairs import estimate
from faultline.records.recoveries import Bounds
from faultline.records.summary import Entry


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_recoveries_of_a_run_resemble_each_other_as_much_as_planned(noise: str) -> None:
    low, high = Design(0.6, 4000, 2, noise, 0.0).draw(1, 1.0, np.random.default_rng(1))
    assert (low == high).all() and low.shape == (1, 2, 4000, 2)
    first, second = low[0, 0].T
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0.6, abs=0.08)
    assert low[0, 1].mean() - low[0, 0].mean() == pytest.approx(1.0, abs=0.1)


def test_the_longest_tenth_is_not_seen_to_end() -> None:
    low, high = Design(0.2, 2000, 5, "normal", 0.1).draw(1, 0.0, np.random.default_rng(1))
    assert np.isinf(high).mean() == pytest.approx(0.1, abs=0.01)
    assert np.isfinite(low).all() and (low[np.isinf(high)] == low.max()).all()


@pytest.mark.parametrize("method", ["run_values", "pooled"])
@pytest.mark.parametrize("censored", [0.0, 0.1])
def test_intervals_are_those_of_the_product(method: str, censored: float) -> None:
    rng = np.random.default_rng(2)
    low, high = Design(0.4, 7, 2, "normal", censored).draw(20, 1.0, rng)
    found = intervals(method, low, high, rng)
    for number in range(20):
        ends = [one[number] for one in (low, high)]
        if method == "run_values":
            ends = [np.median(one, axis=2) for one in ends]
        change = estimate([row(*(one.reshape(2, -1) for one in ends))]).change
        assert found[number] == pytest.approx((change.low, change.high))


def test_run_values_keep_their_error_where_pooling_does_not() -> None:
    """A few of its draws; always the same ones."""
    found = calibrate(Design(0.8, 5, 5, "normal", 0.0), 300)
    assert found["run_values"].errors / 300 <= 0.08
    assert found["run_values"].covered / 300 >= 0.92
    assert found["pooled"].errors / 300 >= 0.2


def test_too_few_runs_make_resampling_too_narrow() -> None:
    found = calibrate(Design(0.4, 2, 2, "normal", 0.0), DRAWS)
    assert found["resampled"].errors / found["resampled"].draws >= 0.15
    assert found["run_values"].errors / DRAWS <= 0.08


def test_runs_of_one_configuration_are_split_at_random() -> None:
    rng = np.random.default_rng(4)
    runs = [[Bounds(n, one, one) for n, one in enumerate(10 + 3 * rng.standard_normal() + rng.standard_normal(5), 1)]
            for _ in range(9)]  # fmt: skip
    found = split_runs("c", runs, splits=300)
    assert (found.runs, found.recoveries) == (9, 45)
    assert found.run_values <= 0.1 < found.pooled
    open_ended = split_runs("c", [[Bounds(1, 1.0, None), Bounds(2, 1.0, 2.0)]] * LEAST_RUNS, splits=20)
    assert open_ended.run_values == 0.0


def test_only_configurations_with_enough_runs_are_split() -> None:
    several = [Entry.of(made_run(n, [(8.0, 9.0 + n), (9.0, 10.0 + n)])) for n in range(LEAST_RUNS)]
    few = [Entry.of(made_run(n, [(8.0, 9.0), (9.0, 10.0)], number=5)) for n in range(LEAST_RUNS - 1)]
    (found,) = splits_of([*several, *few], splits=5)
    assert (found.config_id, found.runs) == (several[0].config_id, LEAST_RUNS)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_quick_benchmark_keeps_its_promise() -> None:
    figures = run(lambda text: None, quick=True)
    for name, figure in figures.items():
        assert math.isfinite(figure["value"])
        if name.startswith("run_values_error"):
            assert figure["value"] <= 0.09, name
