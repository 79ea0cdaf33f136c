"""What the measured processes lost to others: by made-up samples, and by real processes."""

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

from fault.sampling import SETTLED_S, RoleRule, Table, counts_delay, machine
from faultline.records.judge.cpu import WORST_S, Lost, lost
from faultline.records.judge.samples import MACHINE_COLUMNS, machine_of, processes_of
from faultline.system.journal import Line
from faultline.system.marks import SERVICES
from faultline.system.window import NS

START, SECONDS = 1_000, 20
WINDOW = START * NS, (START + SECONDS) * NS
Course = Sequence[float]


def samples(pid: int, role: str, used: Course, waited: Course | None = None, lowered: Course = ()) -> list[Line]:
    """A process that used and waited for so many seconds in each second from 2 s before the window on."""
    lines, cpu_s, waited_s = [], 0.0, 0.0
    for number in range(len(used) + 1):
        line: Line = {"kind": "proc", "wall_ns": (START - 2 + number) * NS, "role": role, "pid": pid}
        line |= {"create_time": float(START - 2), "cpu_s": cpu_s, "rss_bytes": 1, "final": False}
        if waited is not None:
            line["waited_s"] = waited_s
        if number < len(lowered) and lowered[number]:
            line["lowered"] = True
        lines.append(line)
        if number < len(used):
            cpu_s += used[number]
            waited_s += 0.0 if waited is None else waited[number]
    return lines


def of_machine(busy: Course, stolen: Course | None = None) -> pd.DataFrame:
    total, taken = np.concatenate([[0.0], np.cumsum(busy)]), None
    if stolen is not None:
        taken = np.concatenate([[0.0], np.cumsum(stolen)])
    rows = [[(START - 2 + n) * NS, total[n], None if taken is None else taken[n]] for n in range(len(total))]
    return pd.DataFrame(rows, columns=MACHINE_COLUMNS).astype({"stolen_s": "float64"})


LENGTH = SECONDS + 4
ROW = st.lists(st.floats(0, 2), min_size=LENGTH, max_size=LENGTH)


@given(own=ROW, delay=ROW, foreign=ROW, services=ROW)
def test_what_is_lost_is_neither_more_than_others_used_nor_more_than_was_waited(
    own: list[float], delay: list[float], foreign: list[float], services: list[float]
) -> None:
    processes = processes_of(samples(1, "executors", own, delay) + samples(2, SERVICES, services, lowered=[1] * 99))
    found = lost(of_machine(np.add(np.add(own, foreign), services)), processes, *WINDOW)
    assert found is not None and found.stolen is None
    inside = slice(2, 2 + SECONDS)
    bound = np.minimum(foreign[inside], delay[inside])
    assert -1e-6 <= found.others <= float(bound.mean()) + 1e-6
    assert found.others - 1e-6 <= found.worst <= max(foreign) + 1e-6


def constant(value: float) -> list[float]:
    return [value] * LENGTH


def found_with(*, own: float, delay: float, foreign: float, stolen: float | None = None) -> Lost:
    processes = processes_of(samples(1, "executors", constant(own), constant(delay)))
    busy = of_machine(constant(own + foreign), None if stolen is None else constant(stolen))
    found = lost(busy, processes, *WINDOW)
    assert found is not None
    return found


def test_the_delay_is_shared_out_by_who_had_the_processors() -> None:
    assert found_with(own=0.6, delay=0.5, foreign=0.2).others == pytest.approx(0.5 * 0.2 / 0.8)
    assert found_with(own=0.6, delay=0.5, foreign=0.0).others == pytest.approx(0.0), "they waited for each other"
    assert found_with(own=0.6, delay=0.0, foreign=0.9).others == pytest.approx(0.0), "on cores that no other wanted"
    assert found_with(own=0.1, delay=8.0, foreign=0.3).others == pytest.approx(0.3), "many behind one"
    assert found_with(own=0.0, delay=0.0, foreign=0.0).others == 0.0


def test_the_hosts_part_is_told_apart_and_counts() -> None:
    found = found_with(own=0.6, delay=0.5, foreign=0.2, stolen=0.05)
    assert found.stolen == pytest.approx(0.05) and found.mean == pytest.approx(0.125 + 0.05)
    assert found.worst == pytest.approx(found.mean)


def test_a_burst_counts_in_its_own_seconds_and_in_the_worst_five() -> None:
    burst = [1.0 if 8 <= second < 10 else 0.0 for second in range(LENGTH)]
    processes = processes_of(samples(1, "executors", constant(0.5), [4 * one for one in burst]))
    found = lost(of_machine([0.5 + one for one in burst]), processes, *WINDOW)
    assert found is not None
    assert found.others == pytest.approx(2 / SECONDS) and found.worst == pytest.approx(2 / WORST_S)


def test_what_gives_way_takes_nothing_and_a_service_that_does_not_is_as_any_other() -> None:
    own = samples(1, "driver", constant(0.5), constant(1.0))
    busy = of_machine(constant(0.5 + 0.3))

    def others(lowered: Course) -> float:
        service = samples(2, SERVICES, constant(0.3), lowered=lowered)
        found = lost(busy, processes_of([*own, *service]), *WINDOW)
        assert found is not None
        return found.others

    share = 0.3 / 0.8
    assert others([1] * 99) == pytest.approx(0.0) and others([]) == pytest.approx(min(0.3, share))
    # Lowered from the tenth second of the window on; the second in which that happens counts in full.
    assert others([0] * 12 + [1] * 99) == pytest.approx(0.3 * 10 / SECONDS)


def test_a_service_that_was_started_while_others_give_way_does_so_from_its_start_on() -> None:
    own = samples(1, "driver", constant(0.5), constant(1.0))
    late = [line for line in samples(2, SERVICES, constant(0.3), lowered=[1] * 99) if line["wall_ns"] > WINDOW[0]]
    base = late[0]["cpu_s"]
    late = [{**line, "cpu_s": line["cpu_s"] - base, "create_time": late[0]["wall_ns"] / NS} for line in late]
    found = lost(of_machine(constant(0.8)), processes_of([*own, *late]), *WINDOW)
    assert found is not None and found.others == pytest.approx(0.3 / SECONDS)


def test_without_samples_of_the_delay_or_of_the_machine_nothing_is_known() -> None:
    older = processes_of(samples(1, "executors", constant(0.5)))
    whole = of_machine(constant(1.0))
    assert lost(whole, older, *WINDOW) is None and lost(whole, older.drop(columns="waited_s"), *WINDOW) is None
    now = processes_of(samples(1, "executors", constant(0.5), constant(0.1)))
    assert lost(whole[:9], now, *WINDOW) is None and lost(whole, now, *WINDOW) is not None
    # A fault's neighbours, and who runs the experiments, are no one whose delay counts.
    assert lost(whole, processes_of(samples(1, SERVICES, constant(0.5), constant(0.1))), *WINDOW) is None


BURN = """
import os, sys, threading, time
os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0)), daemon=True).start()
print("up", flush=True)
while True: pass
"""


@contextmanager
def burners(processors: Sequence[int], *marks: str) -> Iterator[None]:
    """Processes that compute all the time, each on a processor of its own."""
    started = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", BURN, str(one), *marks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for one in processors
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield
    finally:
        for process in started:
            process.communicate(b"end\n")


def recorded(seconds: float) -> tuple[list[Line], int, int]:
    """Lines of a recorder over so many seconds, and a window inside."""
    table, lines = Table([RoleRule("executors", "Main", "mark")], {}, waiting=("executors",)), list[Line]()
    began = time.monotonic()
    while time.monotonic() - began < seconds + 1:
        time.sleep(0.25)
        for line in (
            {"kind": "machine", **machine()},
            *({"kind": "proc", **one.line()} for one in table.look({}).values()),
        ):
            lines.append({"wall_ns": time.time_ns(), "final": False, **line})
    instants = [line["wall_ns"] for line in lines if line["kind"] == "proc"]
    return lines, instants[0], instants[-1] - NS // 10


@pytest.mark.skipif(not counts_delay(), reason="this kernel does not count run delay")
def test_real_processes_lose_what_another_takes_from_them_on_their_processor() -> None:
    """Beside a process on the same processor each has half of it and waits for the other half. The estimate shares the
    wait out by F ÷ B, which counts at least a quarter of the processor; other work on the machine raises it."""
    processor = min(os.sched_getaffinity(0))
    with burners([processor], "Main", "mark"), burners([processor]):
        time.sleep(SETTLED_S)
        lines, start, end = recorded(4.0)
    found = lost(machine_of(lines), processes_of(lines), start, end)
    assert found is not None and found.others > 0.2
