"""Synthetic attempts with defects: the reasons of their records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faultline.engines.batches import write_batches
from faultline.experiment.config import parse_configuration
from faultline.records.judge.judge import judge
from tests.unit.synthetic import (
    CONTROL,
    KILL,
    NS,
    PRIMER,
    Scenario,
    Synthetic,
    checked,
    configure,
    edit_event,
    edit_json,
    edit_lines,
    edit_table,
    is_unknown,
    write_lines,
)

SHORT_NEXMARK = {"workload": "nexmark", "fault": "none", "warmup_s": 6.0, "checkpoint_interval_s": 2.0}


def _drop_lines(path: Path, key: str, value: str) -> None:
    edit_lines(path, lambda lines: [line for line in lines if line.get(key) != value])


def _idle_worker(directory: Path) -> None:
    def idle(lines: list[Any]) -> list[Any]:
        lines[0]["victims"][0]["executors"] = []
        return lines

    edit_lines(directory / "conductor.jsonl", idle)


def _loss_in_control(directory: Path) -> None:
    def lost(lines: list[Any]) -> list[Any]:
        lines[-2]["executors"][1]["removeTime"] = "2026-11-21T06:15:30.000GMT"
        return lines

    edit_lines(directory / "recorder.jsonl", lost)


def _late_generator(directory: Path) -> None:
    t0_ns = json.loads((directory / "gate.json").read_text())["t0_wall_ns"]
    warmup_ns = round(Scenario().warmup_s * NS)
    reports = [
        {"event": "progress", "wall_ns": t0_ns, "mono_ns": 0, "sent": 1000, "late": 500},  # before the window
        {"event": "progress", "wall_ns": t0_ns + warmup_ns + NS, "mono_ns": NS, "sent": 2000, "late": 511},
    ]
    edit_lines(directory / "generator.jsonl", lambda lines: [*reports, *lines])


def _no_latency_before(directory: Path) -> None:
    edit_table(directory / "harvest" / "tuples.parquet", lambda rows: rows[rows["batch"] > KILL.hit])


@pytest.mark.parametrize(
    ("break_evidence", "scenario", "is_only_reason", "reason"),
    [
        (_late_generator, {}, True, "schedule-lag: 1.1% of the records were more than 50 ms late"),
        (lambda folder: _drop_lines(folder / "conductor.jsonl", "event", "delivered"), {}, False,
         "timeline-incomplete: missing: t0, no delivery was journalled"),
        (lambda folder: (folder / "spark-logs").rename(folder / "elsewhere"), {}, True,
         "timeline-incomplete: missing: t3, though t7 was seen; missing: t4, though t7 was seen"),
        (_idle_worker, {"victims": ("worker",)}, True,
         "no-effect: the fault changed nothing (the worker hosted no executor of the run)"),
        (_no_latency_before, {}, False,
         "timeline-incomplete: missing: what is normal, no tuple was emitted before the fault"),
        (_loss_in_control, {"fault": False}, True, "fault-in-control: executor 0 was lost"),
    ],
    ids=["schedule lag", "no delivery", "no logs", "idle worker", "no latency", "control"],
)  # fmt: skip
def test_defects_of_the_evidence_are_reasons(
    tmp_path: Path, break_evidence: Callable[[Path], None], scenario: dict[str, Any], is_only_reason: bool, reason: str
) -> None:
    directory = Synthetic(Scenario(**scenario)).write(tmp_path)
    break_evidence(directory)
    record = judge(directory)
    assert record.status == "invalid"
    assert record.reasons == [reason] if is_only_reason else reason in record.reasons
    assert (record.metrics.recovery.reload_s is None) is (
        break_evidence not in (_late_generator, _no_latency_before)
    ), "a gap"


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("generator.jsonl", "event", "done", "generator-died"),
        ("recorder.jsonl", "kind", "stop", "recorder-died"),
        ("conductor.jsonl", "event", "done", "scheduler-died"),
        ("conductor.jsonl", "outcome", "no-effect", "no-effect"),
        ("conductor.jsonl", "outcome", "missed-window", "missed-window"),
        ("conductor.jsonl", "outcome", "unknown", "fault-outcome-unknown"),
    ],
)
def test_incomplete_run_or_ineffective_fault_has_no_recovery(
    killed: Path, name: str, key: str, value: str, code: str
) -> None:
    if key == "outcome":
        edit_event(killed / name, "settled", outcome=value)
    else:
        _drop_lines(killed / name, key, value)
    record = checked(killed, "invalid", f"{code}:")
    assert is_unknown(record.metrics.recovery) and len(record.metrics.recoveries) == 1
    assert [event.name for event in record.timeline] == ["gate", "measured_from", "measured_until"]


def test_one_fault_without_effect_invalidates_only_the_record(tmp_path: Path) -> None:
    synthetic = Synthetic(Scenario(victims=("executor", "python_worker")))
    directory = synthetic.write(tmp_path)
    (directory / "spark-logs" / "driver-0.log").unlink()
    # Without a lost task the worker counts as idle.
    record = checked(directory, "invalid", "no-effect: fault 2 changed nothing (no task was lost)")
    assert record.metrics.recoveries[0].reload_s == pytest.approx(synthetic.truth["reload_s"])
    assert is_unknown(record.metrics.recoveries[1])


@pytest.mark.parametrize(("late_ns", "backlog"), [(0, 0), (1, 2 * PRIMER)])
def test_preload_must_be_committed_at_t0(killed: Path, late_ns: int, backlog: int) -> None:
    """The newest commit up to and including T0 decides."""
    t0_ns, reason = KILL.window.t0_ns, f"backlog-at-t0: {backlog} offsets of the primer not committed at T0"
    batches = json.loads((killed / "batches.json").read_text())["batches"]
    assert batches[0]["end_offsets"] == {"0": PRIMER, "1": PRIMER}
    batches[0]["committed_wall_ns"] = t0_ns + late_ns
    edit_json(killed / "batches.json", batches=batches)
    assert judge(killed).reasons == ([reason] if backlog else [])
    earlier = {**batches[0], "batch": -1, "end_offsets": {"0": 0, "1": 0}, "committed_wall_ns": t0_ns - NS}
    edit_json(killed / "batches.json", batches=[earlier, *batches])
    assert len(judge(killed).reasons) == bool(backlog)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_unscheduled_workload_needs_a_commit_after_the_window(control: Path, after: int) -> None:
    """Otherwise its CPU is measured but its output does not count."""
    own = parse_configuration({**SHORT_NEXMARK, "duration_s": CONTROL.s.duration_s})
    assert not own.paced
    configure(control, **own.model_dump(mode="json"))
    write_lines(control / "generator.jsonl", [])
    inside = sum(commit.committed_ns < CONTROL.end_ns for commit in CONTROL.commits)
    write_batches(control, CONTROL.commits[: inside + after], method="id", reached={})
    lost = [one for one in judge(control).reasons if one.startswith("drain-incomplete: nothing was committed")]
    assert len(lost) == (not after)
