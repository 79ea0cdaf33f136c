"""Collection of raw files; topics are harvested completely or not at all."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fault.host_faults import injection_name, neighbour_mark
from fault.process_sampler import RoleRule
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import Places
from faultline.experiment.run import Run
from faultline.installation.targets.machines import ClockOffsetBound
from faultline.lifecycle import collect as subject
from faultline.lifecycle import recorder
from faultline.lifecycle.collect import broker_ahead_ms
from faultline.lifecycle.hosts import broker_clock
from faultline.lifecycle.hosts.recordings import role_rules
from faultline.records.judge.samples import HostClock as Drift
from faultline.records.judge.samples import clocks_of
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_finished
from faultline.system.process_tags import NEIGHBOURS, SERVICES
from tests.support.attempts import ID, run_in
from tests.unit.installation.test_preflight import endpoints


class Broker:
    """Broker whose topics begin at `begins`, else at 0."""

    begins: dict[str, dict[str, int]] = {}
    asked: list[str] = []

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic

    def earliest(self, timeout_s: float) -> dict[str, int]:
        self.asked.append(self._topic)
        return self.begins.get(self._topic, {"0": 0, "1": 0})


@pytest.mark.parametrize("topic", [f"{ID}-input", f"{ID}-output"])
def test_a_topic_that_lost_its_beginning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    subject.require_complete(run_in(tmp_path / ID).plan)
    monkeypatch.setattr(Broker, "begins", {topic: {"0": 0, "1": 4200}})
    with pytest.raises(InfrastructureError) as raised:
        subject.require_complete(run_in(tmp_path / ID).plan)
    assert str(raised.value).startswith(f"topic {topic}: partition 1 starts at offset 4200; expected 0")


def test_what_the_engine_makes_lies_in_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    monkeypatch.setattr(Broker, "asked", [])
    subject.require_complete(run_in(tmp_path / ID, {"workload": "nexmark", "query": "q8"}).plan)
    assert Broker.asked == []


# --- by how much outputs are moved that the broker stamped, and how its clock is asked for on a target


@pytest.mark.parametrize(
    ("readings", "ahead_ms"),
    [
        ([], 0),
        ([("worker-1", 5.0), ("worker-1", 5.0)], 0),
        ([("kafka", 0.0104)], 10),
        ([("kafka", -60.0), ("worker-1", 9.0), ("kafka", -60.002)], -60_001),
    ],
)
def test_it_is_the_brokers_clock_alone_in_whole_ms(
    tmp_path: Path, readings: list[tuple[str, float]], ahead_ms: int
) -> None:
    attempt = Attempt(tmp_path)
    lines = [{"kind": "clock", "host": host, "offset_s": ahead, "round_trip_s": 0.001} for host, ahead in readings]
    lines.append({"kind": "stop"})
    attempt.recorder_journal.write_text(
        "".join(f"{json.dumps({'wall_ns': 1, 'mono_ns': 1, **one})}\n" for one in lines)
    )
    assert broker_ahead_ms(attempt) == ahead_ms


@pytest.fixture
def on_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Return a prepared attempt on the target lab."""
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))

    def make(**hosts: dict[str, Any]) -> Run:
        return run_in(tmp_path / ID, {"target": "lab", "fault": "none"}, endpoints=endpoints(hosts=hosts))

    return make


def recorded(run: Run, monkeypatch: pytest.MonkeyPatch, *answers: ClockOffsetBound | Exception) -> dict[str, Drift]:
    """Return the clock lines of a recorder that stops at once.

    `answers`: the broker's replies.
    """
    left = list(answers)

    def worked(_: object) -> ClockOffsetBound:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(broker_clock, "check_rights", worked)
    recorder.record_attempt(run, stop)
    assert left == []
    return clocks_of(read_finished(run.attempt.recorder_journal))


def test_a_targets_broker_is_asked_by_records_at_the_start_and_at_the_end(
    on_target: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_target()
    clock = recorded(run, monkeypatch, ClockOffsetBound(40.0, 1.5), ClockOffsetBound(42.0, 1.0))["kafka"]
    assert (clock.start_s, clock.end_s) == (0.04, 0.042)
    # It moved by 2 ms, and each reading is known to 1.5 ms at worst.
    assert clock.uncertain_ms == 3.5
    assert broker_ahead_ms(run.attempt) == 41


def test_a_broker_that_is_away_at_the_end_leaves_its_clock_unknown_and_at_the_start_ends_the_recorder(
    on_target: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_target()
    with pytest.raises(InfrastructureError, match="gone"):
        recorded(run, monkeypatch, InfrastructureError("gone"))
    run.attempt.recorder_journal.unlink()
    clock = recorded(run, monkeypatch, ClockOffsetBound(40.0, 1.5), InfrastructureError("gone"))["kafka"]
    assert clock.end_s is None and clock.uncertain_ms == math.inf
    (lost,) = [line for line in read_finished(run.attempt.recorder_journal) if line["kind"] == "host_lost"]
    assert (lost["host"], lost["message"]) == ("kafka", "gone")


def test_a_broker_whose_host_is_reached_is_asked_there(
    on_target: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [{"host": "kafka", "offset_s": 0.01}, {"host": "kafka", "offset_s": 0.01}]

    def note(*_: object, **more: Any) -> None:
        (more.get("note") or _[-1])({"kind": "clock", "round_trip_s": 0.001, **asked.pop()})  # type: ignore[operator]

    monkeypatch.setattr("faultline.lifecycle.hosts.recordings.start_recordings", note)
    monkeypatch.setattr("faultline.lifecycle.hosts.recordings.stop_recordings", note)
    run = on_target(kafka={"host": "10.0.0.7"})
    assert recorded(run, monkeypatch)["kafka"].ahead_s == 0.01
    assert asked == []


# --- whose processes other hosts record, and as what


FAULTS = [
    {"victim": "worker", "action": "cpu_pressure", "at_s": 60, "duration_s": 5, "cores": 2},
    {"victim": "kafka", "action": "memory_pressure", "at_s": 90, "duration_s": 5, "memory_mb": 64},
]


def test_what_a_fault_starts_on_a_host_is_the_experiments_own(tmp_path: Path) -> None:
    """It must not count as background CPU."""
    values = {"duration_s": 200, "fault_plan": {"faults": FAULTS}}
    run = run_in(tmp_path / ID, values, places=Places(instance="i"))
    rules = role_rules(run, [RoleRule("executors", "main", "mark")])
    role = {
        index: [
            rule.role
            for rule in rules
            if rule.matches(("python3", "-c", "", neighbour_mark(injection_name(ID, index))))
        ]
        for index in range(3)
    }
    assert role == {0: [NEIGHBOURS], 1: [NEIGHBOURS], 2: []}
    assert [rule.role for rule in rules if rule.role != NEIGHBOURS] == ["executors", "kafka", SERVICES]
