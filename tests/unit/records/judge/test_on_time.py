"""Tuples by when they were produced, against a count of them one by one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge.end import cells_of, p99_ms
from faultline.records.judge.tuples import CELL_NS, MS, due_spacing_s, fold_produced, is_sparse
from faultline.system.window import Window

T0_NS = 1_795_241_700_250_000_000
T0_MS = T0_NS // MS
WINDOW = Window.of(T0_NS, warmup_s=0, duration_s=5, checkpoint_interval_s=1)

# Seconds after T0 in ms, latency in ms or None for one that never came, and how many such tuples there are.
Drawn = tuple[int, int | None, int]
drawn = st.lists(
    st.tuples(st.integers(-3_000, 8_000), st.none() | st.integers(0, 5_000), st.integers(1, 4)), min_size=1, max_size=60
)


def frame(tuples: list[Drawn], *, primer: bool = False) -> pd.DataFrame:
    """The harvest's table of tuples."""
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


def folded(tuples: list[Drawn], grain_ns: int = CELL_NS) -> pd.DataFrame:
    return fold_produced([frame(tuples)], WINDOW, grain_ns)


@given(drawn, st.integers(0, 5_000), st.sampled_from([CELL_NS, MS]))
def test_cells_hold_what_was_due_and_what_came_in_time(tuples: list[Drawn], limit_ms: int, grain_ns: int) -> None:
    due: dict[int, int] = defaultdict(int)
    good: dict[int, int] = defaultdict(int)
    first: dict[int, int] = {}
    late: dict[int, int] = {}
    for produced, latency, n in tuples:
        cell = T0_NS + produced * MS // grain_ns * grain_ns
        due[cell] += n
        if latency is not None and latency <= limit_ms:
            good[cell] += n
            emitted = (T0_MS + produced + latency) * MS
            first[cell] = min(first.get(cell, emitted), emitted)
        else:
            known = (T0_MS + produced + (limit_ms if latency is None else latency)) * MS
            late[cell] = max(late.get(cell, 0), known)
    cells = cells_of(folded(tuples, grain_ns), limit_ms)
    assert cells.start_ns.tolist() == sorted(due)
    assert cells.due.tolist() == [due[cell] for cell in sorted(due)]
    assert cells.on_time.tolist() == [good[cell] for cell in sorted(due)]
    assert cells.first_ns.tolist() == [first.get(cell, 0) for cell in sorted(due)]
    assert cells.late_ns.tolist() == [late.get(cell, 0) for cell in sorted(due)]


@given(drawn, st.integers(0, 60))
def test_in_which_pieces_tuples_come_changes_nothing(tuples: list[Drawn], cut: int) -> None:
    whole = folded(tuples)
    parts = fold_produced([frame(part) for part in (tuples[:cut], tuples[cut:]) if part], WINDOW)
    pd.testing.assert_frame_equal(whole, parts)


def test_the_primer_is_nobodys_production() -> None:
    assert fold_produced([frame([(0, 5, 9)], primer=True)], WINDOW).empty


@given(drawn)
def test_p99_is_of_the_tuples_of_the_cells_that_were_seen_in_time(tuples: list[Drawn]) -> None:
    seen_by = 4_000
    found = p99_ms(folded(tuples, MS), T0_NS, T0_NS + 3 * CELL_NS, seen_by_ns=T0_NS + seen_by * MS)
    values = np.sort(
        [
            latency
            for produced, latency, n in tuples
            for _ in range(n)
            if latency is not None and 0 <= produced < 3_000 and produced + latency <= seen_by
        ]
    )
    assert found == (None if not len(values) else values[-(-len(values) * 99 // 100) - 1])


def test_few_tuples_a_second_are_sparse() -> None:
    many = folded([(second * 1000, 5, 10) for second in range(5)])
    assert not is_sparse(many, WINDOW)
    assert is_sparse(folded([(second * 1000, 5, 9) for second in range(5)]), WINDOW)
    assert due_spacing_s(many, T0_NS, T0_NS + 5 * CELL_NS) == pytest.approx(0.1)
    assert due_spacing_s(many, T0_NS + 9 * CELL_NS, T0_NS + 10 * CELL_NS) == float("inf")
