"""Bins by batch and by second compared with direct counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.protocol import Commit
from faultline.engines.spark.checkpoint import committed_batches
from faultline.engines.tables import MS, harvest, tuples
from faultline.records.judge.signals import (
    CommitSchedule,
    TopicSchedule,
    bins_between,
    bins_of_batches,
    bins_of_seconds,
    commit_spans,
    median_span_s,
)
from faultline.records.judge.tuples import TUPLE_COLUMNS, fold, fold_tuples
from faultline.records.judge.work import bins_of_work, throughput_rps
from faultline.system.errors import InfrastructureError
from faultline.system.measured_window import NS, Window

WINDOW = Window.of(1_000 * NS, 2, 8, 1)
NO_TUPLES = fold([], WINDOW)


def _records(due_ms: list[int], primer: int = 2) -> pd.DataFrame:
    rows = [(0, offset, 0, True) for offset in range(primer)]
    rows += [(0, primer + index, ms, False) for index, ms in enumerate(sorted(due_ms))]
    return pd.DataFrame(rows, columns=["partition", "offset", "timestamp_ms", "primer"])


@given(
    st.lists(st.integers(1_000_000, 1_012_000), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 20)), min_size=1, max_size=8),
)
def test_batch_bins_equal_a_direct_count(due_ms: list[int], steps: list[tuple[int, int]]) -> None:
    due_ms = sorted(due_ms)
    commits, wall, offset = [Commit(0, 0, None, 999 * NS, {"0": 2})], 1_000 * NS, 2
    for number, (after_ms, more) in enumerate(steps, start=1):
        wall, offset = wall + after_ms * 1_000_000, min(2 + len(due_ms), offset + more)
        commits.append(Commit(0, number, None, wall, {"0": offset}))
    bins = bins_of_batches(commits, TopicSchedule(_records(due_ms)), NO_TUPLES, WINDOW)
    assert len(bins) == len(steps)
    for row, before, commit in zip(bins.itertuples(), commits, commits[1:], strict=False):
        committed = commit.ends["0"] - before.ends["0"]
        span = (commit.committed_ns - max(before.committed_ns, WINDOW.t0_ns)) / NS
        due = sum(ms * 1_000_000 <= commit.committed_ns for ms in due_ms)
        assert row.records == committed
        assert row.span_s == pytest.approx(span)
        assert row.throughput_rps == pytest.approx(committed / span)
        assert row.lag == due - (commit.ends["0"] - 2)
        assert np.isnan(row.latency_ms)


def test_preload_in_a_mixed_batch_is_not_throughput() -> None:
    commits = [Commit(0, 0, None, 1_001 * NS, {"0": 5})]
    bins = bins_of_batches(
        commits, TopicSchedule(_records([1_000_100, 1_000_200, 1_000_300], primer=4)), NO_TUPLES, WINDOW
    )
    assert bins["records"].tolist() == [1]
    assert TopicSchedule(_records([1], primer=4)).preload_backlog(None) == 4
    assert TopicSchedule(_records([1], primer=4)).preload_backlog(Commit(0, 0, None, 1, {"0": 3})) == 1


def test_records_skipped_by_a_new_state_epoch_are_not_throughput() -> None:
    due_ms = [1_000_000 + 100 * index for index in range(100)]
    commits = [
        Commit(0, 0, None, 999 * NS, {"0": 2}),
        Commit(0, 1, None, 1_002 * NS, {"0": 22}),
        Commit(1, 0, None, 1_006 * NS, {"0": 62}, {"0": 52}),
        Commit(1, 1, None, 1_007 * NS, {"0": 72}),
    ]
    bins = bins_of_batches(commits, TopicSchedule(_records(due_ms)), NO_TUPLES, WINDOW)
    assert bins["records"].tolist() == [20, 10, 10]
    assert bins["span_s"].tolist() == [2.0, 4.0, 1.0]
    # Due records minus position; skipped records count as passed.
    assert bins["lag"].tolist() == [21 - 20, 61 - 60, 71 - 70]


def test_latency_of_a_bin_is_the_p99_of_its_batch() -> None:
    rows = [(0, 1, 1_000_000, 1_000_000 + latency, False, 1) for latency in range(1, 201)]
    tuples = fold([pd.DataFrame(rows, columns=TUPLE_COLUMNS)], WINDOW)
    bins = bins_of_batches([Commit(0, 1, None, 1_002 * NS, {"0": 3})], TopicSchedule(_records([1])), tuples, WINDOW)
    assert bins["latency_ms"].tolist() == [198.0]


@given(st.lists(st.tuples(st.integers(0, 9_999), st.integers(0, 3_000), st.integers(1, 5)), min_size=1, max_size=40))
def test_second_bins_equal_a_direct_count(groups: list[tuple[int, int, int]]) -> None:
    rows = [(0, None, 1_000_000 + at, 1_000_000 + at + late, False, n) for at, late, n in groups]
    tuples = fold([pd.DataFrame(rows, columns=TUPLE_COLUMNS)], WINDOW)
    bins = bins_of_seconds(tuples, WINDOW)
    assert len(bins) == 1 + max((at + late) // 1000 for at, late, _ in groups)
    for second, row in enumerate(bins.itertuples()):
        emitted = [(late, n) for at, late, n in groups if (at + late) // 1000 == second]
        out = sum(n for at, late, n in groups if (at + late) // 1000 <= second)
        assert (row.start_ns, row.end_ns) == ((1_000 + second) * NS, (1_001 + second) * NS)
        assert row.records == sum(n for _, n in emitted)
        assert row.lag == sum(n for at, _, n in groups if at // 1000 <= second) - out
        expanded = sorted(late for late, n in emitted for _ in range(n))
        if expanded:
            assert row.latency_ms == expanded[-(-len(expanded) * 990 // 1000) - 1]
        else:
            assert np.isnan(row.latency_ms)


def test_second_bins_count_records_of_several_tuples() -> None:
    rows = [(0, None, 1_000_000, 1_000_000 + late, False, 5) for late in (0, 1_500)]
    tuples = fold([pd.DataFrame(rows, columns=TUPLE_COLUMNS)], WINDOW)
    schedule = TopicSchedule(_records([1_000_000, 1_000_000]))
    bins = bins_of_seconds(tuples, WINDOW, schedule.tuples_per_record(tuples))
    assert bins["records"].tolist() == bins["throughput_rps"].tolist() == [1.0, 1.0]
    assert bins["lag"].tolist() == [1.0, 0.0]


def test_second_bins_without_tuples_are_empty() -> None:
    per_record = TopicSchedule(_records([1_000_000])).tuples_per_record(NO_TUPLES)
    assert bins_of_seconds(NO_TUPLES, WINDOW, per_record)["records"].tolist() == [0]


def _emitted(*counts: tuple[int, int]) -> pd.DataFrame:
    return pd.DataFrame(list(counts), columns=["emitted_ms", "n"], dtype="int64")


def _batches(*times_s: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame([(int(a * NS), int(b * NS)) for a, b in times_s], columns=["start_ns", "end_ns"], dtype="int64")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9),
    st.lists(st.tuples(st.integers(0, 120_000), st.integers(1, 9)), max_size=30),
)
def test_each_tuple_counts_in_one_batch(lengths: list[tuple[int, int]], emissions: list[tuple[int, int]]) -> None:
    """`lengths`: pause and length of each batch, in seconds."""
    times: list[tuple[float, float]] = []
    for pause, length in lengths:
        start = (times[-1][1] if times else 0) + pause
        times.append((start, start + length))
    work = bins_of_work(_emitted(*emissions), _batches(*times))
    assert work["records"].sum() == sum(n for _, n in emissions), "pauses lose no tuple"
    for number, (start, end) in enumerate(times):
        assert work["records"][number] == sum(n for at, n in emissions if start * 1000 <= at <= end * 1000)
    assert (work["end_ns"] > work["start_ns"]).all()


def test_throughput_of_long_batches_is_spread_over_their_duration() -> None:
    """A batch of 20 s that ends after the window counts with the 8 s inside it; the pause before it does not."""
    window = Window(1_000 * NS, 1_005 * NS, 1_015 * NS, NS)
    work = bins_of_work(_emitted((1_003_900, 100), (1_026_500, 400)), _batches((1_001, 1_004), (1_007, 1_027)))
    assert throughput_rps(work, window) == 400 * 8 / 20 / 10


def test_tuples_outside_reported_batches_count_when_emitted() -> None:
    window = Window(1_000 * NS, 1_005 * NS, 1_015 * NS, NS)
    late = _emitted((1_010_000, 30), (1_020_000, 50))
    assert throughput_rps(bins_of_work(late, _batches()), window) == 3
    # A later batch does not change that.
    assert throughput_rps(bins_of_work(late, _batches((1_016, 1_030))), window) == 3


def test_bins_count_by_their_share_in_the_window() -> None:
    bins = pd.DataFrame(
        {"start_ns": [1_001 * NS, 1_003 * NS], "end_ns": [1_003 * NS, 1_005 * NS], "records": [100, 60]}
    )
    # The window of 8 s holds one second of the first bin and both of the second; the rest is empty.
    assert throughput_rps(bins, WINDOW) == pytest.approx((50 + 60) / 8)


def test_bins_belong_to_the_span_of_their_end() -> None:
    bins = pd.DataFrame({"end_ns": [10, 20, 30], "span_s": [1.0, 2.0, 5.0]})
    assert bins_between(bins, 10, 30)["end_ns"].tolist() == [20, 30]
    assert median_span_s(bins) == 2.0
    assert median_span_s(bins[:0]) is None


def test_no_output_gives_one_empty_second() -> None:
    (row,) = bins_of_seconds(NO_TUPLES, WINDOW).itertuples()
    assert (row.batch, row.start_ns, row.end_ns) == (0, 1_000 * NS, 1_001 * NS)
    assert (row.records, row.throughput_rps, row.lag, row.span_s) == (0, 0, 0, 1)


def test_batch_bins_are_in_order_of_time() -> None:
    commits = [Commit(1, 4, None, 1_003 * NS, {"0": 4}), Commit(0, 7, None, 1_001 * NS, {"0": 3})]
    bins = bins_of_batches(commits, TopicSchedule(_records([1_000_000, 1_000_500])), NO_TUPLES, WINDOW)
    assert [tuple(row)[1:7] for row in bins.itertuples()] == [
        (0, 7, 1_000 * NS, 1_001 * NS, 1.0, 1), (1, 4, 1_001 * NS, 1_003 * NS, 2.0, 1)
    ]  # fmt: skip
    at_once = [Commit(0, 1, None, 1_001 * NS, {"0": 3}), Commit(1, 0, None, 1_001 * NS, {"0": 4})]
    bins = bins_of_batches(at_once, TopicSchedule(_records([1_000_000, 1_000_500])), NO_TUPLES, WINDOW)
    assert bins["throughput_rps"].tolist() == [1.0, 1000.0], "the minimum span is one millisecond"


def test_records_are_due_from_their_intended_send_time() -> None:
    schedule = TopicSchedule(_records([1_000_000, 1_000_500, 1_002_000]))
    due = [schedule.due(ns) for ns in (1_000 * NS - 1, 1_000 * NS, 1_000 * NS + 500_000_000, 1_002 * NS)]
    assert due == [0, 1, 2, 3]
    assert schedule.due_record_seconds(1_000 * NS, 1_001 * NS) == pytest.approx(1.5)
    assert schedule.due_record_seconds(1_001 * NS, 1_003 * NS) == pytest.approx(2 + 2 + 1)
    assert schedule.position(None) == 0
    assert [schedule.count_below({"0": offset}) for offset in (0, 2, 3, 99)] == [0, 0, 1, 3]
    assert schedule.count_below({"1": 99}) == 0
    assert schedule.end_offsets == {"0": 5}


T0 = 1_000 * NS


def commits(sizes: list[int], seconds: float = 0.5) -> list[Commit]:
    """Return commits of batches of these sizes, planned in sequence from T0, each committed after `seconds`."""
    made, end, at = [], 0, T0
    for number, size in enumerate(sizes):
        end += size
        made.append(Commit(0, number, at, at + round(seconds * NS), {"0": end}))
        at += round(seconds * NS)
    return made


@given(st.lists(st.integers(1, 10**7), min_size=4, max_size=40))
def test_throughput_is_the_sum_of_batch_sizes(sizes: list[int]) -> None:
    made = commits(sizes)
    window = Window.of(T0, 0.0, len(sizes) * 0.5, 0.5)
    numbering = CommitSchedule(made)
    bins = bins_of_batches(made, numbering, fold([tuples([]).to_pandas()], window), window)
    assert bins["records"].tolist() == sizes
    assert throughput_rps(bins, window) * window.duration_s == pytest.approx(sum(sizes))
    assert not bins["lag"].iloc[-1] and numbering.due(T0 - 1) == 0 and numbering.due(T0) == sizes[0]


def harvest_latencies(folder: Path, made: list[Commit], *empty: int) -> pd.DataFrame:
    """Return the latencies harvested from batches; `empty`: numbers of further batches without events."""
    batches = [
        {"batch": one.number, "planned_wall_ns": one.planned_ns, "committed_wall_ns": one.committed_ns,
         "end_offsets": dict(one.ends)}
        for one in made
    ]  # fmt: skip
    batches += [{**batches[-1], "batch": number} for number in empty]
    (folder / "batches.json").write_text(json.dumps({"batches": batches}))
    config = {"batches": str(folder / "batches.json"), "target": str(folder / "harvest")}
    (folder / "config.json").write_text(json.dumps(config))
    harvest(folder / "config.json")
    return fold_tuples(folder / "harvest" / "tuples.parquet", Window.of(T0, 0.0, 10.0, 1.0)).window


def test_latency_of_events_equals_the_batch_duration(tmp_path: Path) -> None:
    assert harvest_latencies(tmp_path, commits([10, 20, 30]), 3).to_dict("list") == {"latency_ms": [500], "n": [60]}
    files = {path.name for path in (tmp_path / "harvest").iterdir()}
    assert files == {"records.parquet", "tuples.parquet", "counts.parquet"}


def test_only_batches_before_t0_may_be_missing(tmp_path: Path) -> None:
    kept = commits([10, 20, 30, 40])[1:]
    (tmp_path / "gate.json").write_text(json.dumps({"t0_wall_ns": T0}))
    with pytest.raises(InfrastructureError, match="batches before 1 .*batch_events"):
        harvest_latencies(tmp_path, kept)
    (tmp_path / "gate.json").write_text(json.dumps({"t0_wall_ns": T0 + NS}))
    assert harvest_latencies(tmp_path, kept)["n"].sum() == 70


def test_committed_offsets_are_read_from_the_engine_log(tmp_path: Path) -> None:
    offsets = 'v1\n{}\n{"offset":5000000,"timestamp":1000}'
    for name, text in {"offsets/0": offsets, "offsets/1": offsets, "commits/0": "v1\n{}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (batch,) = committed_batches(tmp_path)
    assert batch.ends == {"0": 5_000_000} and batch.committed_ns > (batch.planned_ns or 0) - MS


def test_due_events_by_batch_plan_or_commit_time() -> None:
    """Unplanned batches count from their commit; commits may be in any order."""
    unplanned = Commit(0, 1, None, T0 + 9, {"0": 30})
    numbering = CommitSchedule([unplanned, Commit(0, 0, T0 + 5, T0 + 8, {"0": 10})])
    instants = (0, 4, 5, 8, 9, 10**9)
    assert [numbering.due(T0 + instant) for instant in instants] == [0, 0, 10, 10, 30, 30]
    assert (numbering.count_below({"0": 12, "1": 99}), numbering.count_below({})) == (12, 0)
    assert CommitSchedule([]).due(T0) == 0


@given(st.lists(st.integers(990 * NS, 1_020 * NS), max_size=20))
def test_times_between_commits_are_those_of_the_bins_of_batches(instants: list[int]) -> None:
    commits = [Commit(0, number, None, at_ns, {"0": number}) for number, at_ns in enumerate(sorted(set(instants)))]
    spans, bins = (
        commit_spans(commits, WINDOW),
        bins_of_batches(commits, TopicSchedule(_records([])), NO_TUPLES, WINDOW),
    )
    assert spans["end_ns"].tolist() == bins["end_ns"].tolist()
    # A bin has a minimum length of 1 ms.
    assert spans["span_s"].tolist() == pytest.approx(bins["span_s"].tolist(), abs=0.001)
