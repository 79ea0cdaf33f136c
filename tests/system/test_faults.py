"""Faults that end badly: a loss without checkpoints, a dead generator, a dead host."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import paramiko
import pytest

from benchmarks.ground_truth.scenarios import SCENARIOS
from faultline.records.record import Record
from faultline.system.process_ledger import process_of, read_ledger
from faultline.system.settings import HOST, free_port
from faultline.system.waiting import wait_until
from tests.support.installation import Installation

PLAIN = next(one for one in SCENARIOS if one.name == "batch_plain")

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def running(shared_installation: Installation) -> Installation:
    """Running Kafka and Spark."""
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    return shared_installation


def test_a_run_without_checkpoints_shows_its_loss_as_a_number(running: Installation) -> None:
    """Commit mode `none` on real Spark: a killed executor starts a new state epoch, and skipped records are lost."""
    parameters = ["rate=200", "warmup_s=10", "duration_s=41", "checkpoint_interval_s=1", "state_mb=0"]
    done = running.run("run", "word_count", "commit_mode=none", "fault=executor", *parameters)
    record = Record.model_validate_json(done.stdout)
    audit = record.metrics.audit
    assert record.status in ("valid", "unmet", "invalid"), (record.reasons, done.stderr)
    assert audit.expected and audit.lost and 0 < audit.lost < audit.expected
    assert (audit.overcounted, audit.unexpected, audit.unknown) == (0, 0, 0)
    events = {event.name: event for event in record.timeline}
    assert "state_epoch" in events and events["t3"].wall_ns == events["t4"].wall_ns
    folder = running.results / "attempts" / record.attempt
    batches = json.loads((folder / "batches.json").read_text())["batches"]
    (second,) = [one for one in batches if one["start_offsets"]]
    ended = [one for one in batches if one["lineage"] == 0][-1]["end_offsets"]
    assert second["lineage"] == 1
    assert sum(second["start_offsets"].values()) > sum(ended.values()), "the new lineage began at the latest offsets"
    left = [path for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(f"faultline-{record.attempt}*")]
    assert left == [], "nothing stays on the RAM disk"


def test_a_killed_generator_makes_the_record_invalid_and_no_recovery(running: Installation) -> None:
    command = [sys.executable, "-P", "-m", "faultline", "run", "known_truth", *PLAIN.parameters()]
    process = subprocess.Popen(
        command, env=running.environment, cwd=running.home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    attempts = running.results / "attempts"
    before = set(attempts.iterdir()) if attempts.exists() else set()

    def fresh() -> Path | None:
        new = [path for path in attempts.glob("*") if path not in before and (path / "gate.json").exists()]
        return new[0] if new else None

    folder = wait_until(
        fresh, timeout_s=400, what="the gate", alive=lambda: None if process.poll() is None else "the run ended early"
    )
    (entry,) = [entry for entry in read_ledger(folder / "ledger.jsonl") if entry.role == "generator"]
    generator = process_of(entry)
    assert generator is not None
    generator.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=600)
    record: dict[str, Any] = json.loads(output)
    assert record["status"] == "invalid"
    assert any(reason.startswith("generator-died") for reason in record["reasons"]), record["reasons"]
    assert record["metrics"]["recovery"]["recovered"] is None
    assert not [entry for entry in read_ledger(folder / "ledger.jsonl") if process_of(entry)]


def test_a_dead_host_fails_the_experiment_with_its_name_and_nothing_stays_broken(
    running: Installation, tmp_path: Path
) -> None:
    port = free_port()
    paramiko.RSAKey.generate(2048).write_private_key_file(str(tmp_path / "key"))
    (tmp_path / "known_hosts").touch(0o600)
    host = {"host": HOST, "port": port, "user": "nobody"}
    paths = {"key_file": str(tmp_path / "key"), "known_hosts": str(tmp_path / "known_hosts")}
    file = running.home / "ssh_hosts.json"
    file.write_text(json.dumps({"node1": {**host, **paths}}))
    try:
        assert running.run("up").returncode == 0, "makes the Connection"
        done = running.run("run", "known_truth", *PLAIN.parameters())
    finally:
        file.unlink()
    record = json.loads(done.stdout)
    assert (done.returncode, record["status"]) == (1, "failed")
    (reason,) = record["reasons"]
    assert "start_recorder" in reason and f"host node1: {HOST}: " in reason, reason
    folder = running.results / "attempts" / record["attempt"]
    assert not (folder / "gate.json").exists(), "nothing was measured"
    assert not [entry for entry in read_ledger(folder / "ledger.jsonl") if process_of(entry)]
