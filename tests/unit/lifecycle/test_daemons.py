"""The processes that planned faults need beside the workload."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fault.plan import Fault, FaultPlan, PlannedFault
from fault.proxy_control import ProxyControl
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.config import parse_configuration
from faultline.experiment.plan import AttemptPlan, resolve
from faultline.experiment.preparations import Companion
from faultline.lifecycle.daemons import start_companion, start_fault_daemons, workload_trouble
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.journal import write_lines
from faultline.system.processes import Entry, end_ledger, read_ledger, spawn_detached
from faultline.system.secrets import make_secrets, write_logins
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from tests.support.installation import free_ports
from tests.support.processes import shown


def planned(*faults: Fault) -> tuple[PlannedFault, ...]:
    return FaultPlan(faults).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)


def plan(faults: tuple[PlannedFault, ...], *, gated: bool = False) -> AttemptPlan:
    config, endpoints = parse_configuration({"fault": "none"}), Endpoints.embedded(DEFAULT_PORTS)
    topics = {"input": "a", "output": "b"}
    made = resolve(config, engine="spark", repetition=0, endpoints=endpoints, topics=topics)
    return replace(made, faults=faults, gated=gated)


def attempt_in(folder: Path) -> Attempt:
    attempt = Attempt(folder / "20261121T061500Z-3fa9c1")
    attempt.logs.mkdir(parents=True)
    return attempt


def settings(folder: Path, detour: int, **more: int) -> Settings:
    return Settings(
        ROOT, folder / "home", folder / "results", {**DEFAULT_PORTS, "kafka_proxied": 1, "kafka_proxy": detour, **more}
    )


def test_several_actions_on_connections_share_one_proxy(tmp_path: Path) -> None:
    attempt, detour = attempt_in(tmp_path), free_port()
    faults = planned(
        Fault("kafka", "delay", 1, duration_s=1, delay_ms=1), Fault("kafka", "reset", 5), Fault("executor", "kill", 9)
    )
    try:
        (entry,) = start_fault_daemons(attempt, settings(tmp_path, detour), plan(faults))
        assert entry.role == "proxy"
        assert ProxyControl(attempt.folder / "proxy.json").status()["mode"] == "plain"
        shown(entry.pid, f"faultline-run={attempt.id}")
    finally:
        end_ledger(attempt.ledger)


def test_faults_on_processes_need_none(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    faults = planned(Fault("executor", "kill", 1), Fault("kafka", "pause", 3, duration_s=1))
    assert start_fault_daemons(attempt, settings(tmp_path, 1), plan(faults)) == []
    assert read_ledger(attempt.ledger) == []


def test_what_cannot_log_in_gets_a_gate_before_whatever_stands_there(tmp_path: Path) -> None:
    attempt, (detour, gate) = attempt_in(tmp_path), free_ports(2)
    attempt.scratch.mkdir()
    known = settings(tmp_path, detour, kafka_gate=gate)
    write_logins(known.secrets, make_secrets(known.secrets))
    cut = planned(Fault("kafka", "cut", 1, duration_s=1))
    try:
        entries = start_fault_daemons(attempt, known, plan(cut, gated=True))
        assert [entry.role for entry in entries] == ["proxy", "gate"]
        assert f"127.0.0.1:{detour}" in entries[1].command, "to the broker through the proxy"
        assert not any(word in " ".join(entries[1].command) for word in make_secrets(known.secrets).kafka.values())
    finally:
        end_ledger(attempt.ledger)


def sleeper(attempt: Attempt, program: str = "import time; time.sleep(900)") -> Entry:
    return spawn_detached(
        [sys.executable, "-c", program],
        role="supervisor",
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=attempt.logs / "out",
        stderr=attempt.logs / "supervisor.err",
        cwd=attempt.folder,
    )


def test_a_workload_that_ended_before_the_gate_is_not_waited_for(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    write_json(attempt.folder / "attempt.json", {"config": {"workload": "word_count"}})
    write_json(attempt.folder / "workload.json", {"max_restarts": 5})
    attempt.spark_logs.mkdir()
    (attempt.spark_logs / "driver-0.log").write_text("Traceback (most recent call last):\nValueError: no such thing\n")
    write_lines(attempt.supervisor_journal, [{"event": "exit", "incarnation": 0, "returncode": 1}])
    entry = sleeper(attempt)
    end_ledger(attempt.ledger)
    assert workload_trouble(attempt, entry) == (
        "workload: ended before anything was measured; the last words of driver-0.log: ValueError: no such thing"
    )


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([], "supervisor: ended early: it left no message"),
        ([0], "workload: ended by itself, with status 0; the last words of driver-0.log: [AN_ERROR.OF_A_CLASS] why"),
        ([1], "supervisor: ended early: it left no message"),
        ([1, 1], "workload: ended 2 times; the last words of driver-1.log: (no log)"),
    ],
)
def test_a_workload_that_ended_is_told_by_its_own_last_words(tmp_path: Path, codes: list[int], said: str) -> None:
    attempt = attempt_in(tmp_path)
    write_json(attempt.folder / "attempt.json", {"config": {"workload": "word_count"}})
    write_json(attempt.folder / "workload.json", {"max_restarts": 1})
    attempt.spark_logs.mkdir()
    (attempt.spark_logs / "driver-0.log").write_text("an Error\n[AN_ERROR.OF_A_CLASS] why\nan Exception\nbye\n")
    attempt.gate.touch()
    lines = [{"event": "exit", "incarnation": number, "returncode": code} for number, code in enumerate(codes)]
    write_lines(attempt.supervisor_journal, lines)
    entry = sleeper(attempt)
    if len(codes) < 2:
        assert workload_trouble(attempt, entry) is None, "it may be started again"
    end_ledger(attempt.ledger)
    assert workload_trouble(attempt, entry) == said


def test_a_stranger_on_a_companions_port_is_not_taken_for_it(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    program = "import socket, sys; socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()"
    companion = Companion("memcached", (sys.executable, "-c", program, "{port}"))
    try:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            write_json(attempt.folder / "attempt.json", {"companion_ports": {"memcached": port}})
            with pytest.raises(InfrastructureError, match="memcached: ended early: .*Address already in use"):
                start_companion(attempt, settings(tmp_path, 1), companion)
        attempt.ledger.unlink()
        entry = start_companion(attempt, settings(tmp_path, 1), companion)
        assert psutil.Process(entry.pid).is_running()
    finally:
        end_ledger(attempt.ledger)
