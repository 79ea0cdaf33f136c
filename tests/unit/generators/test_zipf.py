"""The Zipf source draws from the exact distribution, and the same words for the same seed."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from generators.zipf import WORD_LENGTH, ZipfLines, cumulative, estimate_exponent, words_of


@given(st.integers(0, 4), st.integers(1, 60))
def test_cumulative_against_exact_fractions(exponent: int, size: int) -> None:
    weights = [Fraction(1, rank**exponent) for rank in range(1, size + 1)]
    exact = [float(sum(weights[: i + 1]) / sum(weights)) for i in range(size)]
    table = cumulative(float(exponent), size)
    assert table[-1] == 1.0
    np.testing.assert_allclose(table, exact, atol=1e-14)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 3.0])
def test_frequencies_follow_the_law(exponent: float) -> None:
    size, n = 50, 40_000
    ranks = ZipfLines(exponent, size, 10, seed=7, repetition=0).ranks(np.arange(n // 10, dtype=np.uint64))
    weights = np.arange(1, size + 1) ** -exponent
    expected = n * weights / weights.sum()
    many = expected >= 5  # the condition of the test; the rest is pooled
    observed = np.bincount(ranks.ravel(), minlength=size)
    seen, due = observed[many].tolist(), expected[many].tolist()
    if not many.all():
        seen, due = [*seen, observed[~many].sum()], [*due, expected[~many].sum()]
    assert chisquare(seen, due).pvalue > 1e-4


@given(st.integers(0, 2**31), st.integers(0, 9), st.integers(1, 100), st.integers(1, 40))
def test_any_chunking_gives_the_same_lines(seed: int, repetition: int, cut: int, step: int) -> None:
    records = np.arange(100, dtype=np.uint64)
    lines = ZipfLines(1.0, 500, 10, seed, repetition).payloads(records)
    again = ZipfLines(1.0, 500, 10, seed, repetition)
    assert again.payloads(records[:cut]) + again.payloads(records[cut:]) == lines
    assert again.payloads(records[::step]) == lines[::step]


def test_seed_and_repetition_change_the_lines() -> None:
    records = np.arange(50, dtype=np.uint64)
    variants = [ZipfLines(1.0, 500, 10, s, r).payloads(records) for s, r in [(1, 0), (2, 0), (1, 1)]]
    assert len({tuple(lines) for lines in variants}) == 3


def test_words_are_distinct_letters_and_lines_have_the_asked_words() -> None:
    words = {bytes(word) for word in words_of(np.arange(20_000))}
    assert len(words) == 20_000 and all(word.isalpha() and word.islower() for word in words)
    lines = ZipfLines(1.0, 100, 7, 1, 0).payloads(np.arange(20, dtype=np.uint64))
    assert all([len(word) for word in line.split(b" ")] == [WORD_LENGTH] * 7 for line in lines)


def test_a_vocabulary_of_one_word() -> None:
    line = ZipfLines(1.0, 1, 3, 1, 0).payloads(np.zeros(1, dtype=np.uint64))[0]
    assert len(set(line.split(b" "))) == 1


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.8, 1.0, 1.2, 2.0, 3.5])
@pytest.mark.parametrize("size", [50, 10_000])
def test_the_exponent_is_found_again_in_the_records(exponent: float, size: int) -> None:
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
