"""The Zipf source draws from the exact distribution, and the same words for the same seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from generators.zipf import WORD_LENGTH, ZipfLines, cumulative, words_of


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
