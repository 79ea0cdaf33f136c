"""Audit, key skew and stages compared with direct counts and planted values."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.config import parse_configuration
from faultline.records.judge.counts import (
    OFFENDERS_PER_KIND,
    audit,
    count_unstored,
    is_store_unread,
    key_skew_of,
    logical_state_bytes,
    mean_row_bytes,
    stage_work,
)
from faultline.records.judge.work import last_stage_batches
from faultline.records.work_parts import StagesPart
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Events, by_event
from faultline.system.measured_window import Window
from generators.state_preload import StateKeys
from generators.zipf import ZipfLines, words_of

TABLE = ["key", "expected", "final", "reemitted", "unreadable", "undrained"]
counts = st.none() | st.integers(1, 50)
rows = st.lists(
    st.tuples(counts, counts, st.integers(0, 3), st.integers(0, 2), st.integers(0, 50)).filter(
        lambda row: row[0] is not None or row[1]
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes columns as a table of counts."""

    def write(*, dtype: Any = None, **columns: Any) -> Path:
        frame = pd.DataFrame({**columns, "reemitted": 0, "unreadable": 0}, dtype=dtype)
        frame.astype({name: "Int64" for name in frame.columns if name != "key"}).to_parquet(tmp_path / "counts.parquet")
        return tmp_path / "counts.parquet"

    return write


@given(rows, st.booleans())
def test_audit_totals_equal_a_direct_count(
    rows: list[tuple[int | None, int | None, int, int, int]], counted: bool
) -> None:
    """Undrained tuples may have been emitted or not; unexpected keys count as nothing else.

    `counted` is false for older harvests. The first keys of each kind are named.
    """
    rows = [(*row[:4], min(row[4], row[0] or 0) if counted else 0) for row in rows]
    frame = pd.DataFrame([(f"k{99 - i:03}", *row) for i, row in enumerate(rows)], columns=TABLE)
    frame = frame.astype({"expected": "Int64", "final": "Int64"})
    frame = frame if counted else frame.drop(columns="undrained")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.parquet"
        frame.to_parquet(path)
        totals, offenders = audit(path, 4, 12 if counted else 0)
    known = [(expected, expected - beyond, final or 0) for expected, final, _, _, beyond in rows if expected]
    assert totals.expected == sum(drained for _, drained, _ in known)
    assert totals.lost == sum(max(0, drained - final) for _, drained, final in known)
    assert totals.overcounted == sum(max(0, final - expected) for expected, _, final in known)
    assert totals.unexpected == sum(row[0] is None for row in rows) + sum(row[3] for row in rows)
    assert totals.reemitted == sum(row[2] for row in rows)
    assert (totals.undrained, totals.unknown, totals.checksum_mismatches) == (12 if counted else 0, 4, None)
    named: list[tuple[Any, ...]] = []
    for kind, is_one in {
        "lost": lambda expected, final, _, __, beyond: (expected or 0) - beyond > (final or 0),
        "overcounted": lambda expected, final, *_: expected is not None and (final or 0) > expected,
        "unexpected": lambda expected, _, __, unreadable, ___: expected is None or unreadable > 0,
    }.items():
        lines = [(kind, f"k{99 - at:03}", *row[:2]) for at, row in enumerate(rows) if is_one(*row)]
        named += sorted(lines, key=lambda line: line[1])[:OFFENDERS_PER_KIND]
    assert [tuple(line.values()) for line in offenders] == named


SUMS = st.tuples(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3) | st.none(), SUMS, SUMS | st.none()), min_size=1, max_size=20
    )
)
def test_checksums_are_compared_where_counts_agree(rows: list[tuple[int, int | None, tuple[int, int], Any]]) -> None:
    """Checksums exceed the precision of floats; keys never emitted have neither count nor checksum."""
    frame = pd.DataFrame(
        [
            (f"k{number:03}", expected, final, *wanted, *((None, None) if final is None else found or wanted))
            for number, (expected, final, wanted, found) in enumerate(rows)
        ],
        columns=["key", "expected", "final", "expected_high", "expected_low", "final_high", "final_low"],
        dtype=object,
    ).assign(reemitted=0, unreadable=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.parquet"
        frame.astype({name: "Int64" for name in frame.columns if name != "key"}).to_parquet(path)
        totals, offenders = audit(path, None, 0)
    differ = [
        f"k{at:03}" for at, (n, final, wanted, found) in enumerate(rows) if n == final and found not in (None, wanted)
    ]
    assert totals.checksum_mismatches == len(differ)
    assert [line["key"] for line in offenders if line["kind"] == "checksum_mismatches"] == differ[:OFFENDERS_PER_KIND]
    assert totals.lost == sum(max(0, n - (final or 0)) for n, final, _, _ in rows), "checksums change no count"


def test_large_checksums_that_differ_by_one_differ(table: Callable[..., Path]) -> None:
    """The column has a gap, because the last key was never emitted."""
    most = 2**62
    low = {"expected_low": [most] * 3, "final_low": [most, most + 1, None]}
    final = {"final": [5, 5, None], "expected_high": 1, "final_high": [1, 1, None]}
    path = table(dtype=object, key=["a", "b", "c"], expected=5, **final, **low)
    # Spark writes no pandas metadata.
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    totals, offenders = audit(path, None, 0)
    assert totals.checksum_mismatches == 1 and [line["key"] for line in offenders] == ["c", "b"]
    assert (totals.lost, totals.overcounted, totals.unexpected) == (5, 0, 0)


def test_state_row_size_is_utf8_key_plus_counters(table: Callable[..., Path]) -> None:
    keys = ["a", "öö", None, "abcdef"]
    path = table(key=keys)
    assert mean_row_bytes(path) == (1 + 4 + 6) / 3 + 8
    assert logical_state_bytes(30, path) == 350
    assert logical_state_bytes(None, path) is None
    path = table(key=keys, **dict.fromkeys(("expected_high", "expected_low", "final_high", "final_low"), 0))
    assert logical_state_bytes(30, path) == 30 * (11 / 3 + 24), "each checksum is as large as the counter"
    path = table(key=pd.Series([], dtype="str"))
    assert mean_row_bytes(path) is logical_state_bytes(30, path) is None


WINDOW = Window.of(1_000, 0.0, 10.0, 1.0)


def journal(*lines: dict[str, Any]) -> Events:
    return by_event({"wall_ns": 2_000, **line} for line in lines)


def test_stage_totals_start_at_t0(tmp_path: Path) -> None:
    replaced = {"event": "replaced", "stage": "split"}
    lines = journal(
        {"event": "signal", "act": "slow", "wall_ns": 999},
        {"event": "signal", "act": "slow"},
        {"event": "signal", "act": "ease"},
        {"event": "failed", "count": 3},
        {"event": "failed", "count": 4},
        {"event": "set_aside", "count": 2},
        {**replaced, "gap_s": 0.25},
        {**replaced, "gap_s": 0.75},
        {"event": "batch", "stage": "split", "seconds": 1.5},
        {"event": "batch", "stage": "count", "seconds": 9.0},
        {"event": "queued", "stage": "split", "most": 900, "wall_ns": 999},
        {"event": "queued", "stage": "split", "most": 10},
        {"event": "queued", "stage": "count", "most": 70},
        {"event": "queued", "stage": "count", "most": 20},
    )
    assert stage_work(lines, None, tmp_path, WINDOW) == StagesPart(
        signals=1, failed=7, set_aside=2, replacements=2, gap_s=0.75, batch_s=1.5, most_queued=70, unstored=None
    )


@pytest.mark.parametrize("last", ["count", "persist"])
def test_batches_of_the_last_stage_have_start_and_end(last: str) -> None:
    assert last_stage_batches(journal()) is None
    lines = journal(
        {"event": "started", "parallelism": {"source": 1, "split": 1, "count": 1, last: 1}},
        {"event": "batch", "stage": last, "seconds": 1.5, "wall_ns": 9_000_000_000},
        {"event": "batch", "stage": "split", "seconds": 1.0, "wall_ns": 9_500_000_000},
        {"event": "batch", "stage": last, "seconds": 8.0, "wall_ns": 8_100_000_000},
    )
    batches = last_stage_batches(lines)
    assert batches is not None
    rows = list(zip(batches["start_ns"], batches["end_ns"], strict=True))
    assert rows == [(100_000_000, 8_100_000_000), (7_500_000_000, 9_000_000_000)]


def test_store_is_compared_with_acknowledged_counts(table: Callable[..., Path]) -> None:
    path = table(key=list("abce"), final=[1, 3, 1, None])
    stored = {"a": 1, "b": 2, "d": 1}
    # b is too low, c is missing, and d was never acknowledged.
    assert count_unstored(stored, path) == 3
    found = stage_work(journal({"event": "queued", "most": 1}), stored, path, WINDOW)
    assert found is not None and found.unstored == 3
    assert stage_work(journal(), None, path, WINDOW) is None, "an attempt without stages"


def test_unread_store_is_detected() -> None:
    persisting = journal({"event": "started", "parallelism": {"source": 1, "persist": 1}})
    assert is_store_unread(persisting, None) and not is_store_unread(persisting, {})
    assert not is_store_unread(journal(), None)
    assert not is_store_unread(journal({"event": "started", "parallelism": {"source": 1}}), None)


WORDS = {"key": [one.tobytes().decode() for one in words_of(np.arange(3, dtype=np.int64))], "expected": [6, 3, 2]}
CHANGING_SKEW = {"skew": 0.5, "skew_curve": {"kind": "step", "at_s": 5, "to": 1}}


@pytest.mark.parametrize(
    ("config", "columns", "expected", "is_ranked"),
    [
        ({}, {"key": ["__faultline_primer__", "a", "b", "z"], "expected": [4, 5, 2, None], "drawn": [0, 3, 1, None]},
         (None, 0.75, 2), True),
        (CHANGING_SKEW, {"key": ["a", "b"], "expected": [3, 1]}, (None, 0.75, 2), False),
        ({}, {"key": ["a"], "expected": [3]}, (None, 1.0, 1), False),
        ({"skew": 1.0, "vocabulary": 1_000_000}, WORDS, (1.0, 6 / 11, 3), True),
        ({"skew": 1.0, "vocabulary": 1_000_001}, WORDS, (1.0, 6 / 11, 3), False),
    ],
    ids=["preload excluded", "changing skew", "one word", "a million words", "too many words to rank"],
)  # fmt: skip
def test_key_skew_needs_rankable_keys(
    table: Callable[..., Path],
    config: dict[str, Any],
    columns: dict[str, Any],
    expected: tuple[Any, ...],
    is_ranked: bool,
) -> None:
    keys = key_skew_of(table(**columns), parse_configuration(config))
    assert keys is not None and (keys.requested, keys.hottest_share, keys.distinct) == expected
    assert (keys.measured is not None) is is_ranked


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.5])
def test_confidence_interval_contains_the_exponent(table: Callable[..., Path], skew: float) -> None:
    lines = ZipfLines(skew, 1000, 10, seed=3, repetition=0).payloads(np.arange(5000, dtype=np.uint64))
    counts = Counter(word for line in lines for word in line.decode().split(" "))
    filler = StateKeys(0.01, 0.0, 3, 0).words(np.arange(1, dtype=np.uint64))[0].decode()
    path = table(key=[*counts, filler], expected=[*counts.values(), 999_999])
    keys = key_skew_of(path, parse_configuration({"skew": skew, "vocabulary": 1000}))
    assert keys is not None and keys.measured is not None and keys.low is not None and keys.high is not None
    assert keys.requested == skew
    assert keys.low <= skew <= keys.high and keys.high - keys.low < 0.05
    assert keys.distinct == len(counts), "filler words are not keys of the text"
    assert keys.hottest_share == max(counts.values()) / 50_000


def test_words_are_ranked_by_count(table: Callable[..., Path]) -> None:
    """Ten words follow Zipf's law with exponent 1; their names are in another order."""
    counts = {f"w{(7 * rank) % 10}": round(25_200 / (rank + 1)) for rank in range(10)}
    keys = key_skew_of(table(key=list(counts), expected=list(counts.values())), parse_configuration({}))
    assert keys is not None and keys.measured == pytest.approx(1.0, abs=1e-4)
    assert (keys.measured, keys.low, keys.high) == tuple(round(x, 6) for x in (keys.measured, keys.low, keys.high))  # type: ignore[type-var]


def test_no_keys_without_words_and_unreadable_table_is_named(table: Callable[..., Path], tmp_path: Path) -> None:
    assert key_skew_of(tmp_path / "none.parquet", parse_configuration({"workload": "pi"})) is None
    assert key_skew_of(table(key=[], expected=[]), parse_configuration({})) is None
    with pytest.raises(InfrastructureError, match=r"none\.parquet: "):
        key_skew_of(tmp_path / "none.parquet", parse_configuration({}))
