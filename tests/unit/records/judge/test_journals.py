"""What the conductor's journal says of each fault, by its number, and the generator's of the load."""

from __future__ import annotations

from typing import Any

from faultline.records.judge.journals import Settled, read_conductor, read_generator
from faultline.system.journal import by_event


def line(event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, **values}


def test_each_planned_fault_has_an_entry_and_only_its_own_lines() -> None:
    journal = [
        line("victims", victims=[{"pid": 5, "role": "executor"}, {"pid": 6}, {"pid": 7, "fault": 1}]),
        line("end_offsets", offsets={"0": 9}, before_signal=False),
        line("end_offsets", offsets={"0": 5}),
        line("end_offsets", offsets={"0": 6}, before_signal=True),
        line("delivered", victim=5, wall_ns=30),
        line("delivered", victim=6, role="worker", wall_ns=20),
        line("undone", undo="SIGCONT"),
        line("settled", outcome="unknown"),
        line("settled", outcome="effective", detail="gone"),
        line("delivered", victim=7, role="driver", wall_ns=50, fault=1),
        line("end_offsets", offsets={"0": 1}, before_signal=False, fault=1),
        line("settled", outcome="no-effect", detail=None, fault=1),
    ]
    first, second, third = read_conductor(by_event(journal), 3).injected
    assert (first.index, first.t0_ns, first.end_offsets) == (0, 20, {"0": 5})
    assert first.victims == ({"pid": 5, "role": "executor"}, {"pid": 6, "role": "worker"})
    assert [one["undo"] for one in first.undone] == ["SIGCONT"]
    assert first.settled == Settled("effective", "gone")
    assert (second.t0_ns, second.end_offsets, second.undone) == (50, None, ())
    assert second.victims == ({"pid": 7, "fault": 1, "role": "driver"},)
    assert second.settled == Settled("no-effect")
    assert (third.index, third.t0_ns, third.victims, third.settled) == (2, None, (), Settled(None))
    assert [one.name("t2") for one in (first, second, third)] == ["t2", "t2#2", "t2#3"]


def test_what_was_said_of_a_victim_last_counts_and_hosts_have_pids_of_their_own() -> None:
    journal = [
        line("victims", victims=[{"pid": 5, "executors": ["1"]}, {"pid": 5, "host": "node1"}, {"pid": 8}]),
        line("victims", victims=[{"pid": 5, "executors": ["2"]}]),
        line("delivered", victim=5, wall_ns=1),
    ]
    (found,) = read_conductor(by_event(journal), 1).injected
    assert found.victims == (
        {"pid": 5, "executors": ["2"], "role": None}, {"pid": 5, "host": "node1", "role": None}
    )  # fmt: skip


def test_of_a_generators_journal_only_lines_with_a_lateness_tell_of_it() -> None:
    found = read_generator(by_event([line("progress", wall_ns=5, latest_ms=3), line("progress", wall_ns=6, late=0)]))
    assert (found.latest, found.unknown, found.end_offsets) == (((5, 3.0),), None, None)
    assert found.death == "it never reported `done`" and found.schedule_lag.p99 is None
    done = [line("done", unknown=9, end_offsets={}, schedule_lag_ms={}), line("failed", message="gone")]
    assert (read_generator(by_event(done)).unknown, read_generator(by_event(done)).death) == (9, "gone")
