"""Ranks come from the exact distribution, at the exponent of the moment, and in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generators import zipf as ranks
from generators.chance import draw_uniform
from generators.curve import parse_curve
from generators.pacing import Schedule
from generators.zipf import HEAD, MovingExponent, RankTable, RankTables, ZipfLines, cumulative

DRAWS = draw_uniform(5, np.arange(100_000, dtype=np.uint64))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.99, 1.0, 1.01, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("size", [HEAD + 1, 300_000, 2_000_000])
def test_long_tables_draw_what_the_whole_table_draws(exponent: float, size: int) -> None:
    expected = cumulative(exponent, size).searchsorted(DRAWS, side="right")
    found = RankTable(exponent, size).ranks(DRAWS)
    # Both round a sum of up to two million floats: a draw may fall between the two roundings of one bound.
    assert (found != expected).mean() <= 2e-5 and np.abs(found - expected).max() <= 1


@given(st.floats(0, 3), st.integers(HEAD + 1, 10**7), st.floats(0, 1, exclude_max=True))
@settings(max_examples=50)
def test_far_ranks_lie_where_the_tail_says(exponent: float, size: int, draw: float) -> None:
    table = RankTable(exponent, size)
    rank = int(table.ranks(np.array([draw]))[0])
    assert 0 <= rank < size
    if HEAD <= rank < size - 1:
        left = (1 - draw) * table._total
        here, beyond = table._tail(np.array([rank, rank + 1.0]))
        assert beyond < left and (here >= left or rank == HEAD)


@pytest.mark.parametrize("exponent", [0.3, 1.0, 1.4, 2.0])
def test_draws_on_the_bounds_between_ranks(exponent: float) -> None:
    """Where the inverse of the leading term alone lands on either side."""
    table = RankTable(exponent, 3_000_000)
    bounds = np.arange(HEAD + 1, 3_000_000 - 1, 97, dtype=np.float64)
    draws = 1 - table._tail(bounds) / table._total
    left = (1 - draws) * table._total
    found = table.ranks(draws)
    assert (np.abs(found - bounds) <= 1).all() and (found != bounds).any() and (found == bounds).any()
    assert (table._tail(found.astype(np.float64)) >= left).all()
    assert (table._tail(found + 1.0) < left).all()


def test_the_ends_of_a_long_table() -> None:
    for exponent in (0.0, 1.0, 2.5):
        found = RankTable(exponent, 10**7).ranks(np.array([0.0, 1 - 2**-53]))
        assert found[0] == 0 and HEAD <= found[1] < 10**7
    assert RankTable(0.0, 10**7).ranks(np.array([0.50000005, 1 - 2**-53])).tolist() == [5_000_000, 10**7 - 1]


def test_memory_is_bounded_whatever_the_vocabulary_and_the_curve() -> None:
    tables = RankTables(10**7)
    for hundredths in range(0, 300):
        tables.table(hundredths)
    assert len(tables._kept) == ranks.TABLES_KEPT and list(tables._kept)[-1] == 299
    assert sum(table._table.nbytes for table in tables._kept.values()) <= ranks.TABLES_KEPT * HEAD * 8
    kept = tables.table(250)
    assert tables.table(250) is kept and list(tables._kept)[-1] == 250


RAMP = parse_curve({"kind": "ramp", "from_s": 10, "until_s": 20, "to": 2}, base=0.5, low=0, high=5)


def test_the_exponent_is_that_of_the_due_time() -> None:
    moving = MovingExponent(RAMP, Schedule.over(10.0, 100.0))
    records = np.array([0, 100, 101, 150, 200, 999], dtype=np.uint64)
    # At 10.1 s the ramp is at 0.515, which float64 puts just below or above the middle between two hundredths.
    assert moving.hundredths(records).tolist() in ([50, 50, 51, 125, 200, 200], [50, 50, 52, 125, 200, 200])
    assert moving.at_start(2).tolist() == [50, 50]


def test_a_moving_source_has_at_each_moment_the_draws_of_that_exponent() -> None:
    moving = ZipfLines(0.5, 500, 10, 3, 1, MovingExponent(RAMP, Schedule.over(10.0, 100.0)))
    before, middle, after = (np.arange(k, k + n, dtype=np.uint64) for k, n in ((0, 101), (150, 1), (200, 100)))
    for records, exponent in ((before, 0.5), (middle, 1.25), (after, 2.0)):
        assert moving.payloads(records) == ZipfLines(exponent, 500, 10, 3, 1).payloads(records)
    assert list(moving.primer(5000)) == ZipfLines(0.5, 500, 10, 3, 1).payloads(np.arange(5000, dtype=np.uint64))


@given(st.integers(0, 2**31), st.integers(1, 299), st.integers(1, 40))
def test_any_chunking_of_a_moving_source_gives_the_same_lines(seed: int, cut: int, step: int) -> None:
    moving = ZipfLines(0.5, 500, 4, seed, 0, MovingExponent(RAMP, Schedule.over(10.0, 100.0)))
    records = np.arange(300, dtype=np.uint64)
    lines = moving.payloads(records)
    assert moving.payloads(records[:cut]) + moving.payloads(records[cut:]) == lines
    assert moving.payloads(records[::step]) == lines[::step]
