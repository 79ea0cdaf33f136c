"""Calibration of the statistics: methods compared with scipy, and the choice between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import two_sides
from benchmarks.calibration import run
from benchmarks.monte_carlo import Floats, standard_noise
from benchmarks.two_sides import TWO_SIDES, paired, rank_sums, signed_ranks, unpaired
from faultline.comparison.statistics.estimate import PairedRow, ValueRange, estimate


def known(values: Floats) -> tuple[Floats, Floats]:
    """Run values of two sides, (draw, side, run), as recoveries that were seen to end."""
    return values[..., None], values[..., None]


def test_closed_forms_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((20, 2, 6))
    by_pairs, by_samples = paired(*known(values), rng), unpaired(*known(values), rng)
    for number, (before, after) in enumerate(values):
        pairs = stats.ttest_rel(after, before).confidence_interval(0.95)
        samples = stats.ttest_ind(after, before).confidence_interval(0.95)
        assert by_pairs[number, :2] == pytest.approx([pairs.low, pairs.high])
        assert by_samples[number, :2] == pytest.approx([samples.low, samples.high])
        asked = stats.mannwhitneyu(after, before, method="asymptotic").pvalue
        assert rank_sums(values[number : number + 1], values[number : number + 1])[0, 2] == pytest.approx(asked)


def test_an_end_that_was_not_seen_leaves_the_interval_open_where_it_may_be() -> None:
    low = np.arange(10.0).reshape(1, 2, 5)
    high = low.copy()
    high[0, 1, 4] = math.inf
    for method in (paired, unpaired):
        found = method(low[..., None], high[..., None], np.random.default_rng(1))
        assert found[0, 0] > 0 and found[0, 2] < 0.05
    assert signed_ranks(low[..., None], high[..., None], np.random.default_rng(1))[0, :2].tolist() == [
        -math.inf,
        math.inf,
    ]


@pytest.mark.parametrize("open_share", [0.0, 0.15])
def test_what_is_calibrated_is_what_the_product_computes(open_share: float) -> None:
    """Interval and verdict of `estimate`, of pairs and of two samples, with and without open ends."""
    rng = np.random.default_rng(8)
    values = rng.normal(10, 1, (30, 2, 6, 3)) + rng.normal(0, 1, (30, 2, 6, 1))
    watched = float(np.quantile(values, 1 - open_share)) if open_share else math.inf
    low, high = np.minimum(values, watched), np.where(values > watched, math.inf, values)
    for method, rows in (
        (paired, lambda a, b: PairedRow(dict(enumerate(a)), dict(enumerate(b)))),
        (unpaired, PairedRow.unpaired),
    ):
        for number, found in enumerate(method(low, high, rng)):
            sides = [
                [ValueRange(float(np.median(run[0])), float(np.median(run[1]))) for run in zip(*each, strict=True)]
                for each in zip(low[number], high[number], strict=True)
            ]
            one = estimate([rows(*sides)])
            value = one.change.value
            assert (one.change.low, one.change.high) == pytest.approx((min(found[0], value), max(found[1], value)))
            assert math.isnan(found[2]) or one.p == pytest.approx(found[2])


def test_every_question_is_answered_and_the_methods_of_the_product_keep_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(two_sides, "RUNS", (2, 5))
    monkeypatch.setattr(two_sides, "CORRELATIONS", (0.4,))
    figures = run(lines.append, True)
    assert len(lines) == 7
    assert {f"two_sides_{name}_error_normal_5" for name in TWO_SIDES} <= figures.keys()
    for name in ("paired", "apart"):
        errors = [one.value for key, one in figures.items() if key.startswith(f"two_sides_{name}_error")]
        assert np.mean(errors) < 0.12
    assert figures["two_sides_pooled_error_normal_5"].value > 0.07, "recoveries of one run are no runs"
    assert all(0 <= one.value <= 1 for one in figures.values())
    assert standard_noise("skewed", (100_000,), np.random.default_rng(1)).std() == pytest.approx(1.0, abs=0.03)
