"""False-alarm rate and power of `compare` and of change points, on measured variation (simulation)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.figure import BenchmarkFigure
from benchmarks.monte_carlo import Floats, Study
from benchmarks.noise_profiles import draw, load_shapes, variation
from faultline.comparison.compare import ComparisonVerdict, compare, series_noise
from faultline.comparison.nightly_history import change_points
from faultline.comparison.statistics.estimate import exact_values
from faultline.system.text import Progress

COMPARISONS, QUICK_COMPARISONS = 1000, 100
SLOWDOWN = 1.1
# Repetitions per side: the smallest number that permits a verdict, and twice as many.
SIZES = (5, 10)
RUNS, CHANGE_AT = 30, 18
BASELINE_RUNS = 7
# Steps of the level, in percent.
STEPS = (5, 10, 20)
REPETITIONS = 5
SEED = 2026

Shapes = dict[str, list[float]]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run 1,000 draws for error rates and 200 for each power, or 100 and 20 if `quick`.

    Figures are shares of draws; `low` and `high` are their 95 % interval (Wilson). `aa_…`: verdict on two samples of 5
    from one noise profile, over all profiles. `uneven_nights_alarms`: one nightly run differs from seven, if runs vary
    as much as repetitions. `power_N_SHAPE`: a slowdown by 10 % is found with N repetitions per side. `nights_false`: a
    change point in a series of 30 equal runs; `nights_found_STEP`: a step of STEP percent at run 18 is found to within
    one run; `nights_only_STEP`: it is found, and no other.
    """
    count, shapes = QUICK_COMPARISONS if quick else COMPARISONS, load_shapes()
    each = count // 5
    rng, study = np.random.default_rng(SEED), Study(progress, SEED)
    _equal(study, shapes, count, rng)
    for name, shape in shapes.items():
        for size in SIZES:
            seen = [_slowed(shape, size, rng) is ComparisonVerdict.WORSE for _ in range(each)]
            study.count(f"power_{size}_{name.replace(' ', '_')}", seen)
    study.count("uneven_nights_alarms", [_uneven(shapes, number, rng) for number in range(count)])
    _series(study, shapes, count, rng)
    study.report()
    return study


def _equal(study: Study, shapes: Shapes, count: int, rng: np.random.Generator) -> None:
    """Count the verdicts on samples without difference."""
    each = [_shape(shapes, number) for number in range(count)]
    verdicts = [_verdict(draw(shape, SIZES[0], rng), draw(shape, SIZES[0], rng)) for shape in each]
    study.count("aa_false_alarms", [one in (ComparisonVerdict.WORSE, ComparisonVerdict.BETTER) for one in verdicts])
    study.count("aa_same", [one is ComparisonVerdict.EQUIVALENT for one in verdicts])
    study.count("aa_cannot_tell", [one is ComparisonVerdict.INCONCLUSIVE for one in verdicts])


def _slowed(shape: Sequence[float], size: int, rng: np.random.Generator) -> ComparisonVerdict:
    return _verdict(draw(shape, size, rng), draw(shape, size, rng, level=100.0 * SLOWDOWN))


def _shape(shapes: Shapes, number: int) -> list[float]:
    """Return the profile for the draw with this number; draws use the profiles in turn."""
    return shapes[list(shapes)[number % len(shapes)]]


def _uneven(shapes: Shapes, number: int, rng: np.random.Generator) -> bool:
    """Return whether a nightly run is called better or worse than earlier runs with random levels."""
    shape = _shape(shapes, number)
    levels = 100.0 * np.exp(rng.normal(0.0, variation(shape), BASELINE_RUNS + 1))
    *before, after = [draw(shape, REPETITIONS, rng, level=float(level)) for level in levels]
    pairs = {"cell": (exact_values(np.concatenate(before).tolist()), exact_values(after.tolist()))}
    floors = {"cell": series_noise([exact_values(values.tolist()) for values in before])}
    return compare(pairs, lower_is_better=True, floors=floors)["cell"].verdict in (
        ComparisonVerdict.WORSE,
        ComparisonVerdict.BETTER,
    )


def _verdict(before: Floats, after: Floats) -> ComparisonVerdict:
    pair = exact_values(before.tolist()), exact_values(after.tolist())
    return compare({"cell": pair}, lower_is_better=True)["cell"].verdict


def _series(study: Study, shapes: Shapes, count: int, rng: np.random.Generator) -> None:
    """Count change points in series of nightly runs, with and without a step."""

    def medians(number: int, step: float) -> list[float]:
        shape = _shape(shapes, number)
        return [
            float(np.median(draw(shape, REPETITIONS, rng, level=100.0 + (step if run >= CHANGE_AT else 0.0))))
            for run in range(RUNS)
        ]

    study.count("nights_false", [bool(change_points(medians(number, 0.0))) for number in range(count)])
    for step in STEPS:
        found = [change_points(medians(number, step)) for number in range(count)]
        near = [[abs(index - CHANGE_AT) <= 1 for index in indices] for indices in found]
        study.count(f"nights_found_{step}", [any(one) for one in near])
        study.count(f"nights_only_{step}", [one == [True] for one in near])
