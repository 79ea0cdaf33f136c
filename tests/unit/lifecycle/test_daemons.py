"""Detached processes that planned faults need."""

from __future__ import annotations

import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.plan import Fault, FaultPlan, PlannedFault
from fault.proxy_control import ProxyControl
from faultline.engines.supervisor_journal import process_runs_of
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import Places
from faultline.experiment.prerequisites import Companion
from faultline.experiment.run import Run, run_of
from faultline.lifecycle import workload_supervisor
from faultline.lifecycle.attempt_processes import final_failure, start_companion, start_fault_daemons, workload_failure
from faultline.lifecycle.workload_supervisor import WorkloadSupervisor
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_journal, write_lines
from faultline.system.process_ledger import end_ledger, read_ledger
from faultline.system.secrets import make_secrets, write_logins
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from faultline.system.waiting import wait_until
from tests.support.attempts import ID, prepared, run_in
from tests.support.installation import free_ports
from tests.support.processes import detached, shown


def planned(*faults: Fault) -> tuple[PlannedFault, ...]:
    return FaultPlan(faults).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)


def run_with(folder: Path, known: Settings, **plan: Any) -> Run:
    """Return a prepared attempt; `plan`: changed fields."""
    attempt = prepared(folder / ID, {"fault": "none"})
    attempt.logs.mkdir()
    run = run_of(attempt, known)
    return replace(run, plan=replace(run.plan, **plan))


def settings(folder: Path, detour: int, **more: int) -> Settings:
    return Settings(
        ROOT, folder / "home", folder / "results", {**DEFAULT_PORTS, "kafka_proxied": 1, "kafka_proxy": detour, **more}
    )


def test_several_actions_on_connections_share_one_proxy(tmp_path: Path) -> None:
    detour = free_port()
    faults = planned(
        Fault("kafka", "delay", 1, duration_s=1, delay_ms=1), Fault("kafka", "reset", 5), Fault("executor", "kill", 9)
    )
    run = run_with(tmp_path, settings(tmp_path, detour), faults=faults)
    attempt = run.attempt
    try:
        (entry,) = start_fault_daemons(run)
        assert entry.role == "proxy"
        assert ProxyControl(attempt.folder / "proxy.json").status()["mode"] == "plain"
        shown(entry.pid, f"faultline-run={attempt.id}")
    finally:
        end_ledger(attempt.ledger)


def test_faults_on_processes_need_none(tmp_path: Path) -> None:
    faults = planned(Fault("executor", "kill", 1), Fault("kafka", "pause", 3, duration_s=1))
    run = run_with(tmp_path, settings(tmp_path, 1), faults=faults)
    assert start_fault_daemons(run) == []
    assert read_ledger(run.attempt.ledger) == []


def test_what_cannot_log_in_gets_a_gate_before_whatever_stands_there(tmp_path: Path) -> None:
    detour, gate = free_ports(2)
    known = settings(tmp_path, detour, kafka_gate=gate)
    write_logins(known.secrets, make_secrets(known.secrets))
    run = run_with(tmp_path, known, faults=planned(Fault("kafka", "cut", 1, duration_s=1)), gated=True)
    attempt = run.attempt
    attempt.scratch.mkdir()
    try:
        entries = start_fault_daemons(run)
        assert [entry.role for entry in entries] == ["proxy", "gate"]
        assert f"127.0.0.1:{detour}" in entries[1].command, "to the broker through the proxy"
        assert not any(word in " ".join(entries[1].command) for word in make_secrets(known.secrets).kafka.values())
    finally:
        end_ledger(attempt.ledger)


LAST_WORDS = "driver-0.log: [AN_ERROR.OF_A_CLASS] why"


@pytest.mark.parametrize(
    ("measured", "codes", "expected"),
    [
        (True, [], "supervisor: exited early: no message"),
        (True, [0], f"workload: exited with status 0; {LAST_WORDS}"),
        (True, [1], "supervisor: exited early: no message"),
        (True, [1, 1], "workload: exited 2 times; driver-1.log: (no log)"),
        (False, [1], "workload: exited before the start barrier opened; driver-0.log: ValueError: none"),
    ],
)
def test_an_ended_workload_is_reported_with_its_exit_reason(
    tmp_path: Path, measured: bool, codes: list[int], expected: str
) -> None:
    run = run_with(tmp_path, settings(tmp_path, 1))
    attempt = run.attempt
    write_json(attempt.folder / "workload.json", {"processes": [{"role": "driver", "max_restarts": 1}]})
    attempt.engine_logs.mkdir()
    log = "Traceback (most recent call last):\nValueError: none\n"
    if measured:
        log = "an Error\n[AN_ERROR.OF_A_CLASS] why\nan Exception\nbye\n"
        attempt.gate.touch()
    (attempt.engine_logs / "driver-0.log").write_text(log)
    own = {"event": "exit", "role": "driver"}
    lines = [{**own, "incarnation": number, "returncode": code} for number, code in enumerate(codes)]
    write_lines(attempt.supervisor_journal, lines)
    entry = detached(attempt, "supervisor")
    if len(codes) < 2 and measured:
        assert workload_failure(run, entry) is None, "it may be started again"
    end_ledger(attempt.ledger)
    assert workload_failure(run, entry) == expected


def test_before_the_start_the_first_exit_is_the_reason(tmp_path: Path) -> None:
    run = run_with(tmp_path, settings(tmp_path, 1))
    attempt, roles = run.attempt, ("driver", "worker")
    write_json(attempt.folder / "workload.json", {"processes": [{"role": role, "max_restarts": 1} for role in roles]})
    attempt.engine_logs.mkdir()
    lines = []
    for role, code in zip(roles, (2, 143), strict=True):
        lines.append({"event": "exit", "role": role, "incarnation": 0, "returncode": code})
        (attempt.engine_logs / f"{role}-0.log").write_text(f"Error of {role}\n")
    write_lines(attempt.supervisor_journal, lines)
    assert str(workload_failure(run, None)).endswith("driver-0.log: Error of driver")


def test_the_process_that_was_not_restarted_gives_the_reason(tmp_path: Path) -> None:
    """Its end ends the others, which exit later."""
    run = run_with(tmp_path, settings(tmp_path, 1))
    attempt, codes = run.attempt, {"worker": 143, "driver": 2}
    write_json(attempt.folder / "workload.json", {"processes": [{"role": role, "max_restarts": 1} for role in codes]})
    attempt.engine_logs.mkdir()
    lines: list[dict[str, object]] = [
        {"event": event, "role": role, "incarnation": number, "mono_ns": at_ns, "returncode": codes[role]}
        for at_ns, (event, role, number) in enumerate(
            [("exit", "worker", 0), ("restart", "worker", 0), ("exit", "driver", 0), ("exit", "worker", 1)]
        )
    ]
    (attempt.engine_logs / "driver-0.log").write_text("Error of the driver\n")
    write_lines(attempt.supervisor_journal, lines[2:])
    assert str(workload_failure(run, None)).endswith("opened; driver-0.log: Error of the driver")
    write_lines(attempt.supervisor_journal, lines[:3])
    assert str(workload_failure(run, None)).endswith("opened; driver-0.log: Error of the driver")


def test_a_final_status_is_reported_with_its_meaning(tmp_path: Path) -> None:
    run = run_with(tmp_path, settings(tmp_path, 1))
    attempt = run.attempt
    assert final_failure(run) is None
    attempt.engine_logs.mkdir()
    (attempt.engine_logs / "driver-0.log").write_text("Error: why\n")
    exits = [("worker", 163), ("driver", 163)]
    write_lines(
        attempt.supervisor_journal,
        [{"event": "exit", "role": role, "incarnation": 0, "returncode": code} for role, code in exits],
    )
    for meanings, failure in (({"163": "gave up"}, "workload: gave up; driver-0.log: Error: why"), ({}, None)):
        processes = [{"role": "worker", "max_restarts": 1}, {"role": "driver", "final_statuses": meanings}]
        write_json(attempt.folder / "workload.json", {"processes": [{"max_restarts": 1, **one} for one in processes]})
        assert final_failure(run) == failure


def test_another_process_on_a_companions_port_is_not_taken_for_it(tmp_path: Path) -> None:
    program = "import socket, sys; socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()"
    companion = Companion("memcached", (sys.executable, "-c", program, "{port}"))
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            places = Places(ports={"memcached": other.getsockname()[1]})
            run = run_with(tmp_path, settings(tmp_path, 1), places=places)
            attempt = run.attempt
            with pytest.raises(InfrastructureError, match="memcached: exited early: .*Address already in use"):
                start_companion(run, companion)
        attempt.ledger.unlink()
        entry = start_companion(run, companion)
        assert psutil.Process(entry.pid).is_running()
    finally:
        end_ledger(attempt.ledger)


# --- the supervisor gives a driver time to end by itself, and not more than that


# Exits some time after the signal, like a driver with shutdown hooks.
PROGRAM = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(float(sys.argv[1]))
    pathlib.Path("hooks").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path("up").touch()
while True:
    time.sleep(0.05)
"""


def supervisor_of(folder: Path, command: list[str], **more: object) -> WorkloadSupervisor:
    own = {"role": "driver", "command": command, "env": {}, "restart_delay_s": 0, "max_restarts": 2}
    return WorkloadSupervisor(run_in(folder), {"processes": [own], "ends_itself": True, **more})


@pytest.mark.parametrize(("takes_s", "grace_s", "hooks", "code"), [(1.3, 30.0, True, 0), (60.0, 0.3, False, -9)])
def test_a_driver_that_is_stopped_has_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, grace_s: float, hooks: bool, code: int
) -> None:
    monkeypatch.setattr(workload_supervisor, "TERM_GRACE_S", grace_s)
    supervisor = supervisor_of(tmp_path, [sys.executable, "-c", PROGRAM, str(takes_s)])
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()
    wait_until((tmp_path / "up").exists, timeout_s=120, every_s=0.01, what="the program runs")
    began = time.monotonic()
    supervisor.stop()
    thread.join(120)
    assert (codes, (tmp_path / "hooks").exists()) == ([code], hooks)
    assert time.monotonic() - began >= min(takes_s, grace_s)
    lines = read_journal(Attempt(tmp_path).supervisor_journal)
    assert [line["event"] for line in lines] == ["start", "exit", "stop"]


def supervised(folder: Path, command: list[str], **more: object) -> list[str]:
    """Return the events of a supervisor that runs a command."""
    supervisor_of(folder, command, **more).run()
    return [line["event"] for line in read_journal(Attempt(folder).supervisor_journal)]


def test_what_ends_before_the_gate_is_broken_and_not_started_again(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    assert supervised(tmp_path, failing) == ["start", "exit", "stop"]
    Attempt(tmp_path).gate.touch()
    Attempt(tmp_path).supervisor_journal.unlink()
    assert supervised(tmp_path, failing) == ["start", "exit", *["restart", "start", "exit"] * 2, "stop"]


def test_what_ends_with_a_final_status_is_not_started_again(tmp_path: Path) -> None:
    Attempt(tmp_path).gate.touch()
    usual = {"env": {}, "restart_delay_s": 0, "max_restarts": 2, "final_statuses": {"3": "gave up"}}
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    specification = {"processes": [{"role": "driver", "command": failing, **usual}], "ends_itself": True}
    assert WorkloadSupervisor(run_in(tmp_path), specification).run() == 3
    lines = read_journal(Attempt(tmp_path).supervisor_journal)
    assert [line["event"] for line in lines] == ["start", "exit", "stop"]


def test_several_processes_are_kept_each_by_its_own_rules_and_end_together(tmp_path: Path) -> None:
    """One process crashes twice and is restarted once; its final exit ends the other one."""
    Attempt(tmp_path).gate.touch()
    usual = {"env": {}, "restart_delay_s": 0}
    dying, staying = [sys.executable, "-c", "raise SystemExit(3)"], [sys.executable, "-c", PROGRAM, "0"]
    specification = {
        "processes": [
            {"role": "keeper", "command": staying, "max_restarts": 0, **usual},
            {"role": "hand", "command": dying, "max_restarts": 1, **usual},
        ],
        "ends_itself": True,
    }
    assert WorkloadSupervisor(run_in(tmp_path), specification).run() == 3
    lines = read_journal(Attempt(tmp_path).supervisor_journal)
    reported = [(line["event"], line["role"], line.get("incarnation")) for line in lines if line["event"] != "stop"]
    hand = [one for one in reported if one[1] == "hand"]
    assert hand == [
        ("start", "hand", 0), ("exit", "hand", 0), ("restart", "hand", None), ("start", "hand", 1), ("exit", "hand", 1),
    ]  # fmt: skip
    assert [one for one in reported if one[1] == "keeper"] == [("start", "keeper", 0), ("exit", "keeper", 0)]
    assert reported[-1] == ("exit", "keeper", 0) and lines[-1]["event"] == "stop"
    assert {path.name for path in Attempt(tmp_path).engine_logs.iterdir()} == {
        "keeper-0.log", "hand-0.log", "hand-1.log",
    }  # fmt: skip
    assert [life.incarnation for life in process_runs_of(lines, "hand")] == [0, 1] and not process_runs_of(lines)


def test_a_program_that_does_not_look_for_the_stop_file_is_ended_by_a_signal(tmp_path: Path) -> None:
    """It does not count as a crash and is not restarted."""
    (tmp_path / "stop").touch()
    events = supervised(tmp_path, [sys.executable, "-c", PROGRAM, "0"], ends_itself=False)
    assert events == ["start", "exit", "stop"]
