"""A guide gives the very ranks that a search gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.chance import draw_uniform
from generators.zipf import Inversion, cumulative

DRAWS = draw_uniform(7, np.arange(50_000, dtype=np.uint64))
LAST = np.nextafter(1.0, 0.0)


def as_searched(table: np.ndarray, draws: np.ndarray) -> None:
    found = Inversion(table).ranks(draws)
    assert found.shape == draws.shape and found.dtype == np.int64
    assert np.array_equal(found, table.searchsorted(draws, side="right"))


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.5, 5.0])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 65_536, 300_000])
def test_draws_of_zipfs_law_have_the_ranks_that_a_search_finds(exponent: float, size: int) -> None:
    table = cumulative(exponent, size)
    bounds = table[:: max(1, size // 1000)]
    near = np.concatenate([bounds, np.nextafter(bounds, 0), np.nextafter(bounds, 1), [0.0, LAST]])
    as_searched(table, near[(near >= 0) & (near < 1)])
    as_searched(table, DRAWS.reshape(-1, 10))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=300),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50),
)
def test_whatever_the_table_and_the_draws(bounds: list[float], draws: list[float]) -> None:
    """Entries that are equal, that crowd in one place, or that end below 1, where a long table goes on."""
    as_searched(np.sort(np.array(bounds)), np.array(draws))


def test_no_draws_have_no_ranks() -> None:
    as_searched(cumulative(1.0, 10), np.empty((0, 10)))
