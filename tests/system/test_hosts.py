"""Faults on namespace hosts with the broker and two Spark workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultline.system.journal import read_journal
from tests.support.installation import BUSY_MACHINE_REASONS, Installation, make_installation
from tests.support.machines import NEEDS_HOSTS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(5400),
    *NEEDS_HOSTS,
]

HOSTS = {"kafka", "worker-1", "worker-2"}
SHORT = ("rate=100", "warmup_s=10", "duration_s=55", "checkpoint_interval_s=1", "state_mb=0.5")
VICTIMS = ("executor", "worker", "driver", "kafka")
ACTS = ("partition", "bandwidth", "disk_full", "cpu_pressure", "memory_pressure")


@pytest.fixture(scope="module")
def multi_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = make_installation(tmp_path_factory.mktemp("hosts"))
    try:
        up = made.run("up", "--no-airflow", "--hosts", "3")
        assert up.returncode == 0, up.stderr
        yield made
    finally:
        assert made.run("down").returncode == 0
    links, mounts = os.listdir("/sys/class/net"), Path("/proc/mounts").read_text()
    assert not any(name.startswith("faultl") for name in links) and str(made.home) not in mounts


def measured(installation: Installation, workload: str, *parameters: str) -> dict[str, Any]:
    """Run an experiment and return its complete and exact record."""
    done = installation.run("run", workload, *SHORT, *parameters)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    audit = record["metrics"]["audit"]
    # A broker that starts on a full disk truncates unverified records, even acknowledged ones.
    may_lose = {"fault=kafka", "fault_action=disk_full"} <= {*parameters}
    if not may_lose:
        assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
        assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
        assert [audit[name] for name in ("lost", "overcounted", "unexpected", "unknown")] == [0] * 4, audit
    assert audit["expected"] > 0
    hosts = record["environment"]["hosts"]
    assert set(hosts) == HOSTS
    for name, host in hosts.items():
        assert host["same_machine"] and abs(host["clock_ahead_s"]) < 0.001 and host["clock_uncertain_ms"] < 5, name
        # The last second of a killed worker is not sampled.
        assert host["cores_used"] == pytest.approx(host["cores_counted"], rel=0.02, abs=0.01), (name, host)
    return record


def settled(installation: Installation, record: dict[str, Any]) -> list[str]:
    journal = read_journal(installation.results / "attempts" / record["attempt"] / "conductor.jsonl")
    return [line["outcome"] for line in journal if line["event"] == "settled"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_nothing_is_lost_after_a_kill_on_any_host(multi_host: Installation, victim: str) -> None:
    record = measured(multi_host, "word_count", f"fault={victim}", "fault_at_s=21")
    assert settled(multi_host, record) == ["effective"]
    assert {"t0", "t2", "t4"} <= {event["name"] for event in record["timeline"]}


@pytest.mark.parametrize(
    ("victim", "act"), [*((victim, act) for victim in ("worker", "kafka") for act in ACTS), ("driver", "disk_full")]
)
def test_every_host_fault_is_undone_and_nothing_is_lost(multi_host: Installation, victim: str, act: str) -> None:
    record = measured(multi_host, "word_count", f"fault={victim}", f"fault_action={act}", "fault_at_s=21")
    journal = read_journal(multi_host.results / "attempts" / record["attempt"] / "conductor.jsonl")
    registered = [line for line in journal if line["event"] == "undo_registered"]
    undone = [line for line in journal if line["event"] == "undone"]
    assert len(registered) == len(undone) == 1 and not undone[0]["error"], undone
