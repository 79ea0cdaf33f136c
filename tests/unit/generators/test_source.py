"""Numbered jobs, preload records, and specifications of curves and sources."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.generator_process import send_preload
from generators.pacing import SendSchedule
from generators.send_progress import InputError
from generators.source import FIRST_PRELOAD_ID, MOBY_DICK, ConstantLines, Ids, TextLines, corpus_files
from generators.spec import GeneratorSpec
from generators.state_preload import WORD_CHARACTERS, StateKeys, state_key_count
from generators.stream import make_source, make_state_keys
from tests.unit.generators.conftest import spec_of


def spec(**values: Any) -> GeneratorSpec:
    return spec_of(**{"seconds": 20, **values})


@given(st.integers(0, 10**14), st.integers(1, 50), st.integers(1, 10**7))
def test_ids_are_the_record_numbers(first: int, n: int, iterations: int) -> None:
    payloads = Ids(iterations).payloads(np.arange(first, first + n, dtype=np.uint64))
    assert payloads == [f"{first + j} {iterations}".encode() for j in range(n)]


def test_preload_ids_are_above_any_schedule() -> None:
    # The longest schedule at the highest rate.
    assert SendSchedule.for_duration(10_000_000, 1e7).count <= FIRST_PRELOAD_ID
    assert list(Ids(7).preload(2)) == [b"1000000000000000 7", b"1000000000000001 7"]


class Collector:
    """Sender that collects preload records."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def send_preload_record(self, value: bytes, number: int, partition: int) -> None:
        assert number == len(self.values) and partition == number % 2
        self.values.append(value)

    def flush(self) -> int:
        return 0


@pytest.mark.parametrize("source", ["text", "zipf", "constant", "ids", "stock"])
def test_preload_has_the_lines_of_its_source(source: str) -> None:
    wanted = spec(source=source, primer_lines=5000, streams=["STOCK", "POSITION"])
    made, sender = make_source(wanted), Collector()
    assert send_preload(wanted, made, make_state_keys(wanted), sender) == 5002 == len(sender.values)  # type: ignore[arg-type]
    lines = sender.values[2:]
    assert lines == list(make_source(wanted).preload(5000))
    if source in ("text", "zipf", "constant"):
        assert lines == made.payloads(np.arange(5000, dtype=np.uint64))
    else:
        assert not set(lines) & set(made.payloads(np.arange(10_000, dtype=np.uint64)))
    assert list(ConstantLines(b"x").preload(0)) == []


def test_the_schedule_follows_the_curve() -> None:
    burst = {"kind": "burst", "at_s": 5, "length_s": 1, "to": 2000, "every_s": 10}
    assert spec().total == 10_000
    assert spec(rate_curve=burst).total == 18 * 500 + 2 * 2000
    assert spec(rate_curve={"kind": "constant"}).schedule == spec().schedule
    assert spec(source="ids", iterations=3).total == 10_000
    moving = spec(skew_curve={"kind": "step", "at_s": 5, "to": 2}).skew_exponents
    assert moving is not None and moving.value(0) == 1.0 and moving.value(5) == 2.0


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


def test_bad_corpora_are_named(tmp_path: Path) -> None:
    for folder, content, message in (
        ("nowhere", None, "^corpus: .*nowhere"),
        ("", None, "^corpus: .*txt"),
        ("", b"12 34\n\n", r"a\.txt, line 1: "),
        ("", "gut\nschön\n".encode("latin-1"), r"a\.txt, line 2: .*UTF-8"),
    ):
        if content:
            (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            TextLines.load(str(tmp_path / folder), 10, 1, 0)


# --- state keys: size, seed and touch share


def test_words_are_counted_distinct_incompressible_and_random_access() -> None:
    assert [state_key_count(mb) for mb in (0, 1, 8, 0.0001, 1.024)] == [0, 977, 7813, 1, 1000]
    fillers = StateKeys(1, 0.01, seed=5, repetition=2)
    words = fillers.words(np.arange(fillers.count, dtype=np.uint64))
    assert {len(word) for word in words} == {WORD_CHARACTERS} and len(set(words)) == 977
    assert all(word.isalnum() for word in words)
    block = b"".join(words)
    assert len(zlib.compress(block, 9)) > 0.74 * len(block)  # letters and digits carry 5.95 bits of 8
    again = StateKeys(1, 0.5, seed=5, repetition=2)
    assert again.words(np.array([976, 3], dtype=np.uint64)) == [words[976], words[3]]
    assert StateKeys(1, 0.01, seed=6, repetition=2).words(np.array([3], dtype=np.uint64)) != [words[3]]


@given(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), st.integers(0, 1000))
def test_touch_share(share: float, seed: int) -> None:
    n = 20_000
    touched = StateKeys(1, share, seed, 0).touched(np.arange(n, dtype=np.uint64))
    assert abs(touched.sum() - share * n) <= 6 * (n * share * (1 - share)) ** 0.5
    if share == 0.1:  # both partitions get their part
        assert abs(touched[::2].sum() - touched[1::2].sum()) < 400


def test_append_uses_every_state_key_and_keeps_other_records() -> None:
    fillers = StateKeys(0.01, 0.5, 1, 0)
    records = np.arange(1000, dtype=np.uint64)
    payloads = [b"line"] * 1000
    fillers.append_to(payloads, records)
    touched = fillers.touched(records)
    assert [len(payload) for payload in payloads] == np.where(touched, 5 + WORD_CHARACTERS, 4).tolist()
    used = {payload[5:] for payload in payloads if len(payload) > 4}
    assert used == set(fillers.words(np.arange(fillers.count, dtype=np.uint64)))
    untouched = [b"line"]
    StateKeys(0, 1.0, 1, 0).append_to(untouched, np.zeros(1, dtype=np.uint64))
    assert untouched == [b"line"], "without state"
