"""Batches, tasks, non-compute time and garbage collection in the measured window."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.protocol import Commit, Traces
from faultline.engines.spark.traces import totals_of
from faultline.engines.work import Batch, CheckpointReport, Collections, Pause, ProcessExit, Totals
from faultline.records.judge.journals import InjectedFault, SettledFault
from faultline.records.judge.signals import TopicSchedule
from faultline.records.judge.tuples import MS, TUPLE_COLUMNS, fold
from faultline.records.judge.work import (
    checkpoint_figures,
    gc_pauses,
    gc_s,
    is_real_time,
    non_compute_ms,
    source_rps,
    unplanned_exits,
    visible_delay_ms,
    window_work,
)
from faultline.records.work_parts import GarbagePart, WorkPart
from faultline.system.measured_window import NS, Window

T0 = 1_000 * NS
WINDOW = Window.of(T0, warmup_s=10, duration_s=10, checkpoint_interval_s=2)


def progress(batch: int, at_s: float, trigger_ms: int, add_ms: int) -> Batch:
    return Batch(batch, T0 + round(at_s * NS), trigger_ms, add_ms)


def samples(*rows: tuple[float, str, float, float]) -> tuple[Totals, ...]:
    """Return totals in order of time from rows of (seconds after T0, process, completed tasks, task ms)."""
    return tuple(Totals(name, T0 + round(at_s * NS), 0.0, tasks, ms) for at_s, name, tasks, ms in sorted(rows))


def test_only_batches_that_ended_in_the_window_count() -> None:
    batches = [(0, 9.9, 999, 500), (1, 12, 300, 200), (2, 20, 500, 400), (3, 20.1, 7, 5)]
    listener = [progress(*one) for one in batches]
    # a/1 started and died inside the window.
    executors = samples((9, "a/0", 10, 1000), (19, "a/0", 30, 4000), (25, "a/0", 90, 9000), (15, "a/1", 4, 400))
    work = window_work(Traces("batch", batches=tuple(listener), totals=executors), WINDOW, 400.0)
    assert (work.batches, work.batch_s) == (2, 0.8)
    assert (work.tasks, work.task_s) == (24, 3.4)
    assert work.batch_us_per_record == pytest.approx(0.8e6 / 4000)
    assert window_work(Traces("batch"), WINDOW, 400.0) == WorkPart.empty(), "an engine without reports"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 500)), min_size=1, max_size=12))
def test_checkpoint_figures_are_those_before_the_fault(checkpoints: list[tuple[int, int]]) -> None:
    """`checkpoints`: end in seconds after T0, and every figure."""
    reports = [
        CheckpointReport(number, T0 + at_s * NS, value, value, value, value, value)
        for number, (at_s, value) in enumerate(checkpoints)
    ]
    found = checkpoint_figures(reports, WINDOW.start_ns, T0 + 15 * NS)
    inside = sorted(value for at_s, value in checkpoints if 10 < at_s <= 15)
    assert found is not None and found.count == len(inside)
    figures = (found.duration_ms, found.start_delay_ms, found.alignment_ms, found.written_bytes, found.persisted_bytes)
    for one in figures:
        assert (one and (one.p50, one.max)) == ((float(np.median(inside)), inside[-1]) if inside else None)
    assert checkpoint_figures([], WINDOW.start_ns, WINDOW.end_ns) is None


@given(
    st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 4_000)), max_size=8),
    st.dictionaries(st.integers(0, 20_000), st.integers(1, 9), max_size=10),
)
def test_an_output_is_visible_after_the_next_triggered_checkpoint(
    cycles: list[tuple[int, int]], outputs: dict[int, int]
) -> None:
    """`cycles`: ms since the previous trigger, and duration. `outputs`: number by ms after T0."""
    triggers = np.cumsum([gap for gap, _ in cycles]).tolist()
    spans = [(begin, begin + duration) for begin, (_, duration) in zip(triggers, cycles, strict=True)]
    commits = [Commit(0, n, T0 + a * MS, T0 + b * MS, {"0": n}) for n, (a, b) in enumerate(spans)]
    commits.append(Commit(0, len(commits), None, T0 + 1, {"0": 0}))
    emitted = pd.DataFrame({"emitted_ms": [T0 // MS + at for at in outputs], "n": list(outputs.values())})
    found = visible_delay_ms(commits, emitted.astype("int64"), WINDOW.start_ns, T0 + 15 * NS)
    delays = []
    for at, n in outputs.items():
        ends = [end for begin, end in spans if begin >= at]
        delays += [ends[0] - at] * n if ends and 10_000 < at <= 15_000 else []
    delays.sort()
    assert (found and (found.p50, found.max)) == ((delays[(len(delays) - 1) // 2], delays[-1]) if delays else None)


def test_victims_and_exits_outside_the_run_are_not_unplanned() -> None:
    exits = ((5, 11), (12, 12), (14, 13), (30, 14), (-2, 15))
    traces = Traces("rank", worker_exits=tuple(ProcessExit("w", pid, T0 + at_s * NS) for at_s, pid in exits))
    fault = InjectedFault(0, T0, ({"pid": 12, "role": "executor"},), {}, (), SettledFault("effective"))
    assert unplanned_exits(traces, [fault], WINDOW) == 2
    assert unplanned_exits(Traces("batch"), [fault], WINDOW) is None


def tuples_of(*rows: tuple[int, float, float, int]) -> Any:
    """Return tuples from rows of (batch, produced and emitted in seconds after T0, n)."""

    def ms(at_s: float) -> int:
        return (T0 + round(at_s * NS)) // 1_000_000

    filled = [(0, batch, ms(made), ms(out), False, n) for batch, made, out, n in rows]
    return fold([pd.DataFrame(filled, columns=TUPLE_COLUMNS)], WINDOW)


def test_non_compute_time_is_latency_minus_batch_and_never_negative() -> None:
    tuples = tuples_of((1, 11, 12, 3), (1, 11.9, 12, 1), (2, 18, 20, 2), (9, 5, 6, 100))
    listener = [progress(1, 12, 300, 200), progress(2, 20, 500, 400), progress(9, 6, 1, 1)]
    ends = {1: T0 + 12 * NS, 2: T0 + 20 * NS, 9: T0 + 6 * NS}
    commits = tuple(Commit(0, batch, None, end, {}) for batch, end in ends.items())
    traces = Traces("batch", commits, batches=tuple(listener))
    # Three tuples wait 800 ms, one 0 ms and two 1,600 ms; batch 9 is before the window.
    assert non_compute_ms(tuples, traces, WINDOW) == pytest.approx((3 * 800 + 0 + 2 * 1600) / 6)
    assert non_compute_ms(tuples, dataclasses.replace(traces, batches=()), WINDOW) is None


def test_source_rate_counts_records_due_in_the_window() -> None:
    due = [(T0 + round(second * NS)) // 1_000_000 for second in (9.999, 10, 15, 19.999, 20)]
    records = pd.DataFrame({"partition": 0, "offset": range(5), "timestamp_ms": due, "primer": False})
    assert source_rps(TopicSchedule(records), WINDOW) == pytest.approx(0.3)


OUTSIDE = [*range(-5_000, 0, 10), *range(10_000, 15_000, 10)]


@pytest.mark.parametrize(
    ("outputs_ms", "expected"),
    [
        (range(0, 9_000, 50), True),
        (range(0, 9_000, 1_000), True),
        (range(0, 9_000, 1_001), False),
        (range(0, 9_000, 2_000), False),
        ([batch * 2_000 + ms for batch in range(5) for ms in range(50)], False),
        ([], None),
        (OUTSIDE, None),
        ([*OUTSIDE, 0, 4_000, 9_999], False),
        ([0, 900], True),
        ([-10, 0], None),
    ],
    ids=["close", "half a batch", "more", "a batch", "bursts", "none", "outside", "slow inside", "two", "one"],
)
def test_real_time_needs_outputs_closer_than_half_a_batch(outputs_ms: Sequence[int], expected: bool | None) -> None:
    outputs = (T0 + 10 * NS) // 1_000_000 + np.array(sorted(outputs_ms), dtype=np.int64)
    assert is_real_time(outputs, WINDOW) is expected


def test_non_compute_time_needs_one_state_epoch_and_timed_batches() -> None:
    tuples = tuples_of((1, 11, 12, 3), (2, 18, 20, 2))
    commits = (Commit(0, 1, None, T0 + 10 * NS, {}), Commit(0, 2, None, T0 + 20 * NS, {}))
    traces = Traces("batch", commits, batches=(progress(1, 12, 300, 200), progress(2, 20, 500, 400)))
    assert non_compute_ms(tuples, traces, WINDOW) == 1600, "a batch that ended at the window's start is outside"
    assert non_compute_ms(tuples, dataclasses.replace(traces, batches=(progress(2, 20, 500, 0),)), WINDOW) is None
    several = dataclasses.replace(tuples, by_batch=tuples.by_batch.assign(lineage=[0, 1]))
    assert non_compute_ms(several, traces, WINDOW) is None
    assert non_compute_ms(fold([], WINDOW), traces, WINDOW) is None


START, END = 1_000 * NS, 1_060 * NS
MINUTE = Window(START - 10 * NS, START, END, NS)
pauses = st.lists(st.tuples(st.integers(START - 99 * MS, END + 99 * MS), st.integers(0, 400 * MS)), max_size=30).map(
    lambda drawn: tuple(Pause(start, start + length) for start, length in drawn)
)


def traces(*collections: Collections, seen: tuple[str, ...] = ()) -> Traces:
    totals = tuple(Totals(process, START + NS, 1e6, 0, 0) for process in seen)
    return Traces("batch", collections=collections, totals=totals)


def gc_seconds(found: Traces) -> float | None:
    return gc_s(found, gc_pauses(found, MINUTE), MINUTE)


@given(pauses, pauses, pauses)
def test_pauses_are_cut_at_the_window_and_summed_by_role(
    driver: tuple[Pause, ...], one: tuple[Pause, ...], other: tuple[Pause, ...]
) -> None:
    found = traces(
        Collections("driver", "d", "G1", driver), Collections("executors", "a/0", "G1", one),
        Collections("executors", "a/1", "G1", other), seen=("a/0", "a/1"),
    )  # fmt: skip

    def inside(*role_pauses: Pause) -> list[int]:
        lengths = (sum(START <= at < END for at in (p.start_ns, p.end_ns - 1)) and p for p in role_pauses)
        return [min(p.end_ns, END) - max(p.start_ns, START) for p in lengths if p and p.end_ns > p.start_ns]

    garbage = gc_pauses(found, MINUTE)
    assert garbage is not None
    assert garbage.driver_s == pytest.approx(sum(inside(*driver)) / NS)
    assert garbage.executors_s == gc_seconds(found) == pytest.approx(sum(inside(*one, *other)) / NS)
    assert garbage.pauses == len(inside(*driver, *one, *other))
    assert garbage.longest_ms == max(inside(*driver, *one, *other), default=0) / MS


def test_pause_across_a_window_edge_counts_by_its_inner_part() -> None:
    across = (Pause(START - 30 * MS, START + 10 * MS), Pause(END - 5 * MS, END + 9 * MS), Pause(END, END + MS))
    found = traces(Collections("executors", "a/0", "G1", across))
    assert gc_pauses(found, MINUTE) == GarbagePart(driver_s=None, executors_s=0.015, pauses=2, longest_ms=10.0)


def test_gc_time_without_an_executor_log_is_none() -> None:
    log = Collections("executors", "a/0", "G1", (Pause(START, START + NS),))
    assert gc_seconds(traces(log, seen=("a/0",))) == 1.0
    assert gc_seconds(traces(log, seen=("a/0", "a/1"))) is None, "task totals do not replace the log"
    assert gc_seconds(traces(Collections("driver", "d", "G1", ()), seen=("a/0",))) is None


def test_gc_totals_count_dead_executors_and_exclude_the_driver() -> None:
    samples = [
        (990, {"0": 100.0, "1": 50.0, "driver": 1.0}),
        (1_005, {"0": 400.0}),
        (1_030, {"1": 250.0, "2": 70.0, "driver": 9_000.0}),
    ]
    lines = [
        {"kind": "executors", "wall_ns": at_s * NS, "app_id": "a",
         "executors": [{"id": name, "totalGCTime": gc_ms} for name, gc_ms in executors.items()]}
        for at_s, executors in samples
    ]  # fmt: skip
    without_logs = Traces("batch", totals=totals_of(lines))
    assert gc_pauses(without_logs, MINUTE) is None
    assert gc_seconds(without_logs) == pytest.approx((300 + 200 + 70) / 1000)
    assert gc_seconds(Traces("batch")) is None
