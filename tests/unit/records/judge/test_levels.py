"""Where a series changes its level."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.records.judge.steady import LEAST, level_begins


@given(st.integers(0, 50), st.integers(6, 24))
@settings(deadline=None, max_examples=25)
def test_a_planted_level_is_found_where_it_begins(seed: int, begin: int) -> None:
    noise = 0.02 * np.random.default_rng(seed).standard_normal(30)
    found = level_begins(np.where(np.arange(30) < begin, 10.0, 5.0) + noise)
    assert begin in found
    assert all(LEAST <= one <= 30 - LEAST for one in found)


def test_what_is_flat_short_or_unknown_has_no_levels() -> None:
    assert level_begins(np.full(30, 7.0)) == []
    assert level_begins(np.array([1.0, 9.0, 1.0, 9.0, 1.0])) == []
    assert level_begins(np.array([1.0] * 10 + [np.nan] * 10)) == []
