"""Error rate and power of the statistical methods in use and of rejected ones (simulation, 2 minutes).

There are seven questions, each with many simulated studies that several methods judge:

- two sides: runs with correlated recoveries, none or a tenth of them censored;
- uneven sides: a nightly run with five values against many earlier ones with less variation;
- direction: whether a metric rises over three values of a parameter;
- same: whether a metric stays within 5 %;
- limit: whether a metric exceeds a limit;
- advice: which of three configurations is best;
- blocks: two sides whose runs share half their variance with the paired run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from scipy import stats

from benchmarks.figure import BenchmarkFigure
from benchmarks.monte_carlo import Floats, Study, standard_noise
from benchmarks.two_sides import ALPHA, RESAMPLES, blocks, two_sides
from faultline.system.text import Progress

DRAWS, QUICK_DRAWS = 1000, 40
NEGLIGIBLE = 0.05
SEED = 2046


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run 1,000 studies of each kind, or 40 if `quick`.

    `QUESTION_METHOD_error_CASE`: share of studies with a false result; `…_covers_…`: share whose 95 % interval contains
    the truth; `…_sees_…`: share that find the planted effect. For two sides, `low` and `high` are the minimum and
    maximum over all correlations and numbers of recoveries; otherwise they are the 95 % interval (Wilson).
    """
    draws = QUICK_DRAWS if quick else DRAWS
    study = Study(progress, SEED)
    for question in (two_sides, uneven_sides, direction, same, limit, advice, blocks):
        question(study, draws, study.rng(len(study)))
        study.report()
    return study


# One nightly run against many


def uneven_sides(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Compare five runs with 35 others of equal or half variation; the difference is 0 or one standard deviation."""
    for name, ratio in (("equal", 1.0), ("half", 0.5)):
        few, many = standard_noise("normal", (draws, 5), rng), ratio * standard_noise("normal", (draws, 35), rng)
        for what, planted in (("error", 0.0), ("sees", 1.0)):
            tests = {
                "own_scatter": stats.ttest_ind(few + planted, many, axis=1, equal_var=False).pvalue,
                "one_scatter": stats.ttest_ind(few + planted, many, axis=1).pvalue,
                "gehan": stats.mannwhitneyu(few + planted, many, axis=1).pvalue,
            }
            for method, p in tests.items():
                study.count(f"uneven_sides_{method}_{what}_{name}", p <= ALPHA)


# Claims


def votes_of(*sizes: int) -> Floats:
    """Return the probability of each number of rising pairs, for groups of these sizes without a difference."""
    chances, before = np.ones(1), 0
    for size in sizes:
        counts = np.ones(1)
        for step in range(1, size + 1):  # Gaussian binomial coefficients
            grown = np.pad(counts, (0, before + step)) - np.pad(counts, (before + step, 0))
            for at in range(step, len(grown)):
                grown[at] += grown[at - step]
            counts = grown[: before * step + 1]
        chances = np.convolve(chances, counts / counts.sum())
        before += size
    return chances


DIRECTIONS: Mapping[str, Floats] = {
    "flat": np.array([0.0, 0.0, 0.0]), "line": np.array([0.0, 1.0, 2.0]), "late": np.array([0.0, 0.0, 2.0])
}  # fmt: skip


def direction(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Test three values with 2 to 5 runs each; the last with equal or three times the variation.

    Methods: contrasts of means with separate or pooled variance, and votes of all pairs (Jonckheere and Terpstra).
    """
    for (noise, last), runs, (shape, levels) in itertools.product(
        (("normal", 1), ("heavy", 1), ("normal", 3)), (2, 3, 4, 5), DIRECTIONS.items()
    ):
        values = standard_noise(noise, (draws, 3, runs), rng) * np.array([1.0, 1.0, last])[:, None] + levels[:, None]
        slope, each = values.mean(axis=2)[:, 2] - values.mean(axis=2)[:, 0], values.var(axis=2, ddof=1) / runs
        error = each[:, 0] + each[:, 2]
        freedom = error**2 / ((each[:, 0] ** 2 + each[:, 2] ** 2) / (runs - 1))
        contrast = np.abs(slope) > stats.t.ppf(1 - ALPHA / 2, freedom) * np.sqrt(error)
        one_scatter = np.abs(slope) > stats.t.ppf(1 - ALPHA / 2, 3 * (runs - 1)) * np.sqrt(each.mean(axis=1) * 2)
        rising = sum((values[:, b][:, None] > values[:, a][:, :, None]).sum(axis=(1, 2)) for a, b in
                     itertools.combinations(range(3), 2))  # fmt: skip
        beyond = np.cumsum(votes_of(runs, runs, runs)[::-1])[::-1]
        votes = 2 * beyond[np.maximum(rising, 3 * runs * runs - rising)] <= ALPHA
        what = "error" if shape == "flat" else f"sees_{shape}"
        for method, hits in (("own_scatter", contrast), ("one_scatter", one_scatter), ("votes", votes)):
            study.count(f"direction_{method}_{what}_{noise}{'_uneven' * (last > 1)}_{runs}", hits)


def same(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Test two values with 4, 5 or 10 runs of 1 or 3 % variation: all within the margin, or two one-sided t tests."""
    for runs, scatter, (what, differ) in itertools.product(
        (4, 5, 10), (0.01, 0.03), (("sees", 0.0), ("error", NEGLIGIBLE))
    ):
        values = scatter * standard_noise("normal", (draws, 2, runs), rng)
        values[:, 1] += math.log1p(differ)
        mean = values[:, 1].mean(axis=1) - values[:, 0].mean(axis=1)
        # The 95 % interval within the margin: each test at 2.5 %.
        reach = stats.t.ppf(1 - ALPHA / 2, 2 * runs - 2) * np.sqrt(values.var(axis=2, ddof=1).sum(axis=1) / runs)
        within = (mean + reach <= math.log1p(NEGLIGIBLE)) & (mean - reach >= math.log1p(-NEGLIGIBLE))
        figures = np.exp(values).reshape(draws, -1)
        close = np.ptp(figures, axis=1) <= NEGLIGIBLE * np.median(figures, axis=1)
        case = f"{what}_{scatter:.0%}_{runs}".replace("%", "")
        for method, hits in (("equivalence", within), ("all_close", close)):
            study.count(f"same_{method}_{case}", hits)


def limit(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Test whether 3, 4, 5 or 10 runs exceed a limit: all on one side of it, or Student's t.

    `error`: a verdict in either direction if the limit equals the mean; `sees`: a limit two standard deviations lower.
    """
    for noise, runs, (what, at) in itertools.product(
        ("normal", "heavy", "skewed"), (3, 4, 5, 10), (("error", 0.0), ("sees", 2.0))
    ):
        middle = (1 - math.exp(0.125)) / 0.604 if noise == "skewed" else 0.0
        values = standard_noise(noise, (draws, runs), rng) - middle + at
        raw = np.abs(values.mean(axis=1)) > (
            stats.t.ppf(1 - ALPHA / 2, runs - 1) * values.std(axis=1, ddof=1) / math.sqrt(runs)
        )
        low, high = values.min(axis=1), values.max(axis=1)
        one_side = (low > 0) | (high < 0)
        unanimous = one_side if runs >= 5 else one_side & (np.abs(values).min(axis=1) > high - low)
        for method, hits in (("student", raw), ("unanimous", unanimous)):
            study.count(f"limit_{method}_{what}_{noise}_{runs}", hits)


# Advice


def advice(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Recommend one of three configurations with five repetitions of 7 % variation.

    The first is better by a percentage. It is recommended if the lowest median is best in 80 % of the draws:
    bootstrapped medians of blocks, or means by Student's t.
    """
    normal, free = rng.standard_normal((RESAMPLES, 5)), np.sqrt(4 / rng.chisquare(4, RESAMPLES))
    rows = rng.integers(0, 5, (RESAMPLES, 5))
    for shared, ahead in itertools.product((0.0, 0.5), (0.0, 0.03, 0.05, 0.10)):
        blocks, own = standard_noise("normal", (draws, 1, 5), rng), standard_noise("normal", (draws, 3, 5), rng)
        values = 0.07 * (math.sqrt(shared) * blocks + math.sqrt(1 - shared) * own)
        values[:, 1:] += math.log1p(ahead)
        deviation = values - values.mean(axis=2, keepdims=True)
        by_mean = values.mean(axis=2)[:, :, None] + (deviation @ normal.T) / math.sqrt(5 * 4) * free
        by_median = np.median(values[:, :, rows], axis=3)
        first = np.median(values, axis=2).argmin(axis=1)
        for method, drawn in (("student", by_mean), ("resampled", by_median)):
            least = drawn == drawn.min(axis=1, keepdims=True)
            shares = (least / least.sum(axis=1, keepdims=True)).mean(axis=2)
            conclusive = shares[np.arange(draws), first] >= 0.8
            case = f"{ahead:.0%}{'_blocks' if shared else ''}".replace("%", "")
            study.count(f"advice_{method}_told_{case}", conclusive)
            if ahead and conclusive.any():
                study.count(f"advice_{method}_wrong_{case}", first[conclusive] != 0)
