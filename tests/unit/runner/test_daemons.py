"""The processes that planned faults need beside the workload."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

from fault.plan import Fault, FaultPlan, PlannedFault
from fault.proxy_control import ProxyControl
from faultline.base.attempt import Attempt
from faultline.base.processes import end_ledger, read_ledger
from faultline.base.settings import DEFAULT_PORTS, ROOT, Settings
from faultline.runner.daemons import start_fault_daemons


def planned(*faults: Fault) -> tuple[PlannedFault, ...]:
    return FaultPlan(faults).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)


def attempt_in(folder: Path) -> Attempt:
    attempt = Attempt(folder / "20261121T061500Z-3fa9c1")
    attempt.logs.mkdir(parents=True)
    return attempt


def settings(folder: Path, detour: int) -> Settings:
    return Settings(
        ROOT, folder / "home", folder / "results", {**DEFAULT_PORTS, "kafka_proxied": 1, "kafka_proxy": detour}
    )


def test_several_actions_on_connections_share_one_proxy(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        detour = free.getsockname()[1]
    faults = planned(
        Fault("kafka", "delay", 1, duration_s=1, delay_ms=1), Fault("kafka", "reset", 5), Fault("executor", "kill", 9)
    )
    try:
        (entry,) = start_fault_daemons(attempt, settings(tmp_path, detour), faults)
        assert entry.role == "proxy"
        assert ProxyControl(attempt.folder / "proxy.json").status()["mode"] == "plain"
        assert f"faultline-run={attempt.id}" in psutil.Process(entry.pid).cmdline()
    finally:
        end_ledger(attempt.ledger)


def test_faults_on_processes_need_none(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    faults = planned(Fault("executor", "kill", 1), Fault("kafka", "pause", 3, duration_s=1))
    assert start_fault_daemons(attempt, settings(tmp_path, 1), faults) == []
    assert read_ledger(attempt.ledger) == []
