"""Benchmark of sequential decisions: planted effects and correct decisions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import sequential_error_rate as subject
from benchmarks.sequential_error_rate import (
    BLOCKS,
    BUDGET,
    CELLS,
    ERROR,
    MOST,
    NoiseModel,
    noise_models,
    run,
    run_sequential,
)
from faultline.comparison.statistics.sequential import Method, SequentialDecision, SequentialResult, bounds

LIMITS = bounds(Method.T, MOST, BLOCKS, ERROR / (CELLS - 1))


def test_each_cell_is_so_much_more_than_the_one_before() -> None:
    scatter, rng = NoiseModel((0.0, 1e-9), Method.T, level=10.0, resolution=1.0, watched=13.0), np.random.default_rng(1)
    assert scatter.cell(1, 0.2, 1, rng) == [(pytest.approx(11.0), pytest.approx(12.0))]
    assert scatter.cell(2, 0.2, 1, rng) == [(13.0, math.inf)], "longer than the watch"


def test_cells_stop_when_their_comparisons_are_decided() -> None:
    """With hardly any scatter at the first look; with much of it never."""
    rng, quiet, wild = np.random.default_rng(1), NoiseModel((-1e-3, 1e-3), Method.T), NoiseModel((-1.0, 1.0), Method.T)
    first = next(number for number, limit in enumerate(LIMITS, 1) if limit is not None)
    found = run_sequential(quiet, 0.2, LIMITS, rng)
    assert (found.answers, found.experiments) == ([True] * (CELLS - 1), first * CELLS)
    assert run_sequential(wild, 0.05, LIMITS, rng).experiments == BUDGET == BLOCKS * CELLS


@pytest.mark.parametrize(
    ("outcome", "low", "planted", "true"),
    [
        (SequentialDecision.WITHIN, -0.02, 0.05, True),
        (SequentialDecision.WITHIN, -0.02, 0.1, False),
        (SequentialDecision.DIFFERS, 0.04, 0.05, True),
        (SequentialDecision.DIFFERS, 0.06, 0.05, False),
        (SequentialDecision.DIFFERS, -0.5, 0.05, False),
        (SequentialDecision.INCONCLUSIVE, -0.5, 0.05, None),
    ],
)
def test_decisions_are_compared_with_the_planted_step(
    outcome: SequentialDecision, low: float, planted: float, true: bool | None
) -> None:
    assert subject._is_true(SequentialResult(outcome, 0.0, low, low + 0.05, 9, 0.1), planted, 0.1) is true


def test_every_scatter_gets_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "QUICK_SWEEPS", 4)
    monkeypatch.setattr(subject, "QUICK_FIXED", 1)
    monkeypatch.setattr(subject, "PLANTED", (0.0, 0.5))
    figures = run(lambda line: None, quick=True)
    for name in noise_models():
        for part in ("0", "50", "50_fixed_5", "50_fixed_10"):
            assert {f"{name}_{part}_{one}" for one in ("right", "wrong", "seen", "experiments")} <= figures.keys()
    assert figures["cpu_pi_50_right"].value == 1.0
    assert figures["cpu_pi_50_experiments_mean"].value < 60
