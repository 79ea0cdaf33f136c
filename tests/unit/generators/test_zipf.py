"""The Zipf source draws from the exact distribution, with equal words for equal seeds."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from generators.counter_rng import draw_uniform
from generators.curve import parse_curve
from generators.pacing import SendSchedule
from generators.zipf import (
    TABLE_RANKS,
    TABLES_KEPT,
    WORD_LENGTH,
    InverseCdf,
    MovingExponent,
    RankTable,
    RankTables,
    ZipfLines,
    cumulative,
    estimate_exponent,
    words_of,
)


@given(st.integers(0, 4), st.integers(1, 60))
def test_cumulative_against_exact_fractions(exponent: int, size: int) -> None:
    weights = [Fraction(1, rank**exponent) for rank in range(1, size + 1)]
    exact = [float(sum(weights[: i + 1]) / sum(weights)) for i in range(size)]
    table = cumulative(float(exponent), size)
    assert table[-1] == 1.0
    np.testing.assert_allclose(table, exact, atol=1e-14)


def test_words_are_distinct_letters_and_lines_have_the_asked_words() -> None:
    words = {bytes(word) for word in words_of(np.arange(20_000))}
    assert len(words) == 20_000 and all(word.isalpha() and word.islower() for word in words)
    lines = ZipfLines(1.0, 100, 7, 1, 0).payloads(np.arange(20, dtype=np.uint64))
    assert all([len(word) for word in line.split(b" ")] == [WORD_LENGTH] * 7 for line in lines)


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.8, 1.0, 1.2, 2.0, 3.5])
@pytest.mark.parametrize("size", [50, 10_000])
def test_estimate_recovers_the_exponent(exponent: float, size: int) -> None:
    records = np.arange(5000, dtype=np.uint64)
    lines = ZipfLines(exponent, size, 10, seed=11, repetition=2).payloads(records)
    seen = Counter(word for line in lines for word in line.split(b" "))
    counts = [seen[bytes(word)] for word in words_of(np.arange(size))]
    estimate, low, high = estimate_exponent(counts)
    assert low <= exponent <= high and low < estimate < high
    assert high - low < 0.12


def test_the_interval_covers_and_shrinks() -> None:
    covered, widths = 0, []
    for n in (100, 1000, 10_000):
        for seed in range(100):
            ranks = ZipfLines(0.9, 200, 1, seed, 0).ranks(np.arange(n, dtype=np.uint64))
            _, low, high = estimate_exponent(np.bincount(ranks.ravel(), minlength=200))
            covered += low <= 0.9 <= high
        widths.append(high - low)
    # 300 intervals at 95 %: 285 expected, 3.8 of standard deviation.
    assert 270 <= covered <= 298
    assert widths[0] / widths[1] == pytest.approx(10**0.5, rel=0.2)
    assert widths[1] / widths[2] == pytest.approx(10**0.5, rel=0.1)


def test_the_estimate_is_the_likeliest_exponent() -> None:
    counts = np.array([50, 20, 20, 5, 9])

    def likelihood(exponent: float) -> float:
        weights = np.arange(1, 6) ** -exponent
        return float(counts @ np.log(weights / weights.sum()))

    estimate = estimate_exponent(counts).estimate
    assert likelihood(estimate) > max(likelihood(estimate - 1e-3), likelihood(estimate + 1e-3))
    rising = estimate_exponent(counts[::-1])
    assert rising.estimate < 0 and rising.low < rising.estimate < rising.high
    steep = estimate_exponent([10**9, 1])
    assert steep.estimate == pytest.approx(np.log2(10**9), abs=1e-6)


@pytest.mark.parametrize("counts", [[], [5], [0, 0], [5, 0, 0], [0, 0, 5], [3, -1], [[1, 2], [3, 4]]])
def test_counts_without_an_exponent_are_refused(counts: list[Any]) -> None:
    with pytest.raises(ValueError, match="^counts: "):
        estimate_exponent(counts)


MANY_DRAWS = draw_uniform(5, np.arange(100_000, dtype=np.uint64))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.99, 1.0, 1.01, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("size", [TABLE_RANKS + 1, 300_000, 2_000_000])
def test_long_tables_match_the_whole_table(exponent: float, size: int) -> None:
    expected = cumulative(exponent, size).searchsorted(MANY_DRAWS, side="right")
    found = RankTable(exponent, size).ranks(MANY_DRAWS)
    # Both round a sum of up to two million floats, so a draw may fall between two roundings of a bound.
    assert (found != expected).mean() <= 2e-5 and np.abs(found - expected).max() <= 1


@given(st.floats(0, 3), st.integers(TABLE_RANKS + 1, 10**7), st.floats(0, 1, exclude_max=True))
@example(0.0, 10**7, 0.0)
@example(1.0, 10**7, 1 - 2**-53)
@example(0.0, 10**7, 1 - 2**-53)
def test_far_ranks_match_the_tail(exponent: float, size: int, draw: float) -> None:
    table = RankTable(exponent, size)
    rank = int(table.ranks(np.array([draw]))[0])
    assert 0 <= rank < size
    if TABLE_RANKS <= rank < size - 1:
        left = (1 - draw) * table._total
        here, beyond = table._tail(np.array([rank, rank + 1.0]))
        assert beyond < left and (here >= left or rank == TABLE_RANKS)


@pytest.mark.parametrize("exponent", [0.3, 1.0, 1.4, 2.0])
def test_draws_on_the_bounds_between_ranks(exponent: float) -> None:
    """Draws where the inverse of the leading term is off on either side."""
    table = RankTable(exponent, 3_000_000)
    bounds = np.arange(TABLE_RANKS + 1, 3_000_000 - 1, 97, dtype=np.float64)
    draws = 1 - table._tail(bounds) / table._total
    left = (1 - draws) * table._total
    found = table.ranks(draws)
    assert (np.abs(found - bounds) <= 1).all() and (found != bounds).any() and (found == bounds).any()
    assert (table._tail(found.astype(np.float64)) >= left).all()
    assert (table._tail(found + 1.0) < left).all()


def test_memory_is_bounded_for_any_vocabulary_and_curve() -> None:
    tables = RankTables(10**7)
    for hundredths in range(0, 300):
        tables.table(hundredths)
    assert len(tables._kept) == TABLES_KEPT and list(tables._kept)[-1] == 299
    assert sum(table._table.nbytes for table in tables._kept.values()) <= TABLES_KEPT * TABLE_RANKS * 8
    kept = tables.table(250)
    assert tables.table(250) is kept and list(tables._kept)[-1] == 250


RAMP = parse_curve({"kind": "ramp", "from_s": 10, "until_s": 20, "to": 2}, base=0.5, low=0, high=5)


def test_the_exponent_is_that_of_the_due_time() -> None:
    moving = MovingExponent(RAMP, SendSchedule.for_duration(10.0, 100.0))
    records = np.array([0, 100, 101, 150, 200, 999], dtype=np.uint64)
    # At 10.1 s the ramp is at 0.515, which float64 puts just below or above the middle between two hundredths.
    assert moving.hundredths(records).tolist() in ([50, 50, 51, 125, 200, 200], [50, 50, 52, 125, 200, 200])
    assert moving.at_start(2).tolist() == [50, 50]


def test_varying_source_draws_with_the_current_exponent() -> None:
    moving = ZipfLines(0.5, 500, 10, 3, 1, MovingExponent(RAMP, SendSchedule.for_duration(10.0, 100.0)))
    before, middle, after = (np.arange(k, k + n, dtype=np.uint64) for k, n in ((0, 101), (150, 1), (200, 100)))
    for records, exponent in ((before, 0.5), (middle, 1.25), (after, 2.0)):
        assert moving.payloads(records) == ZipfLines(exponent, 500, 10, 3, 1).payloads(records)
    assert list(moving.preload(5000)) == ZipfLines(0.5, 500, 10, 3, 1).payloads(np.arange(5000, dtype=np.uint64))


DRAWS = draw_uniform(7, np.arange(50_000, dtype=np.uint64))
LAST = np.nextafter(1.0, 0.0)


def as_searched(table: np.ndarray, draws: np.ndarray) -> None:
    found = InverseCdf(table).ranks(draws)
    assert found.shape == draws.shape and found.dtype == np.int64
    assert np.array_equal(found, table.searchsorted(draws, side="right"))


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.5, 5.0])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 65_536, 300_000])
def test_zipf_draws_match_a_binary_search(exponent: float, size: int) -> None:
    table = cumulative(exponent, size)
    bounds = table[:: max(1, size // 1000)]
    near = np.concatenate([bounds, np.nextafter(bounds, 0), np.nextafter(bounds, 1), [0.0, LAST]])
    as_searched(table, near[(near >= 0) & (near < 1)])
    as_searched(table, DRAWS.reshape(-1, 10))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=300),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50),
)
def test_any_table_matches_a_binary_search(bounds: list[float], draws: list[float]) -> None:
    """Equal entries, clustered entries, and tables that end below 1, where a long table continues."""
    as_searched(np.sort(np.array(bounds)), np.array(draws))
    as_searched(np.sort(np.array(bounds)), np.empty((0, 10)))
