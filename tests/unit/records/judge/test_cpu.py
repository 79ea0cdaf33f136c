"""CPU and memory from counters of processes that start, exit and reuse PIDs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.process_sampler import MIN_AGE_S, ProcessTable, RoleRule, has_run_delay, machine_usage
from faultline.records.judge.cpu import (
    ROLES,
    WORST_S,
    LostCpu,
    background_cpu,
    background_load,
    cores,
    cores_by_second,
    lost_cpu,
    rps_per_core,
    rss_mb,
)
from faultline.records.judge.samples import MACHINE_COLUMNS, PROCESS_COLUMNS, machine_of, processes_of
from faultline.records.work_parts import BackgroundCpuPart
from faultline.system.journal import Line
from faultline.system.measured_window import NS
from faultline.system.process_tags import SERVICES

START, END = 1_000 * NS, 1_020 * NS


def _samples(pid: int, born: float, died: float, share: float, role: str = "executors") -> list[list[object]]:
    """Return one sample per second of a process that uses `share` cores; times in seconds."""
    ticks = [tick + 0.4 for tick in range(990, 1_030) if born < tick + 0.4 < died]
    if died < 1_030:
        ticks.append(died)
    return [
        [round(tick * NS), role, pid, born, share * (tick - born), 50_000_000, died < 1_030 and tick == died]
        for tick in ticks
    ]


def frame_of(*rows: list[list[object]]) -> pd.DataFrame:
    found = pd.DataFrame([row for some in rows for row in some], columns=PROCESS_COLUMNS).assign(host="")
    return found.astype({"final": bool})


def machine_at(*rows: list[float | None]) -> pd.DataFrame:
    """Return machine samples from rows of (wall_ns, busy_s, stolen_s)."""
    return pd.DataFrame(rows, columns=MACHINE_COLUMNS).astype({"stolen_s": "float64"})


LIVES = st.tuples(st.integers(980, 1_015), st.integers(2, 60), st.floats(0, 2), st.sampled_from(ROLES))


@given(st.lists(LIVES, max_size=8))
def test_cores_are_cpu_seconds_inside_the_window(lives: list[tuple[int, int, float, str]]) -> None:
    rows, expected = [], dict.fromkeys(ROLES, 0.0)
    for number, (born, length, share, role) in enumerate(lives):
        # All processes have the same PID; only the creation time distinguishes them.
        life = _samples(7, born + number / 1000, born + length, share, role)
        rows += life
        if life:
            begin, end = max(1_000.0, born + number / 1000), min(1_020.0, float(born + length))
            expected[role] += share * max(0.0, end - begin) / 20
    frame = frame_of(rows)
    found = cores(frame, START, END)
    for role in ROLES:
        assert found[role] == (pytest.approx(expected[role], abs=1e-6) if rows else None)


def test_killed_process_counts_up_to_its_last_sample() -> None:
    frame = frame_of(_samples(7, 990, 2_000, 1.0))
    frame = frame[frame["wall_ns"] < 1_010 * NS]
    assert cores(frame, START, END)["executors"] == pytest.approx((1_009.4 - 1_000) / 20)


def test_memory_is_the_peak_sum_of_live_processes() -> None:
    rows = _samples(7, 990, 1_010, 1.0) + _samples(8, 990, 2_000, 1.0) + _samples(9, 1_012, 2_000, 1.0)
    frame = frame_of(rows)
    assert rss_mb(frame, START, END)["executors"] == pytest.approx(100)
    assert rss_mb(frame, START, END)["kafka"] == 0
    assert rss_mb(frame[:0], START, END)["kafka"] is None


@pytest.mark.parametrize(("age_ns", "alive"), [(0, True), (1_500_000_000, True), (1_500_000_001, False), (-1, False)])
def test_memory_counts_until_1_5_s_after_the_last_sample(age_ns: int, alive: bool) -> None:
    sample = [START - age_ns, "kafka", 7, 900.0, 1.0, 30_000_000, False]
    frame = frame_of([sample])
    assert rss_mb(frame, START, START)["kafka"] == (30 if alive else 0)


def test_cpu_series_averages_to_the_mean() -> None:
    frame = frame_of(_samples(7, 990, 1_011, 0.7))
    series = cores_by_second(frame, START, END)
    assert len(series) == 20
    assert series[0]["t_s"] == 1.0
    mean = sum(point["executors"] for point in series) / 20
    assert mean == pytest.approx(cores(frame, START, END)["executors"], abs=1e-3)


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1), st.floats(0, 1))
def test_background_cpu_is_machine_usage_minus_own_processes(
    engine: float, others: float, stolen: float, service: float
) -> None:
    """Services count as background CPU and are reported separately; the recorder does not count."""
    own = frame_of(
        _samples(7, 900, 2_000, engine),
        _samples(8, 900, 2_000, 0.25, "recorder"),
        _samples(9, 900, 2_000, 0.03, "services"),
        _samples(10, 1_005, 2_000, service, "services"),
    )
    ticks = [tick + 0.1 for tick in range(990, 1_030)]
    machine = machine_at(*[[round(tick * NS), (engine + 0.25 + others) * tick, stolen * tick] for tick in ticks])
    found = background_cpu(machine, own, START, END)
    assert found.processes == pytest.approx(others, abs=1e-6) and found.steal == pytest.approx(stolen, abs=1e-6)
    assert found.recorder == pytest.approx(0.25) and found.services == pytest.approx(0.03 + service * 15 / 20)


def test_unsampled_background_cpu_is_none_and_never_negative() -> None:
    """The machine's counter is coarser than those of the processes, and may lag behind their sum."""
    processes = frame_of(_samples(7, 900, 2_000, 1.0))
    half = machine_at([990 * NS, 1.0, 1.0], [1_010 * NS, 30.0, 2.0])
    assert background_cpu(half, processes, START, END) == BackgroundCpuPart(processes=None, steal=None)
    found = background_cpu(machine_at([990 * NS, 100.0, None], [1_030 * NS, 180.0, None]), processes, START, END)
    assert (found.processes, found.steal, found.services) == (pytest.approx(1.0), None, None)
    behind = background_cpu(machine_at([990 * NS, 10.0, 0.0], [1_030 * NS, 49.0, 0.0]), processes, START, END)
    assert (behind.processes, behind.steal) == (0.0, 0.0)


def test_background_load_has_mean_and_worst() -> None:
    """Other processes use 0.5 cores, and 1.5 cores for three seconds; steal is 0.1 cores."""
    own = frame_of(_samples(7, 900, 2_000, 0.5))
    rows, busy = [], 0.0
    for tick in range(990, 1_030):
        rows.append([tick * NS, busy, 0.1 * tick])
        busy += 0.5 + 0.5 + (1.0 if 1_004 <= tick < 1_007 else 0.0)
    found = background_load(machine_at(*rows), own, START, END)
    assert found is not None
    assert found.mean == pytest.approx(0.6 + 3 / 20)
    assert found.worst == pytest.approx(0.6 + 3 / WORST_S)
    assert background_load(machine_at(*rows[:12]), own, START, END) is None, "not sampled to its end"


def test_process_sampled_within_clock_resolution_of_its_start_counts_fully() -> None:
    """The kernel clock has a resolution of 10 ms, so a creation time may be later than the first sample."""
    rows = [
        [START + NS, "executors", 7, 1_001.01, 0.25, 0, False],
        [START + 11 * NS, "executors", 7, 1_001.01, 5.25, 0, True],
    ]
    assert cores(frame_of(rows), START, END)["executors"] == pytest.approx(5.25 / 20)


def test_throughput_per_core_uses_worker_processes() -> None:
    used = {"driver": 9.0, "executors": 0.5, "python_workers": 0.3, "kafka": 9.0, "generator": 9.0}
    assert rps_per_core(400.0, used) == 500.0
    assert rps_per_core(400.0, {**used, "python_workers": None}) == 800.0
    assert rps_per_core(400.0, {**used, "executors": 0.0, "python_workers": None}) is None


BEGIN, SECONDS = START // NS, 20
CpuSeries = Sequence[float]


def samples(
    pid: int, role: str, used: CpuSeries, waited: CpuSeries | None = None, lowered: CpuSeries = ()
) -> list[Line]:
    """Return samples of a process with CPU and waiting time per second, from 2 s before the window."""
    lines, cpu_s, waited_s = [], 0.0, 0.0
    for number in range(len(used) + 1):
        line: Line = {"kind": "proc", "wall_ns": (BEGIN - 2 + number) * NS, "role": role, "pid": pid}
        line |= {"create_time": float(BEGIN - 2), "cpu_s": cpu_s, "rss_bytes": 1, "final": False}
        if waited is not None:
            line["waited_s"] = waited_s
        if number < len(lowered) and lowered[number]:
            line["lowered"] = True
        lines.append(line)
        if number < len(used):
            cpu_s += used[number]
            waited_s += 0.0 if waited is None else waited[number]
    return lines


def machine_usage_of(busy: CpuSeries, stolen: CpuSeries | None = None) -> pd.DataFrame:
    used, taken = (None if one is None else np.concatenate([[0.0], np.cumsum(one)]) for one in (busy, stolen))
    assert used is not None
    return machine_at(*[[(BEGIN - 2 + n) * NS, used[n], None if taken is None else taken[n]] for n in range(len(used))])


LENGTH = SECONDS + 4
ROW = st.lists(st.floats(0, 2), min_size=LENGTH, max_size=LENGTH)


@given(own=ROW, delay=ROW, foreign=ROW, services=ROW)
def test_lost_cpu_is_bounded_by_background_cpu_and_run_delay(
    own: list[float], delay: list[float], foreign: list[float], services: list[float]
) -> None:
    processes = processes_of(samples(1, "executors", own, delay) + samples(2, SERVICES, services, lowered=[1] * 99))
    found = lost_cpu(machine_usage_of(np.add(np.add(own, foreign), services)), processes, START, END)
    assert found is not None and found.stolen is None
    inside = slice(2, 2 + SECONDS)
    bound = np.minimum(foreign[inside], delay[inside])
    assert -1e-6 <= found.others <= float(bound.mean()) + 1e-6
    assert found.others - 1e-6 <= found.worst <= max(foreign) + 1e-6


def constant(value: float) -> list[float]:
    return [value] * LENGTH


def lost_with(*, own: float, delay: float, foreign: float, stolen: float | None = None) -> LostCpu:
    processes = processes_of(samples(1, "executors", constant(own), constant(delay)))
    busy = machine_usage_of(constant(own + foreign), None if stolen is None else constant(stolen))
    found = lost_cpu(busy, processes, START, END)
    assert found is not None
    return found


def test_run_delay_is_divided_by_cpu_usage() -> None:
    assert lost_with(own=0.6, delay=0.5, foreign=0.2).others == pytest.approx(0.5 * 0.2 / 0.8)
    assert lost_with(own=0.6, delay=0.5, foreign=0.0).others == pytest.approx(0.0), (
        "own processes waited for each other"
    )
    assert lost_with(own=0.6, delay=0.0, foreign=0.9).others == pytest.approx(0.0), "no run delay"
    assert lost_with(own=0.1, delay=8.0, foreign=0.3).others == pytest.approx(0.3), "at most the background CPU"
    assert lost_with(own=0.0, delay=0.0, foreign=0.0).others == 0.0


def test_steal_is_separate_and_counts() -> None:
    found = lost_with(own=0.6, delay=0.5, foreign=0.2, stolen=0.05)
    assert found.stolen == pytest.approx(0.05) and found.mean == pytest.approx(0.125 + 0.05)
    assert found.worst == pytest.approx(found.mean)


def test_burst_counts_in_its_seconds_and_in_the_worst_five() -> None:
    burst = [1.0 if 8 <= second < 10 else 0.0 for second in range(LENGTH)]
    processes = processes_of(samples(1, "executors", constant(0.5), [4 * one for one in burst]))
    found = lost_cpu(machine_usage_of([0.5 + one for one in burst]), processes, START, END)
    assert found is not None
    assert found.others == pytest.approx(2 / SECONDS) and found.worst == pytest.approx(2 / WORST_S)


def test_low_priority_services_cause_no_lost_cpu() -> None:
    own = samples(1, "driver", constant(0.5), constant(1.0))
    busy = machine_usage_of(constant(0.5 + 0.3))

    def others(lowered: CpuSeries) -> float:
        service = samples(2, SERVICES, constant(0.3), lowered=lowered)
        found = lost_cpu(busy, processes_of([*own, *service]), START, END)
        assert found is not None
        return found.others

    share = 0.3 / 0.8
    assert others([1] * 99) == pytest.approx(0.0) and others([]) == pytest.approx(min(0.3, share))
    # The priority is lowered in the tenth second of the window, which counts in full.
    assert others([0] * 12 + [1] * 99) == pytest.approx(0.3 * 10 / SECONDS)


def test_service_started_at_low_priority_causes_no_lost_cpu() -> None:
    own = samples(1, "driver", constant(0.5), constant(1.0))
    late = [line for line in samples(2, SERVICES, constant(0.3), lowered=[1] * 99) if line["wall_ns"] > START]
    base = late[0]["cpu_s"]
    late = [{**line, "cpu_s": line["cpu_s"] - base, "create_time": late[0]["wall_ns"] / NS} for line in late]
    found = lost_cpu(machine_usage_of(constant(0.8)), processes_of([*own, *late]), START, END)
    assert found is not None and found.others == pytest.approx(0.3 / SECONDS)


def test_lost_cpu_needs_run_delay_and_machine_samples() -> None:
    older = processes_of(samples(1, "executors", constant(0.5)))
    whole = machine_usage_of(constant(1.0))
    assert (
        lost_cpu(whole, older, START, END) is None
        and lost_cpu(whole, older.drop(columns="waited_s"), START, END) is None
    )
    now = processes_of(samples(1, "executors", constant(0.5), constant(0.1)))
    assert lost_cpu(whole[:9], now, START, END) is None and lost_cpu(whole, now, START, END) is not None
    # The run delay of services does not count.
    assert lost_cpu(whole, processes_of(samples(1, SERVICES, constant(0.5), constant(0.1))), START, END) is None


BURN = """
import os, sys, threading, time
os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0)), daemon=True).start()
print("ready", flush=True)
while True: pass
"""


@contextmanager
def busy_processes(processors: Sequence[int], *marks: str) -> Iterator[None]:
    """Run busy loops, one on each of the processors."""
    started = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", BURN, str(one), *marks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for one in processors
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield
    finally:
        for process in started:
            process.communicate(b"end\n")


def record_samples(seconds: float) -> tuple[list[Line], int, int]:
    """Return lines of a recorder over `seconds`, and start and end of a window within."""
    table, lines = ProcessTable([RoleRule("executors", "Main", "mark")], {}, delay_roles=("executors",)), list[Line]()
    started_at = time.monotonic()
    while time.monotonic() - started_at < seconds + 1:
        time.sleep(0.25)
        for line in (
            {"kind": "machine", **machine_usage()},
            *({"kind": "proc", **one.as_json()} for one in table.sample({}).values()),
        ):
            lines.append({"wall_ns": time.time_ns(), "final": False, **line})
    instants = [line["wall_ns"] for line in lines if line["kind"] == "proc"]
    return lines, instants[0], instants[-1] - NS // 10


@pytest.mark.skipif(not has_run_delay(), reason="this kernel does not count run delay")
def test_real_processes_lose_cpu_to_a_competitor() -> None:
    """Two processes on one processor use and wait for half of it each.

    The estimate divides the run delay by F ÷ B, so at least a quarter of the processor is lost. Other work raises it.
    """
    processor = min(os.sched_getaffinity(0))
    with busy_processes([processor], "Main", "mark"), busy_processes([processor]):
        time.sleep(MIN_AGE_S)
        lines, start, end = record_samples(4.0)
    found = lost_cpu(machine_of(lines), processes_of(lines), start, end)
    assert found is not None and found.others > 0.2
