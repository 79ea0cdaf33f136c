"""Garbage collection within the window: by the pauses that processes logged, else by the totals that they told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.base import Collections, Pause, Totals, Traces
from faultline.engines.spark.traces import totals_of
from faultline.records.judge.work import garbage_of, gc_s
from faultline.records.record import GarbagePart
from faultline.system.window import NS, Window

START, END = 1_000 * NS, 1_060 * NS
WINDOW = Window(START - 10 * NS, START, END, NS)
MS = 1_000_000
pauses = st.lists(st.tuples(st.integers(START - 99 * MS, END + 99 * MS), st.integers(0, 400 * MS)), max_size=30).map(
    lambda drawn: tuple(Pause(start, start + length) for start, length in drawn)
)


def traces(*collections: Collections, seen: tuple[str, ...] = ()) -> Traces:
    totals = tuple(Totals(process, START + NS, 1e6, 0, 0) for process in seen)
    return Traces("batch", collections=collections, totals=totals)


def figure(found: Traces) -> float | None:
    return gc_s(found, garbage_of(found, WINDOW), WINDOW)


@given(pauses, pauses, pauses)
def test_pauses_are_cut_at_both_edges_and_added_up_by_role(
    driver: tuple[Pause, ...], one: tuple[Pause, ...], other: tuple[Pause, ...]
) -> None:
    found = traces(
        Collections("driver", "d", "G1", driver), Collections("executors", "a/0", "G1", one),
        Collections("executors", "a/1", "G1", other), seen=("a/0", "a/1"),
    )  # fmt: skip

    def inside(*of: Pause) -> list[int]:
        lengths = (sum(START <= at < END for at in (p.start_ns, p.end_ns - 1)) and p for p in of)
        return [min(p.end_ns, END) - max(p.start_ns, START) for p in lengths if p and p.end_ns > p.start_ns]

    garbage = garbage_of(found, WINDOW)
    assert garbage is not None
    assert garbage.driver_s == pytest.approx(sum(inside(*driver)) / NS)
    assert garbage.executors_s == figure(found) == pytest.approx(sum(inside(*one, *other)) / NS)
    assert garbage.pauses == len(inside(*driver, *one, *other))
    assert garbage.longest_ms == max(inside(*driver, *one, *other), default=0) / MS


def test_a_pause_across_an_edge_counts_with_its_part_inside() -> None:
    across = (Pause(START - 30 * MS, START + 10 * MS), Pause(END - 5 * MS, END + 9 * MS), Pause(END, END + MS))
    found = traces(Collections("executors", "a/0", "G1", across))
    assert garbage_of(found, WINDOW) == GarbagePart(driver_s=None, executors_s=0.015, pauses=2, longest_ms=10.0)


def test_a_sum_that_lacks_an_executor_is_none() -> None:
    log = Collections("executors", "a/0", "G1", (Pause(START, START + NS),))
    assert figure(traces(log, seen=("a/0",))) == 1.0
    assert figure(traces(log, seen=("a/0", "a/1"))) is None, "the totals of tasks take no place in it"
    assert figure(traces(Collections("driver", "d", "G1", ()), seen=("a/0",))) is None


def test_without_logs_totals_count_dead_executors_and_leave_the_driver_out() -> None:
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
    told = Traces("batch", totals=totals_of(lines))
    assert garbage_of(told, WINDOW) is None
    assert figure(told) == pytest.approx((300 + 200 + 70) / 1000)
    assert figure(Traces("batch")) is None
