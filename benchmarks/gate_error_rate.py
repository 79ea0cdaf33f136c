"""False-alarm rate of the regression gate over 90 nightly runs, and its power (simulation, seconds).

Pairs have the noise of consecutively measured runs, and are judged like those of a nightly run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.figure import BenchmarkFigure
from benchmarks.monte_carlo import Bools, Floats, Study, smoothed_draws
from faultline.comparison.regression_gate.verdict import CERTAIN, SUSPECTED, min_p
from faultline.experiment.nightly_file import PAIRS
from faultline.system.text import Progress

SEASON, CONFIGURATIONS = 90, 2
SEASONS, QUICK_SEASONS = 1000, 40
SLOWED, QUICK_SLOWED = 1000, 40
# Numbers of configurations; with several, the correction for several tests applies.
SIZES = (1, CONFIGURATIONS)
PLANTED = (0.05, 0.10, 0.20)
WEEK = 7
SEED = 2028


@dataclass(frozen=True)
class PairNoise:
    """Noise of a metric: log ratios of consecutive runs, and the share of a batch's extra work that reaches it.

    `neighbours`: measured log ratios, from word count (500 lines/s, interval 1 and 2 s, controls and kills of an
    executor) and stock group-by, in five groups of four to nine equal runs. `reach`: share of the metric that a batch's
    work determines: of the latency its execution time, or its part of the engine's CPU time. `resolution`: resolution
    as a share of the metric.
    """

    neighbours: Sequence[float]
    reach: float
    resolution: float = 0.0

    def pairs(self, shape: tuple[int, ...], work: float, rng: np.random.Generator) -> Floats:
        """Return pairs, at the conservative end, in which the tested build does `work` more in each batch.

        The order within a pair is random.
        """
        drawn, width = smoothed_draws(self.neighbours, shape, rng)
        drawn /= math.hypot(1, width / float(np.std(self.neighbours)))  # smoothing must not add variance
        drawn = drawn * rng.choice((-1.0, 1.0), shape) + math.log1p(self.reach * work)
        return np.asarray(drawn - math.log1p(self.resolution))


# CPU per record, median latency, and macro recovery (definition 2, 2 s of 12; kills at 2 s).
NOISE_MODELS = {
    "cpu": PairNoise(
        (-0.1498, -0.1176, -0.1143, -0.1036, -0.0912, -0.078, -0.0609, -0.0466, -0.04, -0.0307, -0.0181, -0.0032,
         -0.003, -0.0015, 0.0052, 0.0155, 0.0211, 0.0216, 0.0247, 0.0331, 0.0565, 0.0609, 0.0836, 0.0948, 0.095,
         0.11, 0.1166, 0.1217, 0.1483, 0.1588, 0.1603),
        0.62,
    ),
    "p50": PairNoise(
        (-0.0858, -0.0717, -0.0527, -0.0497, -0.0493, -0.0418, -0.0408, -0.0266, -0.0227, -0.0204, -0.0188,
         -0.0158, -0.0129, -0.0042, -0.0017, 0.0, 0.0, 0.0035, 0.0142, 0.015, 0.0175, 0.0256, 0.0271, 0.0345,
         0.0354, 0.0667, 0.0689, 0.0752, 0.0797, 0.0888, 0.089),
        0.5,
    ),
    "p99": PairNoise(
        (-0.9679, -0.5274, -0.3022, -0.2692, -0.1005, -0.0845, -0.0736, -0.0715, -0.0554, -0.0509, -0.0387,
         -0.0194, -0.0186, -0.0157, 0.0092, 0.0119, 0.018, 0.0222, 0.0299, 0.0305, 0.0391, 0.0403, 0.0545, 0.0879,
         0.1123, 0.1321, 0.3125, 0.4282, 0.453, 0.7632, 0.7683),
        0.5,
    ),
    "macro": PairNoise(
        (-0.6273, -0.2036, -0.1544, -0.0434, -0.0202, 0.0308, 0.1152, 0.1304, 0.3778, 0.3876, 0.6094, 0.6697),
        1.0,
        2 / 12,
    ),
}  # fmt: skip


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run 1,000 seasons of 90 equal nightly runs, and 1,000 slowdowns of each size per metric; 40 each if `quick`.

    `FIGURE_false_seasons_N`: share of seasons with N configurations in which the gate fails. `FIGURE_WORK_night`: share
    of slowdowns (WORK percent more work per batch) that the first run suspects; `…_two`: share for which the gate fails
    by the second run; `…_week`: by the seventh.
    """
    study = Study(progress, SEED)
    seasons, slowed = (QUICK_SEASONS, QUICK_SLOWED) if quick else (SEASONS, SLOWED)
    for number, (name, scatter) in enumerate(NOISE_MODELS.items()):
        rng = study.rng(number)
        for size in SIZES:
            _, red = judge_runs(scatter.pairs((seasons, SEASON, size, PAIRS), 0.0, rng))
            study.count(f"{name}_false_seasons_{size}", red.any(axis=1))
        for work in PLANTED:
            suspects, red = judge_runs(scatter.pairs((slowed, WEEK, CONFIGURATIONS, PAIRS), work, rng))
            key = f"{name}_{work * 100:.0f}"
            study.count(f"{key}_night", suspects[:, 0])
            study.count(f"{key}_two", red[:, :2].any(axis=1))
            study.count(f"{key}_week", red.any(axis=1))
        study.report()
    return study


def judge_runs(pairs: Floats) -> tuple[Bools, Bools]:
    """Return which runs suspect anything, and which fail. `pairs`: shape (season, run, configuration, pair)."""
    tests = [p_worse(pairs)]
    if pairs.shape[2] > 1:
        scaled = pairs / np.sqrt((pairs**2).mean(axis=3, keepdims=True))
        tests.append(p_worse(scaled.reshape(*pairs.shape[:2], 1, -1)))
    q = stats.false_discovery_control(np.concatenate(tests, axis=2), axis=2)
    suspects, certain = q <= SUSPECTED, q <= CERTAIN
    again = np.zeros_like(suspects)
    again[:, 1:] = suspects[:, 1:] & suspects[:, :-1]
    return suspects.any(axis=2), (again | certain).any(axis=2)


def p_worse(pairs: Floats) -> Floats:
    """Return the gate's one-sided p over the last axis."""
    n = pairs.shape[-1]
    t = pairs.mean(axis=-1) / (pairs.std(axis=-1, ddof=1) / math.sqrt(n))
    return np.asarray(np.maximum(stats.t.sf(t, n - 1), min_p(n)))
