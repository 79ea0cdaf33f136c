"""Journals as columns: the same bytes again, and refusal of other content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.journal_columns import from_columns, to_columns
from faultline.system.journal import line_bytes

MOST = 1_000_000
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.decimals(0, 99, places=2))
LINES = st.lists(
    st.fixed_dictionaries(
        {"wall_ns": st.integers(0, 2**62), "kind": st.sampled_from(["proc", "a:5,", "é"])},
        optional={"pid": st.integers(1, 9), "cpu_s": NUMBERS.map(float), "end": st.dictionaries(st.text(), NUMBERS)},
    )
)


def journal_of(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(line_bytes(json.loads(json.dumps(line, default=float))) for line in lines)


@given(LINES)
def test_a_journal_comes_back(lines: list[dict[str, Any]]) -> None:
    journal = journal_of(lines)
    assert from_columns(to_columns(journal), len(journal) + 1) == journal


@given(st.text(alphabet=st.characters(codec="utf-8")), st.text('0123456789-.eE+:,[]{}"\n'))
def test_any_text_comes_back(one: str, other: str) -> None:
    for text in (one, other, f'{{"a":{"9" * 5000},"b":0.{"1" * 40}}}'):
        assert from_columns(to_columns(text.encode()), MOST) == text.encode()


def test_each_process_has_its_own_columns() -> None:
    lines = [
        {"wall_ns": 10**18 + second * 10**9, "pid": pid, "cpu_s": round(pid * 100 + second * 0.25, 2)}
        for second in range(100)
        for pid in (1, 2, 3)
    ]
    stored = to_columns(journal_of(lines))
    assert json.loads(stored)["shapes"][1][1][1] == [2, 20000, *([25] * 99)], "hundredths: the first, then differences"
    assert len(stored) < len(journal_of(lines)) / 2


@given(st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_other_content_is_refused(content: Any) -> None:
    for value in (content, {"order": content, "shapes": content}, {"order": [0], "shapes": [[["a", "b"], content]]}):
        try:
            from_columns(json.dumps(value).encode(), MOST)
        except ValueError:
            continue


PLACES = b'{"order": [0], "shapes": [[["a", "b"], [[1000000000000, 5]]]]}'


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"order": [0], "shapes": []}', PLACES])
def test_damaged_content_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="columns of a journal"):
        from_columns(content, MOST)


def test_a_journal_longer_than_permitted_is_refused() -> None:
    long = json.dumps({"order": [0] * 1000, "shapes": [[["x" * 1000], []]]}).encode()
    with pytest.raises(ValueError, match="at most"):
        from_columns(long, 10_000)
