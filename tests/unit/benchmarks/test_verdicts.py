"""Noise profiles and samples drawn from them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import comparison_error_rate
from benchmarks.figure import share
from benchmarks.noise_profiles import LEAST_SHAPE, draw, load_shapes, shapes_of, variation
from faultline.records.index_entry import IndexEntry
from tests.unit.sample_records import sample


def entries(values: list[float], config_id: str) -> list[IndexEntry]:
    """Return repetitions of one configuration with one known figure."""
    entry = IndexEntry.of(sample())
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


def test_the_error_rates_stay_within_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a few of its draws; always the same ones."""
    monkeypatch.setattr(comparison_error_rate, "QUICK_COMPARISONS", 60)
    found = {name: figure.value for name, figure in comparison_error_rate.run(lambda text: None, quick=True).items()}
    assert found["aa_false_alarms"] <= 0.05 and found["nights_false"] <= 0.1 and found["nights_found_20"] >= 0.9
    assert found["aa_false_alarms"] + found["aa_same"] + found["aa_cannot_tell"] == pytest.approx(1)
    assert found["uneven_nights_alarms"] <= 0.1
