"""Shapes of measured scatter, and what is drawn from them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figure import share
from benchmarks.monte_carlo import Study
from benchmarks.shapes import LEAST_SHAPE, draw, load_shapes, shapes_of, variation
from benchmarks.verdicts import _equal, _series, _uneven, run
from faultline.records.summary import Entry
from tests.unit.sample_records import sample


def entries(values: list[float], config_id: str) -> list[Entry]:
    """Repetitions of one configuration, of which one figure is known."""
    entry = Entry.of(sample())
    return [
        replace(entry, config_id=config_id, repetition=repetition, metrics={"latency_ms.p99": value})
        for repetition, value in enumerate(values)
    ]


def test_a_shape_is_the_scatter_within_groups_whatever_their_levels() -> None:
    levels = (1.0, 10.0, 100.0, 1000.0)
    groups = [entry for level in levels for entry in entries([level * one for one in (1, 2, 4)], str(level))]
    (shape,) = shapes_of(groups).values()
    step = math.log(2) * math.sqrt(3 / 2)
    assert shape == pytest.approx([-step] * 4 + [0] * 4 + [step] * 4, abs=1e-5)
    assert shapes_of(groups[: LEAST_SHAPE - 3]) == {}, "too few values"
    assert shapes_of([entry for entry in groups if entry.repetition < 2]) == {}, "too few repetitions"


def test_drawn_values_scatter_as_the_shape_does() -> None:
    rng = np.random.default_rng(1)
    for shape in load_shapes().values():
        drawn = np.log(draw(shape, 20_000, rng, level=50.0))
        # The smoothing adds to the scatter, by a sixth at most for a dozen values.
        assert variation(shape) * 0.9 < drawn.std() < variation(shape) * 1.3
        assert drawn.mean() == pytest.approx(math.log(50) + np.mean(shape), abs=variation(shape) * 0.1)


@given(st.lists(st.booleans(), min_size=1, max_size=500))
def test_a_share_lies_in_its_interval(hits: list[bool]) -> None:
    found = share(hits)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert (found.value, found.n) == (pytest.approx(sum(hits) / len(hits)), len(hits))


def test_the_bound_of_no_hit_in_a_thousand() -> None:
    assert share([False] * 1000).high == pytest.approx(0.0038, abs=1e-4)


def test_draws_keep_the_benchmarks_promise() -> None:
    """A few of its draws; always the same ones."""
    shapes, rng = load_shapes(), np.random.default_rng(1)
    equal, nights = Study(print, 1), Study(print, 1)
    _equal(equal, shapes, 30, rng)
    _series(nights, shapes, 10, rng)
    assert equal["aa_false_alarms"].value <= 0.05
    assert sum(figure.value for figure in equal.values()) == pytest.approx(1)
    assert nights["nights_false"].value <= 0.1
    assert nights["nights_found_20"].value >= 0.9
    assert sum(_uneven(shapes, number, rng) for number in range(10)) <= 1


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_quick_benchmark_keeps_its_promise() -> None:
    figures = run(lambda text: None, quick=True)
    # Of a hundred draws; of a thousand 2 % were seen.
    assert figures["aa_false_alarms"].value <= 0.05
    assert figures["uneven_nights_alarms"].value <= 0.08
    assert figures["nights_found_20"].value >= 0.9
