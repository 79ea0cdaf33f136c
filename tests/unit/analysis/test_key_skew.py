"""The exponent that was asked for is found again in the counts of the input topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from faultline.analysis.key_skew import keys_of
from faultline.experiment.config import parse_configuration
from generators.state import Fillers
from generators.zipf import ZipfLines


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
