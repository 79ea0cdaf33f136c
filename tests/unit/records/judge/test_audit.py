"""The audit over tables of counts, against a count by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.records.judge.counts import OFFENDERS_PER_KIND, audit, logical_state_bytes, mean_row_bytes

counts = st.none() | st.integers(1, 50)
rows = st.lists(
    st.tuples(counts, counts, st.integers(0, 3), st.integers(0, 2), st.integers(0, 50)).filter(
        lambda row: row[0] is not None or row[1]
    ),
    min_size=1,
    max_size=40,
)


@given(rows, st.booleans())
def test_totals_are_those_of_a_count_by_hand(
    rows: list[tuple[int | None, int | None, int, int, int]], counted: bool
) -> None:
    """Of what is undrained of a key, none, some or all may have been put out. Not `counted`: an older harvest's."""
    rows = [(*row[:4], min(row[4], row[0] or 0) if counted else 0) for row in rows]
    frame = pd.DataFrame(
        [(f"k{i:03}", *row) for i, row in enumerate(rows)],
        columns=["key", "expected", "final", "reemitted", "unreadable", "undrained"],
    ).astype({"expected": "Int64", "final": "Int64"})
    frame = frame if counted else frame.drop(columns="undrained")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.parquet"
        frame.to_parquet(path)
        totals, offenders = audit(path, 4, 12 if counted else 0)
    known = [(expected, expected - beyond, final or 0) for expected, final, _, _, beyond in rows if expected]
    assert totals.expected == sum(drained for _, drained, _ in known)
    assert totals.lost == sum(max(0, drained - final) for _, drained, final in known)
    assert totals.overcounted == sum(max(0, final - expected) for expected, _, final in known)
    assert totals.undrained == (12 if counted else 0)
    assert totals.wrong == sum(row[0] is None for row in rows) + sum(row[3] for row in rows)
    assert totals.reemitted == sum(row[2] for row in rows)
    assert totals.unknown == 4
    for kind in ("lost", "overcounted", "wrong"):
        named = [line["key"] for line in offenders if line["kind"] == kind]
        assert named == sorted(named) and len(named) <= OFFENDERS_PER_KIND
        assert bool(named) == bool(getattr(totals, kind))


def test_a_key_that_nobody_expected_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    rows = [("a", 5, 3, 1, 0), ("b", None, 7, 0, 0), ("c", 2, None, 0, 0), ("d", 1, 4, 0, 2), ("e", 3, 3, 0, 0)]
    frame = pd.DataFrame(rows, columns=["key", "expected", "final", "reemitted", "unreadable"])
    frame.astype({"expected": "Int64", "final": "Int64"}).to_parquet(path)
    totals, offenders = audit(path, 2, 0)
    assert (totals.expected, totals.lost, totals.overcounted, totals.wrong) == (11, 4, 3, 3)
    assert (totals.reemitted, totals.unknown) == (1, 2)
    assert [tuple(line.values()) for line in offenders] == [
        ("lost", "a", 5, 3), ("lost", "c", 2, None), ("overcounted", "d", 1, 4),
        ("wrong", "b", None, 7), ("wrong", "d", 1, 4),
    ]  # fmt: skip


SUMS = st.tuples(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3) | st.none(), SUMS, SUMS | st.none()), min_size=1, max_size=20
    )
)
def test_sums_are_looked_at_where_counts_agree(rows: list[tuple[int, int | None, tuple[int, int], Any]]) -> None:
    """Of numbers that no float keeps apart; a key that was never emitted has neither count nor sum."""
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
    assert totals.sums_differ == len(differ)
    assert [line["key"] for line in offenders if line["kind"] == "sums_differ"] == differ[:OFFENDERS_PER_KIND]
    assert totals.lost == sum(max(0, n - (final or 0)) for n, final, _, _ in rows), "sums change no count"


def test_sums_one_apart_differ_however_large_they_are(tmp_path: Path) -> None:
    """Also in a column with gaps: the last key was never emitted."""
    path, most = tmp_path / "counts.parquet", 2**62
    columns = {"key": ["a", "b", "c"], "expected": 5, "final": [5, 5, None], "reemitted": 0, "unreadable": 0}
    low = {"expected_low": [most] * 3, "final_low": [most, most + 1, None]}
    frame = pd.DataFrame({**columns, "expected_high": 1, "final_high": [1, 1, None], **low}, dtype=object)
    frame = frame.astype({name: "Int64" for name in frame.columns if name != "key"})
    # As Spark writes it: nothing in the file says what pandas is to make of the columns.
    pq.write_table(pa.Table.from_pandas(frame).replace_schema_metadata(None), path)
    totals, offenders = audit(path, None, 0)
    assert totals.sums_differ == 1 and [line["key"] for line in offenders] == ["c", "b"]
    assert (totals.lost, totals.overcounted, totals.wrong) == (5, 0, 0)


def test_without_sums_nothing_is_said_of_them(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    pd.DataFrame({"key": ["a"], "expected": [1], "final": [1], "reemitted": [0], "unreadable": [0]}).to_parquet(path)
    assert audit(path, None, 0)[0].sums_differ is None


def test_of_each_kind_the_first_ten_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    keys = [f"k{number:02}" for number in range(12, 0, -1)]
    pd.DataFrame({"key": keys, "expected": 2, "final": 1, "reemitted": 0, "unreadable": 0}).to_parquet(path)
    totals, offenders = audit(path, None, 0)
    assert totals.lost == 12
    assert [line["key"] for line in offenders] == [f"k{number:02}" for number in range(1, 11)]


def test_a_row_of_the_state_is_its_key_in_utf_8_and_a_counter_of_eight_bytes(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    pd.DataFrame({"key": ["a", "öö", None, "abcdef"]}).to_parquet(path)
    assert mean_row_bytes(path) == (1 + 4 + 6) / 3 + 8
    assert logical_state_bytes(30, path) == 350
    assert logical_state_bytes(None, path) is None
    sums = dict.fromkeys(("expected_high", "expected_low", "final_high", "final_low"), 0)
    pd.DataFrame({"key": ["a", "öö", None, "abcdef"], **sums}).to_parquet(path)
    assert logical_state_bytes(30, path) == 30 * (11 / 3 + 24), "both sums take as much as the counter, each"
    pd.DataFrame({"key": pd.Series([], dtype="str")}).to_parquet(path)
    assert mean_row_bytes(path) is logical_state_bytes(30, path) is None


def test_a_send_without_acknowledgement_is_never_lost(tmp_path: Path) -> None:
    """Two were unacknowledged: one is in the topic and was counted, the other never arrived, so nobody expects it."""
    arrived, counted = ["a", "a", "b"], ["a", "a", "b"]  # and c was sent
    keys = sorted({*arrived, *counted})
    frame = pd.DataFrame(
        {
            "key": keys,
            "expected": [arrived.count(key) for key in keys],  # the batch recomputation reads the topic itself
            "final": [counted.count(key) for key in keys],
            "reemitted": 0,
            "unreadable": 0,
        }
    )
    frame.to_parquet(tmp_path / "counts.parquet")
    totals, offenders = audit(tmp_path / "counts.parquet", 2, 0)
    assert (totals.lost, totals.overcounted, totals.wrong, totals.unknown) == (0, 0, 0, 2)
    assert offenders == []
