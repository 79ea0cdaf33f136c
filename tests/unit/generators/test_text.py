"""The text source sends every word of its corpus, in order, for ever; bad corpora are named."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.journal import InputError
from generators.source import MOBY_DICK, TextLines, corpus_files


def cycle(lines: TextLines, n: int | None = None) -> list[bytes]:
    return lines.payloads(np.arange(len(lines) if n is None else n, dtype=np.uint64))


def test_one_cycle_of_moby_dick_holds_every_word_as_often_as_the_book() -> None:
    book = " ".join(path.read_text(encoding="utf-8") for path in corpus_files(MOBY_DICK)).lower()
    expected = Counter(re.findall(r"[a-z]+", book))
    lines = cycle(TextLines.load(MOBY_DICK, 10, seed=1, repetition=0))
    assert Counter(word for line in lines for word in line.decode().split(" ")) == expected
    assert sorted({len(line.split(b" ")) for line in lines})[-1] == 10
    assert sum(len(line.split(b" ")) != 10 for line in lines) <= 1
    assert expected["whale"] > 500


def test_normalisation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Don't  stop!\n\n  Été, 42 x_y\n", encoding="utf-8")
    lines = TextLines.load(str(tmp_path), 10, 1, 0)
    assert cycle(lines) == ["don t stop été x y".encode()]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 2**40))
def test_lines_cycle_from_the_offset(offset: int, size: int, k: int) -> None:
    words = [f"w{i}".encode() for i in range(size)]
    lines = TextLines(words, offset)
    assert lines.payloads(np.array([k, k + size], dtype=np.uint64)) == [words[(offset + k) % size]] * 2
    assert sorted(cycle(lines)) == sorted(words)


def test_seed_and_repetition_choose_the_offset() -> None:
    offsets = [TextLines.load(MOBY_DICK, 10, seed, rep).offset for seed, rep in [(1, 0), (1, 0), (1, 1), (2, 0)]]
    assert offsets[0] == offsets[1] and len(set(offsets)) == 3


def test_bad_corpora_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a directory"):
        TextLines.load(str(tmp_path / "nowhere"), 10, 1, 0)
    with pytest.raises(InputError, match="holds no .txt file"):
        TextLines.load(str(tmp_path), 10, 1, 0)
    (tmp_path / "a.txt").write_text("12 34\n\n")
    with pytest.raises(InputError, match=r"a\.txt, line 1: holds no word"):
        TextLines.load(str(tmp_path), 10, 1, 0)
    (tmp_path / "a.txt").write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.txt, line 2: not UTF-8"):
        TextLines.load(str(tmp_path), 10, 1, 0)
