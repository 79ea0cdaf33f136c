"""Audit, keys and stages, counted by hand and from what was planted."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.experiment.config import parse_configuration
from faultline.records.judge.counts import (
    LARGEST_VOCABULARY,
    OFFENDERS_PER_KIND,
    audit,
    chain_work,
    keys_of,
    logical_state_bytes,
    mean_row_bytes,
    store_was_not_read,
    unstored,
)
from faultline.records.judge.work import acknowledging
from faultline.records.record import StagesPart
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Events, by_event
from faultline.system.window import Window
from generators.state import Fillers
from generators.zipf import ZipfLines, words_of

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


WINDOW = Window.of(1_000, 0.0, 10.0, 1.0)


def journal(*lines: dict[str, Any]) -> Events:
    return by_event({"wall_ns": 2_000, **line} for line in lines)


def test_an_attempt_without_stages_has_no_such_work(tmp_path: Path) -> None:
    assert chain_work(journal(), None, tmp_path, WINDOW) is None


def test_totals_are_those_after_the_gate(tmp_path: Path) -> None:
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
    assert chain_work(lines, None, tmp_path, WINDOW) == StagesPart(
        signals=1, failed=7, set_aside=2, replacements=2, gap_s=0.75, batch_s=1.5, most_queued=70, unstored=None
    )


@pytest.mark.parametrize("last", ["count", "persist"])
def test_the_batches_of_the_last_stage_are_known_by_their_times(last: str) -> None:
    assert acknowledging(journal()) is None
    lines = journal(
        {"event": "started", "parallelism": {"source": 1, "split": 1, "count": 1, last: 1}},
        {"event": "batch", "stage": last, "seconds": 1.5, "wall_ns": 9_000_000_000},
        {"event": "batch", "stage": "split", "seconds": 1.0, "wall_ns": 9_500_000_000},
        {"event": "batch", "stage": last, "seconds": 8.0, "wall_ns": 8_100_000_000},
    )
    batches = acknowledging(lines)
    assert batches is not None
    rows = list(zip(batches["start_ns"], batches["end_ns"], strict=True))
    assert rows == [(100_000_000, 8_100_000_000), (7_500_000_000, 9_000_000_000)]


def test_the_store_is_compared_with_the_last_acknowledged_counts(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": list("abce"), "final": [1, 3, 1, None]})
    frame.to_parquet(tmp_path / "counts.parquet")
    stored = {"a": 1, "b": 2, "d": 1}
    # b counts less, c is missing, no output acknowledged d
    assert unstored(stored, tmp_path / "counts.parquet") == 3
    found = chain_work(journal({"event": "queued", "most": 1}), stored, tmp_path / "counts.parquet", WINDOW)
    assert found is not None and found.unstored == 3


def test_a_store_that_was_not_read_back_is_known() -> None:
    persisting = journal({"event": "started", "parallelism": {"source": 1, "persist": 1}})
    assert store_was_not_read(persisting, None) and not store_was_not_read(persisting, {})
    assert not store_was_not_read(journal(), None)
    assert not store_was_not_read(journal({"event": "started", "parallelism": {"source": 1}}), None)


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
