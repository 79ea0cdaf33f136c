"""CPU and memory from counters of processes that come, die and reuse pids."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge.cpu import (
    ROLES,
    WORST_S,
    besides,
    cores,
    cores_by_second,
    rps_per_core,
    rss_mb,
    taken,
)
from faultline.records.judge.samples import MACHINE_COLUMNS, PROCESS_COLUMNS
from faultline.records.record import CpuBesides
from faultline.system.window import NS

START, END = 1_000 * NS, 1_020 * NS


def _samples(pid: int, born: float, died: float, share: float, role: str = "executors") -> list[list[object]]:
    """One sample a second of a process that uses `share` cores all its life; times in seconds."""
    ticks = [tick + 0.4 for tick in range(990, 1_030) if born < tick + 0.4 < died]
    if died < 1_030:
        ticks.append(died)
    return [
        [round(tick * NS), role, pid, born, share * (tick - born), 50_000_000, died < 1_030 and tick == died]
        for tick in ticks
    ]


@given(
    st.lists(
        st.tuples(st.integers(980, 1_015), st.integers(2, 60), st.floats(0, 2), st.sampled_from(ROLES)), max_size=8
    )
)
def test_cores_are_the_cpu_seconds_inside_the_window(lives: list[tuple[int, int, float, str]]) -> None:
    rows, expected = [], dict.fromkeys(ROLES, 0.0)
    for number, (born, length, share, role) in enumerate(lives):
        # the same pid again and again: only the creation time tells the processes apart
        life = _samples(7, born + number / 1000, born + length, share, role)
        rows += life
        if life:
            begin, end = max(1_000.0, born + number / 1000), min(1_020.0, float(born + length))
            expected[role] += share * max(0.0, end - begin) / 20
    frame = pd.DataFrame(rows, columns=PROCESS_COLUMNS).assign(host="")
    found = cores(frame, START, END)
    for role in ROLES:
        assert found[role] == (pytest.approx(expected[role], abs=1e-6) if rows else None)


def test_a_killed_process_without_a_last_sample_keeps_what_was_seen() -> None:
    frame = pd.DataFrame(_samples(7, 990, 2_000, 1.0), columns=PROCESS_COLUMNS).assign(host="")
    frame = frame[frame["wall_ns"] < 1_010 * NS]
    assert cores(frame, START, END)["executors"] == pytest.approx((1_009.4 - 1_000) / 20)


def test_memory_is_the_peak_of_the_sum_and_the_dead_do_not_count() -> None:
    rows = _samples(7, 990, 1_010, 1.0) + _samples(8, 990, 2_000, 1.0) + _samples(9, 1_012, 2_000, 1.0)
    frame = pd.DataFrame(rows, columns=PROCESS_COLUMNS).assign(host="").astype({"final": bool})
    assert rss_mb(frame, START, END)["executors"] == pytest.approx(100)
    assert rss_mb(frame, START, END)["kafka"] == 0
    assert rss_mb(frame[:0], START, END)["kafka"] is None


@pytest.mark.parametrize(("age_ns", "alive"), [(0, True), (1_500_000_000, True), (1_500_000_001, False), (-1, False)])
def test_a_process_holds_its_memory_for_a_second_and_a_half_after_a_sample(age_ns: int, alive: bool) -> None:
    sample = [START - age_ns, "kafka", 7, 900.0, 1.0, 30_000_000, False]
    frame = pd.DataFrame([sample], columns=PROCESS_COLUMNS).assign(host="").astype({"final": bool})
    assert rss_mb(frame, START, START)["kafka"] == (30 if alive else 0)


def test_the_seconds_of_the_series_add_up_to_the_mean() -> None:
    frame = pd.DataFrame(_samples(7, 990, 1_011, 0.7), columns=PROCESS_COLUMNS).assign(host="")
    series = cores_by_second(frame, START, END)
    assert len(series) == 20
    assert series[0]["t_s"] == 1.0
    mean = sum(point["executors"] for point in series) / 20
    assert mean == pytest.approx(cores(frame, START, END)["executors"], abs=1e-3)


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1))
def test_what_others_used_is_what_the_machine_used_less_the_experiments_processes(
    engine: float, others: float, stolen: float
) -> None:
    ours = _samples(7, 900, 2_000, engine) + _samples(8, 900, 2_000, 0.25, "recorder")
    ticks = [tick + 0.1 for tick in range(990, 1_030)]
    machine = pd.DataFrame(
        [[round(tick * NS), (engine + 0.25 + others) * tick, stolen * tick] for tick in ticks], columns=MACHINE_COLUMNS
    )
    found = besides(machine, pd.DataFrame(ours, columns=PROCESS_COLUMNS).assign(host=""), START, END)
    assert found.others == pytest.approx(others, abs=1e-6) and found.stolen == pytest.approx(stolen, abs=1e-6)


def test_what_runs_the_experiments_is_told_apart_among_the_others() -> None:
    rows = [*_samples(7, 900, 2_000, 0.5), *_samples(8, 900, 2_000, 0.02, "recorder")]
    rows += [*_samples(9, 900, 2_000, 0.03, "services"), *_samples(10, 1_005, 2_000, 0.2, "services")]
    machine = pd.DataFrame([[990 * NS, 0.0, 0.0], [1_030 * NS, 40.0, 0.0]], columns=MACHINE_COLUMNS)
    found = besides(machine, pd.DataFrame(rows, columns=PROCESS_COLUMNS).assign(host=""), START, END)
    assert found.services == pytest.approx(0.03 + 0.2 * 15 / 20)
    assert found.recorder == pytest.approx(0.02)
    assert found.others == pytest.approx(1.0 - 0.5 - 0.02), "services are others' work, the recorder is not"


def test_what_was_not_sampled_or_is_not_counted_is_unknown() -> None:
    processes = pd.DataFrame(_samples(7, 900, 2_000, 1.0), columns=PROCESS_COLUMNS).assign(host="")
    half = pd.DataFrame([[990 * NS, 1.0, 1.0], [1_010 * NS, 30.0, 2.0]], columns=MACHINE_COLUMNS)
    assert besides(half, processes, START, END) == CpuBesides(others=None, stolen=None)
    whole = pd.DataFrame([[990 * NS, 100.0, None], [1_030 * NS, 180.0, None]], columns=MACHINE_COLUMNS)
    found = besides(whole.astype({"stolen_s": "float64"}), processes, START, END)
    assert (found.others, found.stolen, found.services) == (pytest.approx(1.0), None, None)


def test_what_was_taken_is_told_on_average_and_at_its_worst() -> None:
    """Others take half a core all the while, and one and a half for three seconds; the host takes a tenth."""
    ours = pd.DataFrame(_samples(7, 900, 2_000, 0.5), columns=PROCESS_COLUMNS).assign(host="")
    rows, busy = [], 0.0
    for tick in range(990, 1_030):
        rows.append([tick * NS, busy, 0.1 * tick])
        busy += 0.5 + 0.5 + (1.0 if 1_004 <= tick < 1_007 else 0.0)
    found = taken(pd.DataFrame(rows, columns=MACHINE_COLUMNS), ours, START, END)
    assert found is not None
    assert found.mean == pytest.approx(0.6 + 3 / 20)
    assert found.worst == pytest.approx(0.6 + 3 / WORST_S)
    assert taken(pd.DataFrame(rows[:12], columns=MACHINE_COLUMNS), ours, START, END) is None, "not sampled to its end"


def test_others_never_used_less_than_nothing() -> None:
    """The machine's counter is coarser than those of the processes, and may lag behind their sum."""
    processes = pd.DataFrame(_samples(7, 900, 2_000, 1.0), columns=PROCESS_COLUMNS).assign(host="")
    machine = pd.DataFrame([[990 * NS, 10.0, 0.0], [1_030 * NS, 49.0, 0.0]], columns=MACHINE_COLUMNS)
    found = besides(machine, processes, START, END)
    assert (found.others, found.stolen) == (0.0, 0.0)


def test_a_process_that_was_sampled_within_the_grain_of_its_birth_loses_nothing() -> None:
    """The kernel's clock ticks in hundredths, so a birth may be told as later than the first sample."""
    rows = [
        [START + NS, "executors", 7, 1_001.01, 0.25, 0, False],
        [START + 11 * NS, "executors", 7, 1_001.01, 5.25, 0, True],
    ]
    assert cores(pd.DataFrame(rows, columns=PROCESS_COLUMNS).assign(host=""), START, END)["executors"] == pytest.approx(
        5.25 / 20
    )


def test_throughput_is_told_by_the_cores_of_those_who_do_the_work() -> None:
    used = {"driver": 9.0, "executors": 0.5, "python_workers": 0.3, "kafka": 9.0, "generator": 9.0}
    assert rps_per_core(400.0, used) == 500.0
    assert rps_per_core(400.0, {**used, "python_workers": None}) == 800.0
    assert rps_per_core(400.0, {**used, "executors": 0.0, "python_workers": None}) is None
