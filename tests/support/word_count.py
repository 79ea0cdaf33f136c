"""Word count with a killed executor and a killed driver: configuration, and checks of its record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd

from faultline.records.record import committed_schema
from faultline.system.journal import read_journal
from faultline.system.process_ledger import process_of, processes_with_mark, read_ledger
from faultline.system.process_tags import RUN_MARK
from tests.support.installation import BUSY_MACHINE_REASONS
from tests.support.topics import Found

# The window holds a baseline of ten time bins, two faults, and 30 s after the last one. Two slow cores sustain it,
# since the test checks exactness, not speed.
RATE, WARMUP_S, DURATION_S = 100, 10, 71
PLAN = {
    "faults": [
        {"victim": "executor", "action": "kill", "at_s": 21},
        {"victim": "driver", "action": "kill", "at_s": 50},
    ]
}


def check_record(record: dict[str, Any]) -> None:
    """Check that the record is complete, and that all committed input was counted exactly."""
    jsonschema.validate(record, committed_schema())
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    audit = record["metrics"]["audit"]
    assert (audit["lost"], audit["overcounted"], audit["unexpected"], audit["unknown"]) == (0, 0, 0, 0)
    latency = record["metrics"]["latency_ms"]
    assert latency["negative"] == 0 and (latency["unreflected"] == 0 or audit["undrained"])
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def check_kills(record: dict[str, Any], folder: Path) -> None:
    """Check that the kills were effective, and that the timeline has their evidence."""
    journal = read_journal(folder / "conductor.jsonl")
    assert [line["outcome"] for line in journal if line["event"] == "settled"] == ["effective", "effective"]
    for line in (line for line in journal if line["event"] == "delivered"):
        assert line["mono_ns"] >= line["planned_mono_ns"]
    names = [event["name"] for event in record["timeline"]]
    assert {"gate", "t0", "t2", "t0#2", "t2#2"} <= set(names)
    if record["metrics"]["recovery"]["recovered"]:
        assert {"t3", "t4", "t5"} <= set(names), "a recovered run has all events of the recovery"
    assert any(name.startswith("driver_restarted") for name in names), "the restart of the driver is on the timeline"
    assert all(event["source"] for event in record["timeline"])
    assert len(record["metrics"]["recoveries"]) == 2
    assert record["metrics"]["recovery"] == record["metrics"]["recoveries"][0]
    for recovery in record["metrics"]["recoveries"]:
        if recovery["recovered"]:
            assert recovery["macro_s"] >= recovery["reload_s"] > 0
        else:
            assert recovery["censored_at_s"] > 0 and recovery["macro_s"] is None, "only a lower bound if not recovered"


def check_count(record: dict[str, Any], folder: Path, lines: Sequence[Found]) -> None:
    """Check the audit against counts in plain Python over the `lines` of an independent consumer."""
    words = Counter(word for line in lines for word in line.value.split(" "))
    counts = pd.read_parquet(folder / "harvest" / "counts.parquet")
    assert dict(zip(counts["key"], counts["expected"], strict=True)) == words
    undrained = int(counts["undrained"].sum())
    assert bool(undrained) is bool(record["metrics"]["audit"]["undrained"])
    if not undrained:
        assert dict(zip(counts["key"], counts["final"].astype(int), strict=True)) == words
    assert record["metrics"]["audit"]["expected"] + undrained == words.total()
    due = [line.timestamp_ms for line in lines if not line.primer]
    gate = json.loads((folder / "gate.json").read_text())["t0_wall_ns"]
    assert sorted(due) == [(gate + k * 10**9 // RATE) // 1_000_000 for k in range(RATE * (WARMUP_S + DURATION_S))], (
        "record k is scheduled at T0 + k / RATE"
    )


def check_teardown(record: dict[str, Any], folder: Path) -> None:
    """Check that no process and no checkpoint of the attempt is left."""
    entries = read_ledger(folder / "ledger.jsonl")
    assert {entry.role for entry in entries} == {"recorder", "generator", "supervisor", "conductor"}
    assert not [entry for entry in entries if process_of(entry)]
    assert not processes_with_mark(RUN_MARK, record["attempt"])
    assert not (folder / "checkpoint").exists()
