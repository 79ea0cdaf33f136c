"""False-alarm rate and power of `compare` and of change points, on measured variation (simulation).

Pure computing on drawn samples: no service, no clock, and the same figures on each machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.figure import Figure, share
from benchmarks.shapes import draw, load_shapes, variation
from faultline.comparison.compare import Verdict, compare, scatter_of_series
from faultline.comparison.nights import change_points
from faultline.comparison.statistics.estimate import Floats, exactly
from faultline.system.text import Say

COMPARISONS, QUICK_COMPARISONS = 1000, 100
SLOWDOWN = 1.1
# The fewest repetitions that get a verdict, and as many as a patient user measures.
SIZES = (5, 10)
NIGHTS, CHANGE_AT = 30, 18
BASELINE_NIGHTS = 7
# Steps of the nightly level, in percent; a night's figure is the median of so many repetitions.
STEPS = (5, 10, 20)
REPETITIONS = 5
SEED = 2026


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """1,000 draws of everything and 200 of each power, or 100 and 20 when `quick`.

    Figures are shares; `low` and `high` are the bounds of 95 % (Wilson). `aa_…`: two samples of 5 from one shape, over
    all shapes. `uneven_nights_alarms`: a night against seven, when nights differ as much as repetitions do.
    `power_N_SHAPE`: a slowdown by 10 % found with N repetitions a side. `nights_false`: series of 30 equal
    nights with a change point; `nights_found_STEP`: a step of so many percent at night 18 found within one night;
    `nights_only_STEP`: and nothing else.
    """
    count, shapes = QUICK_COMPARISONS if quick else COMPARISONS, load_shapes()
    each = count // 5
    rng = np.random.default_rng(SEED)
    figures = _equal(shapes, count, rng)
    for name, shape in shapes.items():
        for size in SIZES:
            seen = share(sum(_slowed(shape, size, rng) is Verdict.WORSE for _ in range(each)), each)
            figures[f"power_{size}_{name.replace(' ', '_')}"] = seen
            say(f"{name}: cv {variation(shape):.1%}, 10 % found in {seen.value:.0%} with {size} a side")
    figures["uneven_nights_alarms"] = share(sum(_uneven(shapes, number, rng) for number in range(count)), count)
    figures |= _series(shapes, count, rng)
    return {name: asdict(figure) for name, figure in figures.items()}


def _equal(shapes: dict[str, list[float]], count: int, rng: np.random.Generator) -> dict[str, Figure]:
    """What is said of samples between which nothing lies."""
    names = list(shapes)
    said: Counter[Verdict] = Counter()
    for number in range(count):
        shape = shapes[names[number % len(names)]]
        said[_verdict(draw(shape, SIZES[0], rng), draw(shape, SIZES[0], rng))] += 1
    return {
        "aa_false_alarms": share(said[Verdict.WORSE] + said[Verdict.BETTER], count),
        "aa_same": share(said[Verdict.SAME], count),
        "aa_cannot_tell": share(said[Verdict.CANNOT_TELL], count),
    }


def _slowed(shape: Sequence[float], size: int, rng: np.random.Generator) -> Verdict:
    return _verdict(draw(shape, size, rng), draw(shape, size, rng, level=100.0 * SLOWDOWN))


def _uneven(shapes: dict[str, list[float]], number: int, rng: np.random.Generator) -> bool:
    """Whether a night against the nights before it is called better or worse, none of which is like another."""
    shape = shapes[list(shapes)[number % len(shapes)]]
    levels = 100.0 * np.exp(rng.normal(0.0, variation(shape), BASELINE_NIGHTS + 1))
    *before, tonight = [draw(shape, REPETITIONS, rng, level=float(level)) for level in levels]
    pairs = {"cell": (exactly(np.concatenate(before).tolist()), exactly(tonight.tolist()))}
    floors = {"cell": scatter_of_series([exactly(night.tolist()) for night in before])}
    return compare(pairs, lower_is_better=True, floors=floors)["cell"].verdict in (Verdict.WORSE, Verdict.BETTER)


def _verdict(before: Floats, after: Floats) -> Verdict:
    pair = exactly(before.tolist()), exactly(after.tolist())
    return compare({"cell": pair}, lower_is_better=True)["cell"].verdict


def _series(shapes: dict[str, list[float]], count: int, rng: np.random.Generator) -> dict[str, Figure]:
    """Series of nights, with and without a change of level."""
    names = list(shapes)

    def nights(number: int, step: float) -> list[float]:
        shape = shapes[names[number % len(names)]]
        return [
            float(np.median(draw(shape, REPETITIONS, rng, level=100.0 + (step if night >= CHANGE_AT else 0.0))))
            for night in range(NIGHTS)
        ]

    figures = {"nights_false": share(sum(bool(change_points(nights(number, 0.0))) for number in range(count)), count)}
    for step in STEPS:
        found = [change_points(nights(number, step)) for number in range(count)]
        near = [[abs(index - CHANGE_AT) <= 1 for index in indices] for indices in found]
        figures[f"nights_found_{step}"] = share(sum(map(any, near)), count)
        figures[f"nights_only_{step}"] = share(sum(one == [True] for one in near), count)
    return figures
