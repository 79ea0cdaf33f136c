"""Cost and error rate of sequential sweeps, compared with fixed repetitions (simulation, 3 minutes).

A sweep has five configurations in a row, with an equal planted step between neighbours and measured noise. Its
comparisons are decided block by block, and the decisions are compared with the planted steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.monte_carlo import Study
from benchmarks.noise_profiles import draw, load_shapes
from faultline.comparison.compare import ComparisonVerdict, compare
from faultline.comparison.decisions import EXTRA_BLOCKS, log_ratio, margin_of
from faultline.comparison.statistics.estimate import NEGLIGIBLE, ValueRange
from faultline.comparison.statistics.sequential import (
    Bounds,
    Method,
    Pair,
    SequentialDecision,
    SequentialResult,
    bounds,
    judge,
)
from faultline.system.text import Progress

# Numbers of sweeps: without a difference (more, for a precise error rate), with one, and in the quick form.
EQUAL_SWEEPS, SWEEPS, QUICK_SWEEPS = 1000, 400, 40
FIXED_SWEEPS, QUICK_FIXED = 200, 4
# Configurations, and the blocks that the budget allows without early decisions; decided ones leave room for more.
CELLS, BLOCKS = 5, 20
BUDGET, MOST = CELLS * BLOCKS, EXTRA_BLOCKS * BLOCKS
# Planted steps. The last one is for recovery times, in which smaller ones cannot be found.
PLANTED = (0.0, 0.05, 0.1, 0.2, 0.5)
SMALLEST, ERROR = 0.1, 0.05
FIXED = (5, 10)
SEED = 2027
# Logarithms of macro recovery ÷ geometric mean of its group, scaled as in `shapes.json`: word count, an executor kill,
# interval 2 s, definition 2, groups of five and seven.
_MACRO = (
    -0.32938, -0.290007, -0.188505, -0.155287, -0.062411, -0.050251, -0.030841, 0.109796, 0.110187, 0.126906, 0.132434,
    0.627357,
)  # fmt: skip


@dataclass(frozen=True)
class NoiseModel:
    """Noise of a metric.

    `level`: value of the first configuration; `resolution`: resolution of a value; `watched`: value from which it is
    censored; all in units of the metric.
    """

    shape: Sequence[float]
    method: Method
    level: float = 100.0
    resolution: float = 0.0
    watched: float = math.inf

    def cell(self, number: int, planted: float, size: int, rng: np.random.Generator) -> list[Pair]:
        """Return the repetitions of the cell with this number, as ranges."""
        values = draw(self.shape, size, rng, level=self.level * (1 + planted) ** number)
        return [(max(0.0, one - self.resolution), one) if one <= self.watched else (self.watched, math.inf)
                for one in values]  # fmt: skip

    @property
    def margin(self) -> float:
        """Equivalence margin, at least the resolution."""
        return max(SMALLEST, self.resolution / self.level)


@dataclass(frozen=True)
class SweepResult:
    """Result of one sweep.

    `answers`: per comparison, whether its decision is true (None: undecided); `seen`: whether a difference was found.
    """

    answers: Sequence[bool | None]
    seen: bool
    experiments: int


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run 400 sweeps for each noise model and planted step (1,000 without a step), and 200 with fixed repetitions.

    If `quick`, 40 and 4. For each noise model SCATTER and PLANTED percent: `SCATTER_PLANTED_right`: share of
    comparisons with a true decision. `…_wrong`: share of sweeps with a false decision. `…_seen`: share of sweeps in
    which a difference was found (at 0: the error rate). `…_experiments`: median, minimum and maximum number over the
    sweeps, of 100 in the budget; `…_experiments_mean`: their mean. With `_fixed_N` after the percent: N repetitions and
    the verdicts of `compare`.
    """
    study = Study(progress, SEED)
    for number, (name, scatter) in enumerate(noise_models().items()):
        rng = study.rng(number)
        limits = bounds(scatter.method, MOST, BLOCKS, ERROR / (CELLS - 1))
        for planted in PLANTED:
            key = f"{name}_{planted * 100:.0f}"
            count = QUICK_SWEEPS if quick else SWEEPS if planted else EQUAL_SWEEPS
            _count_results(study, key, [run_sequential(scatter, planted, limits, rng) for _ in range(count)])
            for size in FIXED:
                fixed = [run_fixed(scatter, planted, size, rng) for _ in range(QUICK_FIXED if quick else FIXED_SWEEPS)]
                _count_results(study, f"{key}_fixed_{size}", fixed)
            study.report()
    return study


def noise_models() -> dict[str, NoiseModel]:
    """Return CPU with little and more variation (9 % and 13 %), and macro recovery (25 %, 2 s of 12, watched 60 s)."""
    shapes = load_shapes()
    return {
        "cpu_pi": NoiseModel(shapes["pi cpu_cores.total"], Method.T),
        "cpu_word_count": NoiseModel(shapes["word_count cpu_cores.total"], Method.T),
        "macro": NoiseModel(_MACRO, Method.RANKS, level=12.0, resolution=2.0, watched=60.0),
    }


def run_sequential(scatter: NoiseModel, planted: float, limits: Bounds, rng: np.random.Generator) -> SweepResult:
    """Run a sweep that stops measuring decided cells, and ends with its budget.

    Both sides of a comparison are measured until it is decided, so the simulation may judge all of their blocks at
    once. A block that exceeds the budget is omitted.
    """
    cells = [scatter.cell(number, planted, MOST, rng) for number in range(CELLS)]
    margin = margin_of(scatter.margin)
    pairs = [
        [log_ratio(a, b) for a, b in zip(one, other, strict=True)] for one, other in zip(cells, cells[1:], strict=False)
    ]
    judged = [judge(one, limits, scatter.method, margin) for one in pairs]
    stops = [one.decided_at or MOST for one in judged]
    needed = [max(stops[max(0, cell - 1) : cell + 1]) for cell in range(CELLS)]
    experiments, last = 0, 0
    for block in range(1, MOST + 1):
        undecided = sum(block <= one for one in needed)
        if not undecided or experiments + undecided > BUDGET:
            break
        experiments, last = experiments + undecided, block
    # Judge again up to the last measured block, because later analyses could decide more than the sweep does.
    judged = [
        judge(one[: min(number, last)], limits, scatter.method, margin)
        for one, number in zip(pairs, stops, strict=True)
    ]
    answers = [_is_true(one, planted, scatter.margin) for one in judged]
    differs = any(one.outcome is SequentialDecision.DIFFERS for one in judged)
    return SweepResult(answers, differs, experiments)


def _is_true(judged: SequentialResult, planted: float, margin: float) -> bool | None:
    """Return whether a decision is true; None if there is none."""
    if judged.outcome is SequentialDecision.WITHIN:
        return planted < margin
    if judged.outcome is SequentialDecision.DIFFERS:
        return 0 < judged.low <= math.log1p(planted)
    return None


def run_fixed(scatter: NoiseModel, planted: float, size: int, rng: np.random.Generator) -> SweepResult:
    """Run a sweep with `size` repetitions, comparing neighbours by `compare`."""
    samples = [[ValueRange(*one) for one in scatter.cell(number, planted, size, rng)] for number in range(CELLS)]
    pairs = {number: (samples[number], samples[number + 1]) for number in range(CELLS - 1)}
    verdicts = [one.verdict for one in compare(pairs, lower_is_better=True).values()]
    true = {
        ComparisonVerdict.WORSE: planted > 0,
        ComparisonVerdict.EQUIVALENT: planted <= NEGLIGIBLE,
        ComparisonVerdict.BETTER: False,
    }
    answers = [true.get(one) for one in verdicts]
    differs = any(one in (ComparisonVerdict.WORSE, ComparisonVerdict.BETTER) for one in verdicts)
    return SweepResult(answers, differs, size * CELLS)


def _count_results(study: Study, key: str, swept: Sequence[SweepResult]) -> None:
    study.count(f"{key}_right", [bool(answer) for one in swept for answer in one.answers])
    study.count(f"{key}_wrong", [False in one.answers for one in swept])
    study.count(f"{key}_seen", [one.seen for one in swept])
    counts = [float(one.experiments) for one in swept]
    mean, half = float(np.mean(counts)), 1.96 * float(np.std(counts)) / math.sqrt(len(counts))
    study[f"{key}_experiments"] = replace(summarise(counts, "experiments"), values=())
    study[f"{key}_experiments_mean"] = BenchmarkFigure(mean, "experiments", mean - half, mean + half, len(counts))
