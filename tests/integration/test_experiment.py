"""One experiment on real Kafka and Spark that kills an executor, then the driver."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from faultline.base.journal import read_journal
from faultline.base.processes import process_of, processes_with_token, read_ledger
from faultline.records.record import committed_schema
from tests.integration.installation import OF_A_BUSY_MACHINE, Installation
from tests.integration.topics import read_topic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

# Short, and still long enough for a baseline of ten bins, two faults, and the 30 s that must follow the last.
RATE, WARMUP_S, DURATION_S = 200, 10, 71
SHORT = (f"rate={RATE}", f"warmup_s={WARMUP_S}", f"duration_s={DURATION_S}", "checkpoint_interval_s=1", "state_mb=0.5")
PLAN = {
    "faults": [
        {"victim": "executor", "action": "kill", "at_s": 21},
        {"victim": "driver", "action": "kill", "at_s": 50},
    ]
}


@pytest.fixture(scope="module")
def measured(shared_installation: Installation) -> tuple[Installation, dict[str, Any], Path]:
    """A record measured with a kill through dag.test(), its installation, and its raw files."""
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    plan = f"fault_plan={json.dumps(PLAN)}"
    done = shared_installation.run("run", "word_count_python", *SHORT, plan, "--keep-topics")
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    return shared_installation, record, shared_installation.results / "attempts" / record["attempt"]


def test_the_record_is_complete_and_its_counts_are_exact(
    measured: tuple[Installation, dict[str, Any], Path],
) -> None:
    _, record, _ = measured
    jsonschema.validate(record, committed_schema())
    assert record["status"] in ("valid", "invalid"), record["reasons"]
    assert all(reason.startswith(OF_A_BUSY_MACHINE) for reason in record["reasons"]), record["reasons"]
    audit = record["metrics"]["audit"]
    assert (audit["lost"], audit["overcounted"], audit["wrong"], audit["unknown"]) == (0, 0, 0, 0)
    latency = record["metrics"]["latency_ms"]
    assert latency["unreflected"] == 0 and latency["negative"] == 0
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def test_the_kills_were_real_and_the_timeline_has_their_evidence(
    measured: tuple[Installation, dict[str, Any], Path],
) -> None:
    _, record, folder = measured
    journal = read_journal(folder / "conductor.jsonl")
    assert [line["outcome"] for line in journal if line["event"] == "settled"] == ["effective", "effective"]
    for line in (line for line in journal if line["event"] == "delivered"):
        assert 0 <= line["mono_ns"] - line["planned_mono_ns"] < 1e9
    names = [event["name"] for event in record["timeline"]]
    assert {"gate", "t0", "t2", "t3", "t4", "t5", "t0#2", "t2#2"} <= set(names)
    assert any(name.startswith("driver_restarted") for name in names), "both incarnations belong to the timeline"
    assert all(event["source"] for event in record["timeline"])
    assert len(record["metrics"]["recoveries"]) == 2
    assert record["metrics"]["recovery"] == record["metrics"]["recoveries"][0]
    for recovery in record["metrics"]["recoveries"]:
        if recovery["recovered"]:
            assert recovery["macro_s"] >= recovery["reload_s"] > 0
        else:
            assert recovery["censored_at_s"] > 0 and recovery["macro_s"] is None, "recovered or censored, never silent"


def test_an_independent_consumer_counts_the_same_words(
    measured: tuple[Installation, dict[str, Any], Path],
) -> None:
    """The audit is not a mirror: plain Python over plain Kafka comes to the same totals."""
    installation, record, folder = measured
    topic = json.loads((folder / "attempt.json").read_text())["topics"]["input"]
    lines = read_topic(installation.settings.endpoints.kafka, topic)
    words = Counter(word for line in lines for word in line.value.split(" "))
    counts = pd.read_parquet(folder / "harvest" / "counts.parquet")
    assert dict(zip(counts["key"], counts["expected"], strict=True)) == words
    assert dict(zip(counts["key"], counts["final"].astype(int), strict=True)) == words
    assert record["metrics"]["audit"]["expected"] == words.total()
    due = [line.timestamp_ms for line in lines if not line.primer]
    gate = json.loads((folder / "gate.json").read_text())["t0_wall_ns"]
    assert sorted(due) == [(gate + k * 5_000_000) // 1_000_000 for k in range(RATE * (WARMUP_S + DURATION_S))], (
        "record k is due at T0 + k/P"
    )


def test_the_teardown_left_no_process_of_the_attempt(
    measured: tuple[Installation, dict[str, Any], Path],
) -> None:
    _, record, folder = measured
    entries = read_ledger(folder / "ledger.jsonl")
    assert {entry.role for entry in entries} == {"recorder", "generator", "supervisor", "conductor"}
    assert not [entry for entry in entries if process_of(entry)]
    assert not processes_with_token(record["attempt"])
    assert not (folder / "checkpoint").exists()
