"""The search finds the threshold of any engine that has one, with few questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.capacity import PRECISION, highest_sustained

RATES = st.floats(min_value=0.5, max_value=1e6)


@given(limit=RATES, low=RATES, span=st.floats(min_value=1.01, max_value=1e4))
def test_the_answer_brackets_the_limit(limit: float, low: float, span: float) -> None:
    high = low * span
    found = highest_sustained(lambda rate: rate <= limit, low, high)
    if limit < low:
        assert (found.sustained, found.exceeded) == (None, low)
    elif limit >= high:
        assert (found.sustained, found.exceeded) == (high, None)
    else:
        assert found.sustained is not None and found.exceeded is not None
        assert found.sustained <= limit < found.exceeded
        # One rounding to three digits is the slack of the last step.
        assert found.exceeded / found.sustained <= PRECISION * 1.01
    assert len(found.tried) <= 2 + math.ceil(math.log2(max(1.0, math.log(span) / math.log(PRECISION)))) + 2
    assert len({rate for rate, _ in found.tried}) == len(found.tried), "no rate is measured twice"


def test_a_repeated_search_asks_the_same_rates() -> None:
    asked = [highest_sustained(lambda rate: rate < 733, 100, 12_500).tried for _ in range(2)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("low", "high", "precision"), [(0, 1, 1.1), (2, 2, 1.1), (3, 2, 1.1), (1, 2, 1.0)])
def test_senseless_bounds_are_refused(low: float, high: float, precision: float) -> None:
    with pytest.raises(ValueError, match="give"):
        highest_sustained(lambda rate: True, low, high, precision)
