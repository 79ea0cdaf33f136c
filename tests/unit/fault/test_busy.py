"""Who is busy: the decision on made-up readings, and real processes that work and idle."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import procfs
from fault.busy import BUSY_NS, RECENT_NS, BusyWatch, Reading, await_busy, read_local
from fault.identity import PYTHON_WORKER, ProcessIdentity, Tokens
from fault.victims import find_victims
from tests.unit.sleepers import Spawn

RUN = "20261121T061500Z-3fa9c1"
MS = 1_000_000


def candidate(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, 1.0, PYTHON_WORKER, RUN)


ONE, TWO = candidate(4001), candidate(4002)


def looks(*readings: tuple[int, int, bool]) -> list[bool]:
    """(instant in ms, CPU time in ns, runnable) -> busy or not, for a single candidate."""
    watch = BusyWatch()
    return [ONE in watch.look(at * MS, {ONE: Reading(run_ns, runnable)}) for at, run_ns, runnable in readings]


LAST = 1 + RECENT_NS // MS


@pytest.mark.parametrize(
    ("readings", "busy"),
    [
        # Growth by 0.3 ms between two looks is work.
        (((0, 5 * MS, True), (1, 5 * MS + BUSY_NS, False)), [False, True]),
        (((0, 5 * MS, True), (1, 5 * MS + BUSY_NS - 1, True)), [False, False]),
        # Between the kernel's ticks one that runs stays busy, and one that sleeps does not.
        (((0, 0, True), (1, 4 * MS, True), (2, 4 * MS, True), (3, 4 * MS, True)), [False, True, True, True]),
        (((0, 0, True), (1, 4 * MS, True), (2, 4 * MS, False)), [False, True, False]),
        # Work of more than 12 ms ago is over, and growth over a longer gap says nothing about now.
        (((0, 0, True), (1, MS, True), *((at, MS, True) for at in range(2, LAST + 2))), [False, *[True] * LAST, False]),
        (((0, 0, True), (12, MS, False)), [False, True]),
        (((0, 0, True), (13, MS, False)), [False, False]),
        (((0, 0, True), (1, MS, True), (13, MS, True)), [False, True, True]),
        (((0, 0, True), (1, MS, True), (14, MS, True)), [False, True, False]),
        (((0, 0, True), (1000, 500 * MS, True)), [False, False]),
    ],
)
def test_work_is_growth_within_the_last_12_ms(readings: tuple[tuple[int, int, bool], ...], busy: list[bool]) -> None:
    assert BUSY_NS == 300_000 and RECENT_NS == 12 * MS
    assert looks(*readings) == busy


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, MS), st.booleans()), min_size=1, max_size=30))
def test_an_idle_process_is_never_busy_and_first_sight_neither(steps: list[tuple[int, int, bool]]) -> None:
    watch = BusyWatch()
    at_ns, run_ns, seen = 0, 0, False
    for pause_ms, used_ns, runnable in steps:
        at_ns, run_ns = at_ns + pause_ms * MS, run_ns + used_ns
        busy = watch.look(at_ns, {ONE: Reading(run_ns, runnable), TWO: Reading(7, runnable)})
        assert TWO not in busy
        assert seen or not busy
        seen = True


class Script:
    """Readings by look: which of the candidates work from which look on."""

    def __init__(self, **starts: int) -> None:
        self.looked = 0
        self._starts = {int(pid[1:]): start for pid, start in starts.items()}

    def __call__(self, candidates: Sequence[ProcessIdentity]) -> dict[ProcessIdentity, Reading]:
        self.looked += 1
        return {
            one: Reading(max(0, self.looked - self._starts[one.pid]) * MS, True)
            for one in candidates
            if one.pid in self._starts
        }


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def wait(script: Script, count: int, until_ms: int, **options: object) -> tuple[ProcessIdentity, ...]:
    clock = Clock()
    found = await_busy(
        options.pop("candidates", (ONE, TWO)),  # type: ignore[arg-type]
        count,
        until_ms * MS,
        look=script,
        clock=clock,
        sleep=clock.sleep,
        **options,  # type: ignore[arg-type]
    )
    assert clock.now_ns <= (until_ms + 1) * MS
    return found


def test_waiting_ends_as_soon_as_enough_are_busy() -> None:
    script = Script(p4001=10, p4002=20)
    assert wait(script, 1, 1000) == (ONE,)
    assert script.looked == 11
    script = Script(p4001=10, p4002=20)
    assert wait(script, 2, 1000) == (ONE, TWO)
    assert script.looked == 21


def test_at_the_deadline_it_gives_what_was_busy() -> None:
    assert wait(Script(p4001=10), 2, 50) == (ONE,)
    script = Script(p4001=1000)
    assert wait(script, 1, 50) == ()
    assert script.looked == 51, "the last look lies at the deadline"
    assert wait(Script(), 1, 5, candidates=()) == ()


def test_the_order_of_the_candidates_decides_among_the_busy() -> None:
    assert wait(Script(p4001=3, p4002=3), 1, 50, candidates=(TWO, ONE)) == (TWO,)


def test_new_workers_are_seen_through_the_refresh() -> None:
    assert wait(Script(p4001=9999, p4002=0), 1, 1000, candidates=(ONE,), refresh=lambda: (ONE, TWO)) == (TWO,)


def test_candidates_of_other_hosts_are_asked_about_there() -> None:
    away = replace(ONE, host="node1")
    asked: list[list[ProcessIdentity]] = []

    def elsewhere(candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        asked.append(list(candidates))
        return {away} if len(asked) > 2 else set()

    assert wait(Script(), 1, 50, candidates=(TWO, away), elsewhere=elsewhere) == (away,)
    assert asked == [[away]] * 3
    assert wait(Script(), 1, 5, candidates=(away,)) == ()


@pytest.fixture
def processes(spawn: Spawn, run: str) -> dict[str, ProcessIdentity]:
    """One process that works all the time and one that idles."""
    spawn(number=0)
    spawn(number=1, program="print('up', flush=True)\nwhile True: pass")
    time.sleep(0.1)  # both have begun; the idle one is asleep
    return dict(zip(("idle", "busy"), find_victims("executor", Tokens(run)), strict=True))


def test_a_real_busy_process_is_found_and_an_idle_one_is_not(processes: dict[str, ProcessIdentity]) -> None:
    both = (processes["idle"], processes["busy"])
    for _ in range(5):
        began = time.monotonic_ns()
        assert await_busy(both, 1, began + 120_000 * MS) == (processes["busy"],)
    assert await_busy((processes["idle"],), 1, time.monotonic_ns() + 50 * MS) == ()
    assert await_busy(both, 2, time.monotonic_ns() + 50 * MS) in ((processes["busy"],), ())


def test_what_is_gone_or_another_process_or_elsewhere_has_no_reading(processes: dict[str, ProcessIdentity]) -> None:
    busy = processes["busy"]
    assert set(read_local([busy])) == {busy}
    assert read_local([replace(busy, start_ticks=1), replace(busy, host="node1"), candidate(2**22 + 1)]) == {}


@pytest.mark.parametrize("schedstat", ["0 0 0\n", "\n", None])
def test_where_the_kernel_keeps_no_nanoseconds_its_ticks_count(
    schedstat: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    folder = tmp_path / "4001"
    folder.mkdir()
    (folder / "stat").write_text("4001 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15 16 17 18 900 20\n")
    if schedstat is not None:
        (folder / "schedstat").write_text(schedstat)
    ns = (30 + 12) * 10**9 // os.sysconf("SC_CLK_TCK")
    assert read_local([ONE]) == {ONE: Reading(ns, False)}
    known = replace(ONE, start_ticks=900)
    assert read_local([known]) == {known: Reading(ns, False)}
    assert read_local([replace(ONE, start_ticks=901)]) == {}
    (folder / "schedstat").write_text("7 1 2\n")
    assert read_local([ONE]) == {ONE: Reading(7, False)}


@pytest.mark.parametrize(("state", "found"), [("R", True), ("S", False), ("D", False), ("Z", None), ("X", None)])
def test_who_waits_for_a_core_is_runnable_and_who_has_ended_has_no_reading(
    state: str, found: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    (tmp_path / "4001").mkdir()
    (tmp_path / "4001" / "stat").write_text(f"4001 (a) {state} 1 2 3 4 5 6 7 8 9 10 0 0 13 14 15 16 17 18 900 20\n")
    (tmp_path / "4001" / "schedstat").write_text("7 1 2\n")
    assert read_local([ONE]) == ({} if found is None else {ONE: Reading(7, found)})
