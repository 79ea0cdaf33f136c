"""Journals of other hosts, on this host's clock."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from faultline.analysis.cpu import cores, taken
from faultline.analysis.hosts import (
    MACHINE_COLUMNS,
    Clock,
    all_processes,
    clocks_of,
    cores_by_host,
    of_this_machine,
    processes_of,
    read_hosts,
    taken_anywhere,
    uncertain_ms,
    unrecorded,
)
from faultline.analysis.validity import clocks_apart
from faultline.base.window import NS
from tests.unit.analysis.test_validity import GOOD

START, END = 1_000 * NS, 1_020 * NS


def journal(folder: Path, name: str, *, ahead_s: float, used: float, busy: float, boot: str) -> None:
    """A host's own: an executor that uses so many cores, of so many that its machine is busy with; and of its group."""
    (folder / "hosts").mkdir(exist_ok=True)
    written: list[dict[str, object]] = [{"kind": "start", "boot": boot, "wall_ns": 1}]
    for second in range(990, 1_031):
        wall_ns = round((second + ahead_s) * NS)
        written += [
            {"kind": "proc", "role": "executors", "pid": 7, "create_time": 900 + ahead_s,
             "cpu_s": used * (second - 900), "rss_bytes": 10**6, "final": False, "wall_ns": wall_ns},
            {"kind": "machine", "busy_s": busy * second, "stolen_s": 0.0, "wall_ns": wall_ns},
            {"kind": "group", "cpu_s": 1.01 * used * second, "wall_ns": wall_ns},
        ]  # fmt: skip
    written.append({"kind": "stop", "wall_ns": 1})
    (folder / "hosts" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))


def clock(host: str, offset_s: float, round_trip_s: float = 0.002) -> dict[str, object]:
    return {"kind": "clock", "host": host, "offset_s": offset_s, "round_trip_s": round_trip_s}


def local(used: float) -> list[dict[str, object]]:
    return [
        {"kind": "proc", "role": "driver", "pid": 7, "create_time": 900.0, "cpu_s": used * (at - 900), "rss_bytes": 1,
         "final": False, "wall_ns": at * NS}
        for at in range(990, 1_031)
    ]  # fmt: skip


@pytest.mark.parametrize("ahead_s", [0.0, 5.0, -120.0])
def test_a_hosts_processes_are_counted_at_this_hosts_instants(tmp_path: Path, ahead_s: float) -> None:
    """Both have a process of the same number, born at the same instant."""
    journal(tmp_path, "worker-1", ahead_s=ahead_s, used=0.4, busy=0.5, boot="b0")
    journal(tmp_path, "worker-2", ahead_s=0.0, used=0.2, busy=0.5, boot="b2")
    recorder = [clock("worker-1", ahead_s), *local(0.3), clock("worker-1", ahead_s + 0.001)]
    hosts = read_hosts(tmp_path, recorder, "b0")
    assert [one.name for one in hosts] == ["worker-1", "worker-2"]
    processes = all_processes(recorder, (), hosts)
    found = cores(processes, START, END)
    assert found["executors"] == pytest.approx(0.6) and found["driver"] == pytest.approx(0.3)
    used, counted = hosts[0].cores(START, END)
    assert used == pytest.approx(0.4) and counted == pytest.approx(0.404), "by its group, on this machine"
    used, counted = hosts[1].cores(START, END)
    assert used == pytest.approx(0.2) and counted == pytest.approx(0.5), "by its machine, which is its own"
    assert cores_by_host(processes, "here", START, END) == {
        "here": pytest.approx(0.3), "worker-1": pytest.approx(0.4), "worker-2": pytest.approx(0.2)
    }  # fmt: skip


def test_a_recording_that_ended_by_itself_is_one_that_died(tmp_path: Path) -> None:
    journal(tmp_path, "worker-1", ahead_s=0.0, used=0.4, busy=0.5, boot="b0")
    journal(tmp_path, "worker-2", ahead_s=0.0, used=0.4, busy=0.5, boot="b0")
    assert unrecorded(read_hosts(tmp_path, (), "b0")) is None
    file = tmp_path / "hosts" / "worker-2.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert unrecorded(read_hosts(tmp_path, (), "b0")) == "of worker-2: the last line of its journal is not `stop`"


def test_hosts_of_this_machine_share_its_processors_and_others_do_not(tmp_path: Path) -> None:
    journal(tmp_path, "here", ahead_s=0.0, used=0.5, busy=0.0, boot="b0")
    journal(tmp_path, "away", ahead_s=0.0, used=0.5, busy=1.75, boot="b1")
    recorder = local(0.25)
    hosts = read_hosts(tmp_path, recorder, "b0")
    processes = all_processes(recorder, (), hosts)
    machine = pd.DataFrame([[990 * NS, 0.0, 0.0], [1_030 * NS, 40 * 0.8, 0.0]], columns=MACHINE_COLUMNS)
    own = taken(machine, of_this_machine(processes, hosts), START, END)
    assert own is not None and own.mean == pytest.approx(0.8 - 0.75)
    anywhere = taken_anywhere(machine, processes, hosts, START, END)
    assert anywhere is not None and anywhere.mean == pytest.approx(1.25), "of the other machine"
    alone = taken_anywhere(machine, processes_of(recorder), (), START, END)
    assert alone is not None and alone.mean == pytest.approx(0.55)


def test_a_clock_is_as_sure_as_it_stood_still_and_was_asked_quickly() -> None:
    clocks = clocks_of([clock("a", 0.5, 0.002), clock("b", -1.0, 0.001), clock("a", 0.503, 0.004), {"kind": "proc"}])
    assert clocks["a"] == Clock(0.5, 0.503, 0.002)
    assert clocks["a"].ahead_s == pytest.approx(0.5015) and clocks["a"].uncertain_ms == 5.0
    assert clocks["b"].ahead_s == -1.0 and math.isinf(clocks["b"].uncertain_ms), "it was not asked at the end"
    assert uncertain_ms(clocks) == ("b", math.inf)
    assert uncertain_ms({"a": clocks["a"]}) == ("a", 5.0)
    assert uncertain_ms({}) is None


def test_a_record_is_unsound_where_a_clock_is_known_to_worse_than_five_ms() -> None:
    assert clocks_apart(GOOD) is None
    assert clocks_apart(replace(GOOD, clock_uncertain=("worker-1", 5.0))) is None
    said = clocks_apart(replace(GOOD, clock_uncertain=("worker-1", 61_000.2)))
    assert said is not None and said.startswith("the clock of worker-1 is known to 61000.2 ms > 5 ms")
