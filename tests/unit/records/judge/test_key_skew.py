"""The exponent that was asked for is found again in the counts of the input topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from faultline.experiment.config import parse_configuration
from faultline.records.judge.counts import LARGEST_VOCABULARY, keys_of
from faultline.system.errors import InfrastructureError
from generators.state import Fillers
from generators.zipf import ZipfLines, words_of


def counts_file(folder: Path, counts: dict[str, int]) -> Path:
    path = folder / "counts.parquet"
    pd.DataFrame({"key": list(counts), "expected": list(counts.values())}).to_parquet(path)
    return path


def test_the_primer_is_no_draw(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    table = {"key": ["__faultline_primer__", "a", "b", "z"], "expected": [4, 5, 2, None], "drawn": [0, 3, 1, None]}
    pd.DataFrame(table).astype({"expected": "Int64", "drawn": "Int64"}).to_parquet(path)
    keys = keys_of(path, parse_configuration({}))
    assert keys is not None and (keys.hottest_share, keys.distinct) == (0.75, 2)


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.5])
def test_the_exponent_comes_back_within_its_interval(tmp_path: Path, skew: float) -> None:
    lines = ZipfLines(skew, 1000, 10, seed=3, repetition=0).payloads(np.arange(5000, dtype=np.uint64))
    counts = Counter(word for line in lines for word in line.decode().split(" "))
    filler = Fillers(0.01, 0.0, 3, 0).words(np.arange(1, dtype=np.uint64))[0].decode()
    config = parse_configuration({"skew": skew, "vocabulary": 1000})
    keys = keys_of(counts_file(tmp_path, {**counts, filler: 999_999}), config)
    assert keys is not None and keys.measured is not None and keys.low is not None and keys.high is not None
    assert keys.requested == skew
    assert keys.low <= skew <= keys.high and keys.high - keys.low < 0.05
    assert keys.distinct == len(counts), "filler words are no keys of the text"
    assert keys.hottest_share == max(counts.values()) / 50_000


def test_a_moving_skew_has_no_single_exponent(tmp_path: Path) -> None:
    config = parse_configuration({"skew": 0.5, "skew_curve": {"kind": "step", "at_s": 5, "to": 1}})
    keys = keys_of(counts_file(tmp_path, {"a": 3, "b": 1}), config)
    assert keys is not None
    assert (keys.requested, keys.measured, keys.hottest_share, keys.distinct) == (None, None, 0.75, 2)


def test_one_word_has_no_exponent(tmp_path: Path) -> None:
    keys = keys_of(counts_file(tmp_path, {"a": 3}), parse_configuration({}))
    assert keys is not None and (keys.measured, keys.hottest_share, keys.distinct) == (None, 1.0, 1)


def test_workloads_without_words_have_no_keys(tmp_path: Path) -> None:
    assert keys_of(tmp_path / "none.parquet", parse_configuration({"workload": "pi"})) is None


def test_the_words_of_a_text_are_ranked_by_their_counts(tmp_path: Path) -> None:
    """Ten words as often as Zipf's law of exponent 1 says, named so that no other order agrees."""
    counts = {f"w{(7 * rank) % 10}": round(25_200 / (rank + 1)) for rank in range(10)}
    keys = keys_of(counts_file(tmp_path, counts), parse_configuration({}))
    assert keys is not None and keys.measured == pytest.approx(1.0, abs=1e-4)
    assert (keys.measured, keys.low, keys.high) == tuple(round(x, 6) for x in (keys.measured, keys.low, keys.high))  # type: ignore[type-var]


@pytest.mark.parametrize(("vocabulary", "ranked"), [(1_000, True), (1_000_001, False)])
def test_a_vocabulary_of_more_than_a_million_words_is_not_ranked(tmp_path: Path, vocabulary: int, ranked: bool) -> None:
    words = [letters.tobytes().decode() for letters in words_of(np.arange(3, dtype=np.int64))]
    path = counts_file(tmp_path, dict(zip(words, (6, 3, 2), strict=True)))
    keys = keys_of(path, parse_configuration({"skew": 1.0, "vocabulary": vocabulary}))
    assert keys is not None and (keys.requested, keys.hottest_share, keys.distinct) == (1.0, 6 / 11, 3)
    assert (keys.measured is not None) is ranked
    assert LARGEST_VOCABULARY == 1_000_000


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    with pytest.raises(InfrastructureError, match=r"counts\.parquet: cannot be read .*; clear the task harvest"):
        keys_of(path, parse_configuration({}))
    assert keys_of(counts_file(tmp_path, {}), parse_configuration({})) is None
