"""Depth, silence and area against a count by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.engines.base import Commit
from faultline.records.judge.parts import (
    dip_depth,
    lag_area_of_bins,
    largest_lateness_ms,
    phase_at,
    settled_ns,
)
from faultline.records.judge.signals import Schedule
from faultline.records.judge.timeline import longest_silence
from faultline.system.window import NS

MS = 1_000_000


def _bins(ends_s: list[float], rates: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"end_ns": [int(end * NS) for end in ends_s], "throughput_rps": rates})


@settings(deadline=None)
@given(st.lists(st.floats(0, 500), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_the_dip_is_that_of_the_lowest_bin(rates: list[float], first: int, more: int) -> None:
    ends = [float(index + 1) for index in range(len(rates))]
    until = first + more
    found = dip_depth(_bins(ends, rates), 200.0, 1.0, first * NS, until * NS)
    inside = [rate for end, rate in zip(ends, rates, strict=True) if first < end <= until]
    earlier = [end for end in ends if end <= until]
    if until - (earlier[-1] if earlier else first) >= 10:
        inside.append(0.0)
    if inside:
        assert found == pytest.approx(min(1.0, max(0.0, 1 - min(inside) / 200)))
        assert 0 <= found <= 1
    else:
        assert found is None


def test_an_engine_that_never_commits_again_dipped_to_nothing() -> None:
    bins = _bins([1, 2, 3], [200, 190, 210])
    assert dip_depth(bins, 200.0, 1.0, 3 * NS, 60 * NS) == 1.0
    assert dip_depth(bins, 200.0, 1.0, 2 * NS, 8 * NS) == 0.0
    assert dip_depth(bins, 0.0, 1.0, 2 * NS, 8 * NS) is None


@settings(deadline=None)
@given(st.sets(st.integers(0, 300), max_size=20), st.integers(0, 300), st.integers(1, 200))
def test_the_longest_silence_is_found_among_all_gaps(outputs: set[int], t0: int, length: int) -> None:
    until = t0 + length
    known = sorted(outputs)
    edges = [*known, until] if known and known[-1] < until else known
    gaps = [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b > t0 and a < until]
    found = longest_silence(np.array(known, dtype=np.int64), t0 * MS, until * MS)
    if not gaps:
        assert found is None
    else:
        assert found is not None
        assert found[1] - found[0] == max(b - a for a, b in gaps) * MS
        assert (found[0] // MS, found[1] // MS) in gaps


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8)), max_size=8),
    st.integers(0, 300),
    st.integers(1, 150),
)
def test_the_area_is_the_sum_over_milliseconds(
    due_ms: list[int], steps: list[tuple[int, int]], start: int, length: int
) -> None:
    due_ms = sorted(due_ms)
    records = pd.DataFrame(
        {"partition": 0, "offset": range(len(due_ms)), "timestamp_ms": due_ms, "primer": False},
    )
    commits, offset = [], 0
    for number, (at, more) in enumerate(sorted(steps)):
        offset = min(len(due_ms), offset + more)
        commits.append(Commit(0, number, None, at * MS, {"0": offset}))
    end = start + length
    by_hand = 0
    for at in range(start, end):
        committed = [commit.ends["0"] for commit in commits if commit.committed_ns <= at * MS]
        by_hand += sum(due <= at for due in due_ms) - (committed[-1] if committed else 0)
    assert Schedule(records).lag_area(commits, start * MS, end * MS) == pytest.approx(by_hand / 1000)


def test_the_area_of_bins_is_that_of_trapezoids() -> None:
    bins = pd.DataFrame({"end_ns": [1 * NS, 2 * NS, 4 * NS], "lag": [10, 30, 10]})
    assert lag_area_of_bins(bins, 1 * NS, 4 * NS) == pytest.approx(20 + 40)
    assert lag_area_of_bins(bins, round(1.5 * NS), 2 * NS) == pytest.approx(12.5)
    assert lag_area_of_bins(bins[:0], 0, NS) is None
    # What lies before and behind is no part of it; within, the lag is 20 at 1.5 s, 30 at 2 s and 20 at 3 s.
    assert lag_area_of_bins(bins, round(1.5 * NS), 3 * NS) == pytest.approx(12.5 + 25)


def _latencies(values: list[float], step_s: float = 2.0) -> pd.DataFrame:
    ends = [round((number + 1) * step_s * NS) for number in range(len(values))]
    return pd.DataFrame({"end_ns": ends, "latency_ms": values})


def test_latency_has_settled_when_its_last_level_began() -> None:
    outage, catching_up, after = [9_000.0, 9_500.0, 8_800.0], [6_000.0, 6_100.0, 5_900.0, 6_050.0], [2_400.0, 2_410.0]
    bins = _latencies([2_000.0] * 5 + outage + catching_up + after * 4)
    t0_ns = 10 * NS
    settled = settled_ns(bins, t0_ns, 1_000 * NS)
    assert settled == int(bins["end_ns"].iloc[5 + 3 + 4]), "slower than before, and settled there"
    assert settled_ns(_latencies([2_000.0, 2_010.0] * 10), t0_ns, 1_000 * NS) == t0_ns
    assert settled_ns(bins, t0_ns, 20 * NS) is None, "five bins tell nothing of levels"


@given(st.floats(0, 5), st.floats(0.1, 4))
def test_the_phase_is_the_share_of_a_cycle_since_the_last_commit(since_s: float, checkpoint_interval_s: float) -> None:
    bins = _latencies([1.0, 1.0, 1.0])
    phase = phase_at(bins, round((6 + since_s) * NS), checkpoint_interval_s)
    assert phase == pytest.approx(min(1.0, since_s / checkpoint_interval_s), abs=1e-6)
    assert phase_at(bins, NS, checkpoint_interval_s) is None


def test_the_largest_lateness_is_that_of_the_seconds_of_the_recovery() -> None:
    latest = [(number * NS, ms) for number, ms in enumerate([900.0, 3.0, 400.0, 5.0, 700.0])]
    assert largest_lateness_ms(latest, round(0.5 * NS), round(2.1 * NS)) == 400.0
    assert largest_lateness_ms(latest, 3 * NS, 3 * NS) == 700.0, "the line of a second comes at its end"
    assert largest_lateness_ms(latest, 8 * NS, 9 * NS) is None
