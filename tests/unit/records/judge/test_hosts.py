"""Journals of other hosts, converted to this host's clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from faultline.records.judge.cpu import (
    background_load,
    cores,
    cores_by_host,
    cores_of_host,
    highest_background_load,
    of_this_machine,
)
from faultline.records.judge.resources import is_clock_uncertain
from faultline.records.judge.rule_inputs import most_uncertain_clock
from faultline.records.judge.samples import (
    MACHINE_COLUMNS,
    HostClock,
    all_processes,
    clocks_of,
    processes_of,
    read_hosts,
    recorder_death,
)
from faultline.records.judge.validity import clock_skew
from faultline.system.journal import Line, read_finished, write_lines
from faultline.system.measured_window import NS
from tests.unit.records.judge.test_validity import GOOD
from tests.unit.synthetic import edit_lines

START, END = 1_000 * NS, 1_020 * NS
# First line of this machine's journal.
START_LINE = {"kind": "start", "boot": "b0", "space": "pid:[1]"}


def process(role: str, used: float, second: int, ahead_s: float = 0.0) -> dict[str, object]:
    return {"kind": "proc", "role": role, "pid": 7, "create_time": 900 + ahead_s, "cpu_s": used * (second - 900),
            "rss_bytes": 10**6, "final": False, "wall_ns": round((second + ahead_s) * NS)}  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., Path]:
    def write(
        name: str,
        *,
        boot: str,
        used: float = 0.4,
        busy: float = 0.5,
        ahead_s: float = 0.0,
        pid_namespace: str = "pid:[2]",
    ) -> Path:
        """Write a host's journal: an executor with `used` cores, its cgroup, and `busy` cores of the machine."""
        written: list[dict[str, object]] = [{"kind": "start", "boot": boot, "space": pid_namespace, "wall_ns": 1}]
        for second in range(990, 1_031):
            at = {"wall_ns": round((second + ahead_s) * NS)}
            grouped = {"cpu_s": (1.01 * used + 0.03) * second, "recording_s": 0.03 * second}
            written += [
                process("executors", used, second, ahead_s),
                {"kind": "machine", "busy_s": busy * second, "stolen_s": 0.0, **at},
                {"kind": "group", **grouped, **at},
            ]
        path = tmp_path / "hosts" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        write_lines(path, [*written, {"kind": "stop", "wall_ns": 1}])
        return path

    return write


def hosts_in(folder: Path, recorder: Sequence[Line]) -> tuple[Any, ...]:
    files = sorted((folder / "hosts").glob("*.jsonl"))
    return tuple(read_hosts({path.stem: read_finished(path) for path in files}, recorder))


def clock(host: str, offset_s: float, round_trip_s: float = 0.002) -> dict[str, object]:
    return {"kind": "clock", "host": host, "offset_s": offset_s, "round_trip_s": round_trip_s}


def local(used: float) -> list[dict[str, object]]:
    return [process("driver", used, at) for at in range(990, 1_031)]


@pytest.mark.parametrize("ahead_s", [0.0, 5.0, -120.0])
def test_processes_of_other_hosts_are_counted_on_the_local_clock(
    tmp_path: Path, journal: Callable[..., Path], ahead_s: float
) -> None:
    """The processes on both hosts have the same PID and creation time."""
    journal("worker-1", ahead_s=ahead_s, boot="b0")
    journal("worker-2", used=0.2, boot="b2")
    recorder = [clock("worker-1", ahead_s), *local(0.3), clock("worker-1", ahead_s + 0.001)]
    hosts = hosts_in(tmp_path, [START_LINE, *recorder])
    assert [one.name for one in hosts] == ["worker-1", "worker-2"]
    processes = all_processes(recorder, (), hosts)
    found = cores(processes, START, END)
    assert found["executors"] == pytest.approx(0.6) and found["driver"] == pytest.approx(0.3)
    assert cores_of_host(hosts[0], START, END) == pytest.approx((0.4, 0.404)), "by cgroup, on this machine"
    assert cores_of_host(hosts[1], START, END) == pytest.approx((0.2, 0.47)), "by machine counter, on another machine"
    by_host = cores_by_host(processes, "here", START, END)
    assert by_host == pytest.approx({"here": 0.3, "worker-1": 0.4, "worker-2": 0.2})


def test_processes_of_a_shared_pid_namespace_are_counted_once(tmp_path: Path, journal: Callable[..., Path]) -> None:
    """Containers that share a PID namespace are such hosts."""
    journal("workers", boot="b0", pid_namespace="pid:[1]")
    hosts = hosts_in(tmp_path, [START_LINE, *local(0.3)])
    found = cores(all_processes(local(0.3), (), hosts), START, END)
    assert (found["driver"], found["executors"]) == (pytest.approx(0.3), 0.0)
    assert cores_of_host(hosts[0], START, END) == (0.0, None)
    # The namespace number is only comparable on the same machine.
    for boot, start_line in (("b1", START_LINE), ("b0", {"kind": "start", "boot": "b0"})):
        journal("workers", boot=boot, pid_namespace="pid:[1]")
        (host,) = hosts_in(tmp_path, [start_line])
        assert cores_of_host(host, START, END)[0] == pytest.approx(0.4)


def test_host_recorder_without_stop_line_died(tmp_path: Path, journal: Callable[..., Path]) -> None:
    journal("worker-1", boot="b0")
    file = journal("worker-2", boot="b0")
    assert recorder_death([{"kind": "stop"}], hosts_in(tmp_path, [START_LINE])) is None
    edit_lines(file, lambda lines: lines[:-1])
    died = recorder_death([{"kind": "stop"}], hosts_in(tmp_path, [START_LINE]))
    assert died == "of worker-2: the last line of its journal is not `stop`"


def test_background_load_of_local_and_remote_hosts(tmp_path: Path, journal: Callable[..., Path]) -> None:
    journal("local-1", used=0.5, busy=0.0, boot="b0")
    journal("remote-1", used=0.5, busy=1.75, boot="b1")
    recorder = local(0.25)
    hosts = hosts_in(tmp_path, [START_LINE, *recorder])
    processes = all_processes(recorder, (), hosts)
    machine = pd.DataFrame([[990 * NS, 0.0, 0.0], [1_030 * NS, 40 * 0.8, 0.0]], columns=MACHINE_COLUMNS)
    own = background_load(machine, of_this_machine(processes, hosts), START, END)
    assert own is not None and own.mean == pytest.approx(0.8 - 0.75)
    anywhere = highest_background_load(machine, processes, hosts, START, END)
    assert anywhere is not None and anywhere.mean == pytest.approx(1.25), "on the other machine"
    alone = highest_background_load(machine, processes_of(recorder), (), START, END)
    assert alone is not None and alone.mean == pytest.approx(0.55)


def test_clock_uncertainty_is_drift_plus_half_a_round_trip() -> None:
    clocks = clocks_of([clock("a", 0.5, 0.002), clock("b", -1.0, 0.001), clock("a", 0.503, 0.004), {"kind": "proc"}])
    assert clocks["a"] == HostClock(0.5, 0.503, 0.002)
    assert clocks["a"].ahead_s == pytest.approx(0.5015) and clocks["a"].uncertain_ms == 5.0
    assert clocks["b"].ahead_s == -1.0 and math.isinf(clocks["b"].uncertain_ms), "not read at the end"
    assert most_uncertain_clock(clocks) == ("b", math.inf)
    assert most_uncertain_clock({"a": clocks["a"]}) == ("a", 5.0)
    assert most_uncertain_clock({}) is None


NS_READINGS = st.integers(-(10**8), 10**8)


@given(NS_READINGS, st.integers(-12_000_000, 12_000_000), st.integers(0, 24_000_000), st.integers(0, 24_000_000))
@example(0, 4_000_000, 2_000_000, 0)  # exactly 5 ms
@example(500_000_000, 3_000_000, 4_000_000, 1)
@example(0, -4_000_001, 2_000_000, 0)
@example(0, 1_000_000, 0, 0)  # exactly 1 ms
@example(-7, 999_999, 0, 2)
@example(99_999_999, 0, 2_000_001, 2)
def test_clock_limits_are_exact_to_the_nanosecond(start: int, drift: int, first: int, last: int) -> None:
    lines = [clock("a", start / 1e9, first / 1e9), clock("a", (start + drift) / 1e9, last / 1e9)]
    found = most_uncertain_clock(clocks_of(lines))
    assert found is not None
    twice_ns = 2 * abs(drift) + max(first, last)
    assert (clock_skew(replace(GOOD, clock_uncertain=found)) is not None) == (twice_ns > 10_000_000)
    assert is_clock_uncertain(found[1]) == (twice_ns > 2_000_000)


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(NS_READINGS, NS_READINGS | st.none()), min_size=1))
def test_one_uncertain_host_gives_a_reason(readings: dict[str, tuple[int, int | None]]) -> None:
    lines = [clock(name, start / 1e9, 0.0) for name, (start, _) in readings.items()]
    lines += [clock(name, end / 1e9, 0.0) for name, (_, end) in readings.items() if end is not None]
    found = most_uncertain_clock(clocks_of(lines))
    uncertain_hosts = {name for name, (start, end) in readings.items() if end is None or abs(end - start) > 5_000_000}
    reason = clock_skew(replace(GOOD, clock_uncertain=found))
    assert (reason is not None) == bool(uncertain_hosts)
    assert reason is None or (found is not None and found[0] in uncertain_hosts and found[0] in reason)
    if any(end is None for _, end in readings.values()):
        assert reason is not None and "unknown" in reason


def test_uncertain_clock_is_named_with_its_host() -> None:
    assert clock_skew(GOOD) is None
    reason = clock_skew(replace(GOOD, clock_uncertain=("worker-1", 61_000.2)))
    assert reason is not None and "worker-1" in reason and "61000.2" in reason
