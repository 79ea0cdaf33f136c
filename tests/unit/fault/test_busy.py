"""Busy processes: the decision on fake readings, and real busy and idle processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import procfs
from fault.cpu_busy import BUSY_AGE_NS, BUSY_NS, BusyWatch, Reading, await_busy, read_local_cpu
from fault.errors import VictimRefused
from fault.identity import PYTHON_WORKER, ProcessIdentity, Tokens
from fault.procfs import all_pids, ancestry_of, command_of, read_process, start_ticks
from fault.victims import find_victims
from tests.support.processes import shown
from tests.unit.fault.conftest import SleepClock, until
from tests.unit.sleepers import Spawn

RUN = "20261121T061500Z-3fa9c1"
MS = 1_000_000


def candidate(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, 1.0, PYTHON_WORKER, RUN)


ONE, TWO = candidate(4001), candidate(4002)


def looks(*readings: tuple[int, int, bool]) -> list[bool]:
    """Return whether a single candidate is busy, per reading (instant in ms, CPU time in ns, runnable)."""
    watch = BusyWatch()
    return [ONE in watch.update(at * MS, {ONE: Reading(run_ns, runnable)}) for at, run_ns, runnable in readings]


LAST = 1 + BUSY_AGE_NS // MS


@pytest.mark.parametrize(
    ("readings", "busy"),
    [
        # Growth by 0.3 ms between two readings is work.
        (((0, 5 * MS, True), (1, 5 * MS + BUSY_NS, False)), [False, True]),
        (((0, 5 * MS, True), (1, 5 * MS + BUSY_NS - 1, True)), [False, False]),
        # Between the kernel's ticks a running process stays busy, a sleeping one does not.
        (((0, 0, True), (1, 4 * MS, True), (2, 4 * MS, True), (3, 4 * MS, True)), [False, True, True, True]),
        (((0, 0, True), (1, 4 * MS, True), (2, 4 * MS, False)), [False, True, False]),
        # Work older than 12 ms does not count, and neither does growth over a longer gap.
        (((0, 0, True), (1, MS, True), *((at, MS, True) for at in range(2, LAST + 2))), [False, *[True] * LAST, False]),
        (((0, 0, True), (12, MS, False)), [False, True]),
        (((0, 0, True), (13, MS, False)), [False, False]),
        (((0, 0, True), (1, MS, True), (13, MS, True)), [False, True, True]),
        (((0, 0, True), (1, MS, True), (14, MS, True)), [False, True, False]),
        (((0, 0, True), (1000, 500 * MS, True)), [False, False]),
    ],
)
def test_work_is_growth_within_the_last_12_ms(readings: tuple[tuple[int, int, bool], ...], busy: list[bool]) -> None:
    assert BUSY_NS == 300_000 and BUSY_AGE_NS == 12 * MS
    assert looks(*readings) == busy


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, MS), st.booleans()), min_size=1, max_size=30))
def test_idle_and_new_processes_are_not_busy(steps: list[tuple[int, int, bool]]) -> None:
    watch = BusyWatch()
    at_ns, run_ns, seen = 0, 0, False
    for pause_ms, used_ns, runnable in steps:
        at_ns, run_ns = at_ns + pause_ms * MS, run_ns + used_ns
        busy = watch.update(at_ns, {ONE: Reading(run_ns, runnable), TWO: Reading(7, runnable)})
        assert TWO not in busy
        assert seen or not busy
        seen = True


class Script:
    """Fake readings that make each candidate busy from a given call on."""

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


def wait(script: Script, count: int, until_ms: int, **options: Any) -> tuple[ProcessIdentity, ...]:
    clock, candidates = SleepClock(), options.pop("candidates", (ONE, TWO))
    found = await_busy(candidates, count, until_ms * MS, read_cpu=script, clock=clock, sleep=clock.sleep, **options)
    assert clock.now_ns <= (until_ms + 1) * MS
    return found


@pytest.mark.parametrize(
    ("starts", "asked", "found", "looked"),
    [
        pytest.param({"p4001": 10, "p4002": 20}, {"count": 1}, (ONE,), 11, id="one is enough"),
        pytest.param({"p4001": 10, "p4002": 20}, {"count": 2}, (ONE, TWO), 21, id="both are needed"),
        pytest.param({"p4001": 10}, {"count": 2}, (ONE,), 51, id="what was busy at the deadline"),
        pytest.param({"p4001": 1000}, {"count": 1}, (), 51, id="the last look lies at the deadline"),
        pytest.param({}, {"count": 1, "candidates": ()}, (), 51, id="nobody"),
        pytest.param({"p4001": 3, "p4002": 3}, {"count": 1, "candidates": (TWO, ONE)}, (TWO,), 4, id="in their order"),
        pytest.param({"p4002": 0}, {"count": 1, "until_ms": 1000, "candidates": (ONE,), "refresh": lambda: (ONE, TWO)},
                     (TWO,), None, id="new ones by the refresh"),
    ],
)  # fmt: skip
def test_waiting_ends_as_soon_as_enough_are_busy_or_at_the_deadline(
    starts: dict[str, int], asked: dict[str, Any], found: tuple[ProcessIdentity, ...], looked: int | None
) -> None:
    script = Script(**starts)
    assert wait(script, **{"until_ms": 50, **asked}) == found
    assert looked in (None, script.looked)


def test_remote_candidates_are_read_on_their_hosts() -> None:
    away = replace(ONE, host="node1")
    asked: list[list[ProcessIdentity]] = []

    def elsewhere(candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        asked.append(list(candidates))
        return {away} if len(asked) > 2 else set()

    assert wait(Script(), 1, 50, candidates=(TWO, away), find_remote=elsewhere) == (away,)
    assert asked == [[away]] * 3
    assert wait(Script(), 1, 5, candidates=(away,)) == ()


@pytest.fixture
def processes(spawn: Spawn, run: str) -> dict[str, ProcessIdentity]:
    """A busy process and an idle one."""
    spawn(number=0)
    spawn(number=1, program="print('up', flush=True)\nwhile True: pass")
    time.sleep(0.1)  # both run; the idle one sleeps
    return dict(zip(("idle", "busy"), find_victims("executor", Tokens(run)), strict=True))


def test_a_real_busy_process_is_found_and_an_idle_one_is_not(processes: dict[str, ProcessIdentity]) -> None:
    both = (processes["idle"], processes["busy"])
    for _ in range(5):
        began = time.monotonic_ns()
        assert await_busy(both, 1, began + 120_000 * MS) == (processes["busy"],)
    assert await_busy((processes["idle"],), 1, time.monotonic_ns() + 50 * MS) == ()
    assert await_busy(both, 2, time.monotonic_ns() + 50 * MS) in ((processes["busy"],), ())


def test_ended_replaced_and_remote_processes_have_no_reading(processes: dict[str, ProcessIdentity]) -> None:
    busy = processes["busy"]
    assert set(read_local_cpu([busy])) == {busy}
    assert read_local_cpu([replace(busy, start_ticks=1), replace(busy, host="node1"), candidate(2**22 + 1)]) == {}


TICKS_NS = (30 + 12) * 10**9 // os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("state", "schedstat", "reading"),
    [
        *((state, "7 1 2\n", Reading(7, state == "R")) for state in "RSD"),
        *((state, "7 1 2\n", None) for state in "ZX"),
        *(("S", schedstat, Reading(TICKS_NS, False)) for schedstat in ("0 0 0\n", "\n", None)),
    ],
)
def test_waiting_process_is_runnable_and_ticks_replace_missing_schedstat(
    state: str, schedstat: str | None, reading: Reading | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    (tmp_path / "4001").mkdir()
    (tmp_path / "4001" / "stat").write_text(
        f"4001 (a) b) {state} 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15 16 17 18 900 20\n"
    )
    if schedstat is not None:
        (tmp_path / "4001" / "schedstat").write_text(schedstat)
    for known in (ONE, replace(ONE, start_ticks=900)):
        assert read_local_cpu([known]) == ({known: reading} if reading else {})
    assert read_local_cpu([replace(ONE, start_ticks=901)]) == {}


# --- process information compared with real processes


def test_a_process_is_read_as_psutil_reads_it() -> None:
    arguments = ["-Dfaultline.instance=0123456789abcdef", "two\nlines", "é", "", "-x y"]
    with subprocess.Popen(["sh", "-c", "read x", *arguments], stdin=subprocess.PIPE) as process:
        try:
            known = psutil.Process(process.pid)
            # The name appears before the arguments.
            words = shown(process.pid, lambda words: words[:1] == ["sh"])
            live = read_process(process.pid)
            assert live is not None
            assert list(live.command) == words == ["sh", "-c", "read x", *arguments]
            assert (live.parent_pid, live.is_stopped, live.is_foreign) == (os.getpid(), False, False)
            assert live.create_time == pytest.approx(known.create_time(), abs=0.02)
            assert live.start_ticks == start_ticks(process.pid)
            assert process.pid in all_pids()
            assert {process.pid, os.getpid(), os.getppid()} <= ancestry_of(process.pid)
            process.send_signal(signal.SIGSTOP)
            until(lambda: known.status() == psutil.STATUS_STOPPED, "the stop")
            seen = read_process(process.pid)
            assert seen is not None and seen.is_stopped
        finally:
            process.kill()
        until(lambda: known.status() == psutil.STATUS_ZOMBIE, "the end")
        assert read_process(process.pid) is None, "it is a zombie"
    assert read_process(process.pid) is None
    assert ancestry_of(process.pid) == {process.pid}


def test_process_title_is_split_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, words in ((b"a b\0", ("a b",)), (b"a b", ("a", "b")), (b"a\0\0", ("a", "")), (b"", ())):
        monkeypatch.setattr("pathlib.Path.read_bytes", lambda path, text=text: text)
        assert command_of(1) == words


@pytest.mark.parametrize("error", [FileNotFoundError(), ProcessLookupError(), PermissionError()], ids=repr)
def test_ended_process_is_none_and_unreadable_one_is_refused(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat_of(pid: int) -> None:
        raise error

    monkeypatch.setattr("fault.procfs.stat_of", stat_of)
    if isinstance(error, PermissionError):
        with pytest.raises(VictimRefused, match="^pid: "):
            read_process(4000)
    else:
        assert read_process(4000) is None
