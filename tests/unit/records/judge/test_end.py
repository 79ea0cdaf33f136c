"""End of a recovery: the definition on synthetic runs, and compared with a naive search."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge.end import (
    ProductionCells,
    RecoveryEnd,
    end_of,
    first_stable_cell,
    lag_recovered_ns,
    p99_ms,
    production_cells,
)
from faultline.records.judge.steady import Limits, limits_from
from faultline.records.judge.tuples import CELL_NS, MS, due_spacing_s, fold_produced, is_sparse
from faultline.system.measured_window import NS, Window

T0_NS = 1_795_241_700_000_000_000
LIMITS = Limits(latency_ms=1000, lag=100, hold_s=10, baseline_p99_ms=800)
INTERVAL_S = 2
END_S = 90


@dataclass
class SyntheticRun:
    """An engine that commits every two seconds, with a latency of 500 ms and a lag of 50 records.

    `latency_ms`: by second of production. `lag`: by commit, the first one at 2 s after T0.
    """

    latency_ms: list[int | None] = field(default_factory=lambda: [500] * END_S)
    lag: list[int] = field(default_factory=lambda: [50] * (END_S // INTERVAL_S))

    def delay_tuples(self, begin_s: int, end_s: int, latency_ms: int | None = 5000) -> SyntheticRun:
        self.latency_ms[begin_s:end_s] = [latency_ms] * (end_s - begin_s)
        return self

    def set_lag(self, begin_s: int, end_s: int, lag: int = 5000) -> SyntheticRun:
        """Set the lag of commits in [begin, end)."""
        for number in range(len(self.lag)):
            if begin_s <= (number + 1) * INTERVAL_S < end_s:
                self.lag[number] = lag
        return self

    def stop_commits(self, after_s: int) -> SyntheticRun:
        del self.lag[after_s // INTERVAL_S :]
        return self

    def recovery_end(self, t5_s: float | None, limits: Limits = LIMITS, until_s: int = END_S) -> RecoveryEnd:
        """Return the end after a fault at 41 s."""
        rows = []
        for second, latency in enumerate(self.latency_ms):
            seen = T0_NS // MS + second * 1000 + (latency or 0)
            rows.append((T0_NS + second * NS, -1 if latency is None else latency, 20, seen, seen))
        produced = pd.DataFrame(rows, columns=["cell_ns", "latency_ms", "n", "first_ms", "last_ms"])
        ends = T0_NS + np.arange(1, len(self.lag) + 1) * INTERVAL_S * NS
        bins = pd.DataFrame({"start_ns": ends - INTERVAL_S * NS, "end_ns": ends, "lag": self.lag})
        return end_of(
            production_cells(produced, limits.latency_ms),
            bins,
            limits,
            t0_ns=at(41),
            t5_ns=None if t5_s is None else at(t5_s),
            produced_until_ns=at(until_s),
            watched_until_ns=at(until_s + INTERVAL_S),
        )


def at(seconds: float) -> int:
    return T0_NS + round(seconds * NS)


LATE, BEHIND = "tuples later than L*", "lag above lag*"
BY_LAG = Limits(latency_ms=None, lag=100, hold_s=10, baseline_p99_ms=None)
LONG = Limits(1000, 100, 20, 800)


@pytest.mark.parametrize(
    ("run", "t5_s", "named", "t6_s", "t7_s", "out_s", "out"),
    [
        pytest.param(SyntheticRun(), 42, {}, 42, 42, 41, "nothing", id="no violation"),
        # The lag recovers at 52. The tuple produced at 49 arrives at 54, after the end; the last late tuple before that
        # arrives at 51.
        pytest.param(
            SyntheticRun().delay_tuples(40, 50).set_lag(40, 52), 48, {}, 52, 52, 51, LATE, id="first tuple on time"
        ),
        pytest.param(
            SyntheticRun().delay_tuples(40, 60).set_lag(40, 52),
            48,
            {},
            52,
            60.5,
            60,
            LATE,
            id="first cell on time after lag",
        ),
        # A tuple produced at 54 is late after L*.
        pytest.param(SyntheticRun().delay_tuples(40, 55, None), 44, {}, 44, 55.5, 55, LATE, id="unreflected is late"),
        pytest.param(
            SyntheticRun().delay_tuples(40, 50).delay_tuples(55, 56),
            48,
            {"limits": LONG},
            48,
            50.5,
            ...,
            LATE,
            id="1 late in 20",
        ),
        # The end is the first cell followed by one late cell at most.
        pytest.param(
            SyntheticRun().delay_tuples(40, 50).delay_tuples(55, 57),
            48,
            {"limits": LONG},
            48,
            57.5,
            ...,
            LATE,
            id="2 late in 20",
        ),
        # The lower bound is 54, when the tuple produced at 49 arrives.
        pytest.param(
            SyntheticRun().delay_tuples(40, 50), 48, {"until_s": 58}, 48, None, 54, LATE, id="observed too briefly"
        ),
        pytest.param(SyntheticRun().set_lag(40, 200), 48, {}, None, None, 90, BEHIND, id="lag never recovers"),
        pytest.param(SyntheticRun(), None, {}, None, None, 90, ..., id="without t5"),
        pytest.param(SyntheticRun().stop_commits(48), 44, {}, None, None, ..., ..., id="no commits after 48 s"),
        # Without latencies the recovery ends when the lag recovers.
        pytest.param(
            SyntheticRun().delay_tuples(40, 80).set_lag(40, 52),
            48,
            {"limits": BY_LAG},
            52,
            52,
            50,
            BEHIND,
            id="by lag",
        ),
        pytest.param(
            SyntheticRun().set_lag(40, 90), 48, {"limits": BY_LAG}, None, None, ..., BEHIND, id="by lag: never"
        ),
        pytest.param(SyntheticRun(), 42, {"limits": BY_LAG}, 42, 42, 41, "nothing", id="by lag: no violation"),
        pytest.param(SyntheticRun(), 48, {"limits": BY_LAG}, 48, 48, 46, "not caught up", id="by lag: uncovered"),
    ],
)
def test_end_is_the_first_tuple_on_time_after_lag_recovered(
    run: SyntheticRun, t5_s: float | None, named: dict[str, Any], t6_s: Any, t7_s: Any, out_s: Any, out: Any
) -> None:
    end = run.recovery_end(t5_s, **named)
    assert (end.t6_ns, end.t7_ns) == (t6_s and at(t6_s), t7_s and at(t7_s))
    assert out_s is ... or end.last_violation_ns == at(out_s)
    assert out is ... or end.violation == out


def test_limits_are_a_share_above_the_baseline_with_a_minimum() -> None:
    found = limits_from(4000, 2000, checkpoint_interval_s=2, rate=500, spacing_s=0.002, within=0.25)
    assert found == Limits(latency_ms=5000, lag=2500, hold_s=10, baseline_p99_ms=4000)
    found = limits_from(100, 10, checkpoint_interval_s=5, rate=500, spacing_s=6.0, within=0.25)
    assert found == Limits(latency_ms=600, lag=260, hold_s=18, baseline_p99_ms=100)
    assert limits_from(1, 1, checkpoint_interval_s=1, rate=1, spacing_s=math.inf, within=0.25).hold_s == 10
    by_lag = limits_from(None, 100, checkpoint_interval_s=2, rate=500, spacing_s=math.inf, within=0.25)
    assert by_lag == Limits(latency_ms=None, lag=200, hold_s=10, baseline_p99_ms=None)


cells = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


@given(cells, st.integers(0, 40), st.integers(0, 45))
def test_first_held_cell_equals_a_naive_search(
    drawn: list[tuple[int, float, bool]], seen_from: int, until: int
) -> None:
    due = np.array([n for n, _, _ in drawn])
    on_time = np.array([n if good else int(n * share) for n, share, good in drawn])
    starts = T0_NS + np.arange(len(drawn)) * CELL_NS
    first = np.where(on_time > 0, starts + 500 * MS, 0)
    made = ProductionCells(starts, due, on_time, first, np.zeros(len(drawn), dtype=np.int64))

    def is_held(index: int) -> bool:
        inside = range(index, min(len(drawn), index + 10))
        enough = sum(on_time[i] for i in inside) >= 0.95 * sum(due[i] for i in inside)
        itself = on_time[index] >= 0.95 * due[index]
        return bool(enough and itself and first[index] >= at(seen_from) and starts[index] + 10 * NS <= at(until))

    expected = next((index for index in range(len(drawn)) if is_held(index)), None)
    assert first_stable_cell(made, LIMITS, at(seen_from), at(until)) == expected


@given(st.lists(st.tuples(st.floats(0.1, 4), st.booleans()), min_size=1, max_size=30), st.floats(0, 40))
def test_lag_recovery_equals_a_naive_search(drawn: list[tuple[float, bool]], t5_s: float) -> None:
    ends = T0_NS + (np.cumsum([span for span, _ in drawn]) * NS).astype(np.int64)
    begins = np.concatenate([[T0_NS], ends[:-1]])
    lag = [50 if good else 5000 for _, good in drawn]
    bins = pd.DataFrame({"start_ns": begins, "end_ns": ends, "lag": lag})
    until = at(60)

    def is_held(index: int) -> bool:
        begin, end = int(ends[index]), int(ends[index]) + 10 * NS
        inside = sum(
            max(0, min(int(ends[i]), end) - max(int(begins[i]), begin)) for i in range(len(drawn)) if drawn[i][1]
        )
        return drawn[index][1] and begin >= at(t5_s) and end <= until and inside >= 0.95 * 10 * NS

    expected = next((int(ends[index]) for index in range(len(drawn)) if is_held(index)), None)
    assert lag_recovered_ns(bins, LIMITS, at(t5_s), until) == expected


@pytest.mark.parametrize("t5_s", [44, 60])
def test_end_is_after_the_last_violation(t5_s: float) -> None:
    end = SyntheticRun().delay_tuples(40, 50).set_lag(40, 46).recovery_end(t5_s)
    assert end.t6_ns is not None and end.t7_ns is not None
    assert at(41) <= end.last_violation_ns < end.t7_ns and end.t6_ns <= end.t7_ns


T0_MS = T0_NS // MS
FIVE_S = Window.of(T0_NS, warmup_s=0, duration_s=5, checkpoint_interval_s=1)

# Production time after T0 in ms, latency in ms (None if never emitted), and number of tuples.
TupleGroup = tuple[int, int | None, int]
drawn = st.lists(
    st.tuples(st.integers(-3_000, 8_000), st.none() | st.integers(0, 5_000), st.integers(1, 4)), min_size=1, max_size=60
)


def frame(tuples: list[TupleGroup], *, primer: bool = False) -> pd.DataFrame:
    """Return a harvested table of tuples."""
    return pd.DataFrame(
        {
            "lineage": 0,
            "batch": 1,
            "produced_ms": [T0_MS + produced for produced, _, _ in tuples],
            "emitted_ms": pd.array(
                [None if latency is None else T0_MS + produced + latency for produced, latency, _ in tuples],
                dtype="Int64",
            ),
            "primer": primer,
            "n": [n for _, _, n in tuples],
        }
    )


def folded(tuples: list[TupleGroup], cell_length_ns: int = CELL_NS) -> pd.DataFrame:
    return fold_produced([frame(tuples)], FIVE_S, cell_length_ns)


@given(drawn, st.integers(0, 5_000), st.sampled_from([CELL_NS, MS]))
def test_cells_count_due_and_on_time_tuples(tuples: list[TupleGroup], limit_ms: int, cell_length_ns: int) -> None:
    due: dict[int, int] = defaultdict(int)
    good: dict[int, int] = defaultdict(int)
    first: dict[int, int] = {}
    late: dict[int, int] = {}
    for produced, latency, n in tuples:
        cell = T0_NS + produced * MS // cell_length_ns * cell_length_ns
        due[cell] += n
        if latency is not None and latency <= limit_ms:
            good[cell] += n
            emitted = (T0_MS + produced + latency) * MS
            first[cell] = min(first.get(cell, emitted), emitted)
        else:
            known = (T0_MS + produced + (limit_ms if latency is None else latency)) * MS
            late[cell] = max(late.get(cell, 0), known)
    cells = production_cells(folded(tuples, cell_length_ns), limit_ms)
    assert cells.start_ns.tolist() == sorted(due)
    assert cells.due.tolist() == [due[cell] for cell in sorted(due)]
    assert cells.on_time.tolist() == [good[cell] for cell in sorted(due)]
    assert cells.first_ns.tolist() == [first.get(cell, 0) for cell in sorted(due)]
    assert cells.late_ns.tolist() == [late.get(cell, 0) for cell in sorted(due)]


@given(drawn, st.integers(0, 60))
def test_cells_do_not_depend_on_chunks(tuples: list[TupleGroup], cut: int) -> None:
    whole = folded(tuples)
    parts = fold_produced([frame(part) for part in (tuples[:cut], tuples[cut:]) if part], FIVE_S)
    pd.testing.assert_frame_equal(whole, parts)


def test_preload_is_not_production() -> None:
    assert fold_produced([frame([(0, 5, 9)], primer=True)], FIVE_S).empty


@given(drawn)
def test_p99_covers_tuples_emitted_by_the_cutoff(tuples: list[TupleGroup]) -> None:
    seen_by = 4_000
    found = p99_ms(folded(tuples, MS), T0_NS, T0_NS + 3 * CELL_NS, emitted_by_ns=T0_NS + seen_by * MS)
    values = np.sort(
        [
            latency
            for produced, latency, n in tuples
            for _ in range(n)
            if latency is not None and 0 <= produced < 3_000 and produced + latency <= seen_by
        ]
    )
    assert found == (None if not len(values) else values[-(-len(values) * 99 // 100) - 1])


def test_few_tuples_per_second_are_sparse() -> None:
    many = folded([(second * 1000, 5, 10) for second in range(5)])
    assert not is_sparse(many, FIVE_S)
    assert is_sparse(folded([(second * 1000, 5, 9) for second in range(5)]), FIVE_S)
    assert due_spacing_s(many, T0_NS, T0_NS + 5 * CELL_NS) == pytest.approx(0.1)
    assert due_spacing_s(many, T0_NS + 9 * CELL_NS, T0_NS + 10 * CELL_NS) == float("inf")
