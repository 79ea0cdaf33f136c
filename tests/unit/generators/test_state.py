"""Filler words have the asked size, come from the seed alone, and are touched at the asked share."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.state import WORD_CHARACTERS, Fillers, filler_count


@pytest.mark.parametrize(("mb", "words"), [(0, 0), (1, 977), (8, 7813), (0.0001, 1), (1.024, 1000)])
def test_count(mb: float, words: int) -> None:
    assert filler_count(mb) == words


def test_words_are_distinct_incompressible_and_random_access() -> None:
    fillers = Fillers(1, 0.01, seed=5, repetition=2)
    words = fillers.words(np.arange(fillers.count, dtype=np.uint64))
    assert {len(word) for word in words} == {WORD_CHARACTERS} and len(set(words)) == 977
    assert all(word.isalnum() for word in words)
    block = b"".join(words)
    assert len(zlib.compress(block, 9)) > 0.74 * len(block)  # letters and digits carry 5.95 bits of 8
    again = Fillers(1, 0.5, seed=5, repetition=2)
    assert again.words(np.array([976, 3], dtype=np.uint64)) == [words[976], words[3]]
    assert Fillers(1, 0.01, seed=6, repetition=2).words(np.array([3], dtype=np.uint64)) != [words[3]]


@given(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), st.integers(0, 1000))
def test_touch_share(share: float, seed: int) -> None:
    n = 20_000
    touched = Fillers(1, share, seed, 0).touched(np.arange(n, dtype=np.uint64))
    assert abs(touched.sum() - share * n) <= 6 * (n * share * (1 - share)) ** 0.5
    if share == 0.1:  # both of two partitions get their part
        assert abs(touched[::2].sum() - touched[1::2].sum()) < 400


def test_append_uses_every_filler_and_leaves_the_rest_alone() -> None:
    fillers = Fillers(0.01, 0.5, 1, 0)
    records = np.arange(1000, dtype=np.uint64)
    payloads = [b"line"] * 1000
    fillers.append_to(payloads, records)
    touched = fillers.touched(records)
    assert [len(payload) for payload in payloads] == np.where(touched, 5 + WORD_CHARACTERS, 4).tolist()
    used = {payload[5:] for payload in payloads if len(payload) > 4}
    assert used == set(fillers.words(np.arange(fillers.count, dtype=np.uint64)))


def test_no_state_touches_nothing() -> None:
    payloads = [b"line"]
    Fillers(0, 1.0, 1, 0).append_to(payloads, np.zeros(1, dtype=np.uint64))
    assert payloads == [b"line"]
