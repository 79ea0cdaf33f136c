"""Traces of the ground-truth engine: resumption, and equivalence with Spark's raw files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.batches import BATCHES_FILE
from faultline.engines.ground_truth.engine import ENGINE
from faultline.engines.ground_truth.traces import TRACES_FILE, RestoredState, TraceJournal, commits_of, restore
from faultline.engines.protocol import Commit, ProcessRun, Traces
from faultline.engines.spark.engine import ENGINE as SPARK
from faultline.records.judge.judge import judge
from faultline.records.judge.timeline import first_loads
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Line, read_journal, write_lines
from tests.support.attempts import add_plan, run_in
from tests.unit.synthetic import Scenario, Synthetic

FIRST, SECOND, THIRD = {0: 3, 1: 3}, {0: 5, 1: 4}, {0: 9, 1: 9}


def until_the_kill(traces: TraceJournal) -> None:
    traces.plan(0, FIRST, None)
    traces.launch(0)
    traces.commit(0, {0: 0, 1: 0}, FIRST)
    traces.plan(1, SECOND, FIRST)
    traces.commit(1, FIRST, SECOND)
    traces.plan(2, THIRD, FIRST)  # killed before its commit


def own(folder: Path, incarnation: int, style: str = "batch") -> TraceJournal:
    return TraceJournal(folder / TRACES_FILE, incarnation=incarnation, style=style)


def offsets(commits: tuple[Commit, ...]) -> list[tuple[int, dict[str, int]]]:
    return [(one.number, dict(one.ends)) for one in commits]


def test_an_incarnation_resumes_after_the_last_commit(tmp_path: Path) -> None:
    assert restore(tmp_path / TRACES_FILE) == RestoredState()
    until_the_kill(own(tmp_path, 0))
    assert restore(tmp_path / TRACES_FILE) == RestoredState(1, SECOND, FIRST)
    again = own(tmp_path, 1)
    assert restore(tmp_path / TRACES_FILE) == RestoredState(1, SECOND, FIRST)
    again.commit(2, SECOND, THIRD)
    assert restore(tmp_path / TRACES_FILE) == RestoredState(2, THIRD, FIRST)


def test_traces_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    until_the_kill(own(tmp_path, 0, "record"))
    again = own(tmp_path, 1)
    again.launch(2)
    for partition in (0, 1):
        again.load(2, partition)
    again.commit(2, SECOND, THIRD)
    again.launch(3)
    again.log("all is well")
    again.end()
    assert capsys.readouterr().err.endswith("Z INFO [main] KnownTruth: all is well\n")
    life = (("start", 5), ("exit", 9))
    write_lines(tmp_path / "supervisor.jsonl", [{"event": name, "incarnation": 0, "wall_ns": at} for name, at in life])

    traces = ENGINE.traces(tmp_path)
    at = {line["event"] + str(line.get("batch", "")): line["wall_ns"] for line in read_journal(tmp_path / TRACES_FILE)}
    assert traces.method == "rank"
    assert offsets(traces.commits) == [(0, {"0": 3, "1": 3}), (1, {"0": 5, "1": 4}), (2, {"0": 9, "1": 9})]
    instants = [(at[f"planned{number}"], at[f"committed{number}"]) for number in (1, 2)]
    assert [(one.planned_ns, one.committed_ns) for one in traces.commits[1:]] == instants
    assert [batch.duration_ms for batch in traces.batches][2] == pytest.approx(
        (at["committed2"] - at["planned2"]) / 1e6
    )
    assert (traces.reached, traces.state_rows, traces.state_bytes) == ({"0": 9, "1": 9}, 18, 0)
    assert traces.process_runs == (ProcessRun(0, 5, 9),)
    assert [one.process for one in traces.events_of("task_started")] == 2 * ["driver-0"] + 4 * ["driver-1"]
    last = first_loads(traces.events_of("state_loaded"), 0, None)[-1]
    assert (last.store, last.task, last.process) == ("1", "task 1 of batch 2", "driver-1")
    (task,) = [one for one in traces.events_of("task_started") if (one.process, one.task) == (last.process, last.task)]
    assert (task.wall_ns, task.source) == (at["launched2"], "traces.jsonl: task 1 of batch 2 launched")


@given(cut=st.integers(0, 400))
def test_a_truncated_line_is_ignored(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("traces")
    until_the_kill(own(folder, 0))
    whole = (folder / TRACES_FILE).read_bytes()
    commits = commits_of(read_journal(folder / TRACES_FILE))
    (folder / TRACES_FILE).write_bytes(whole[: len(whole) - cut])
    left = [one for one in commits if one in commits_of(read_journal(folder / TRACES_FILE))]
    assert commits[: len(left)] == left
    assert restore(folder / TRACES_FILE).batch == (left[-1].number if left else -1)


def test_progress_reads_new_lines(tmp_path: Path) -> None:
    progress = ENGINE.progress(run_in(tmp_path, {"workload": "known_truth", "fault": "driver"}))
    assert (progress.committed(), progress.covering({}), progress.last_commit_ns()) == ({}, 0, 0)
    assert progress.await_cycle("checkpoint", 0, 0) is None
    traces = own(tmp_path, 0)
    until_the_kill(traces)
    assert progress.committed() == {"0": 5, "1": 4}
    assert [progress.covering(ends) for ends in ({"0": 3, "1": 3}, {"0": 4}, {"0": 6})] == [2, 1, 0]
    traces.commit(2, SECOND, THIRD)
    assert progress.covering({"0": 4}) == 2
    assert progress.last_commit_ns() == ENGINE.traces(tmp_path).commits[-1].committed_ns


def test_collect_writes_the_commits(tmp_path: Path) -> None:
    run = run_in(tmp_path, {"workload": "known_truth", "fault": "driver"})
    own(tmp_path, 0)
    with pytest.raises(InfrastructureError, match="commits"):
        ENGINE.collect(run)
    until_the_kill(own(tmp_path, 1))
    ENGINE.collect(replace(run, plan=replace(run.plan, method="rank")))
    content = json.loads((tmp_path / BATCHES_FILE).read_text())
    assert (content["method"], content["reached"]) == ("rank", {"0": 5, "1": 4})
    assert [(one["lineage"], one["batch"]) for one in content["batches"]] == [(0, 0), (0, 1)]


def known_truth_attempt(made: Synthetic, results: Path) -> Path:
    """Convert the synthetic attempt to this engine, without REST samples and driver logs."""
    directory = made.write(results)
    description: Line = json.loads((directory / "attempt.json").read_text())
    fault = {"fault": "driver", "fault_at_s": 30.5, "fault_plan": None}
    description["config"] |= {"workload": "known_truth", "truth": {}, **fault}
    (directory / "attempt.json").write_text(json.dumps(description))
    add_plan(directory)
    samples = [line for line in read_journal(directory / "recorder.jsonl") if line.get("kind") != "executors"]
    write_lines(directory / "recorder.jsonl", samples)
    (directory / "spark-logs" / "driver-0.log").unlink()
    return directory


def own_lines(traces: Traces) -> list[Line]:
    """Return the journal lines that correspond to these traces."""
    lines: list[Line] = [{"event": "started", "incarnation": 0, "style": "batch", "wall_ns": 0}]
    for one in traces.commits:
        ends = dict(one.ends)
        lines.append({"event": "planned", "wall_ns": one.planned_ns, "batch": one.number, "ends": ends, "base": None})
        lines.append({"event": "committed", "wall_ns": one.committed_ns, "batch": one.number, "ends": ends})
    # The synthetic attempt numbers its tasks by batch and partition, of which there are two.
    for name, kind in (("launched", "task_started"), ("loaded", "state_loaded")):
        for one in traces.events_of(kind):
            batch, partition = divmod(int(str(one.task).removeprefix("TID ")), 10)
            if name == "loaded" or partition == 0:
                lines.append({"event": name, "wall_ns": one.wall_ns, "batch": batch, "partition": partition})
    return sorted(lines, key=lambda line: line["wall_ns"])


@pytest.mark.parametrize("nothing_to_load", [False, True])
def test_own_traces_give_the_same_results_as_spark_files(tmp_path: Path, nothing_to_load: bool) -> None:
    made = Synthetic(Scenario(victims=("driver",), nothing_to_load=nothing_to_load))
    before = known_truth_attempt(made, tmp_path / "before")
    after = known_truth_attempt(made, tmp_path / "after")
    read = SPARK.traces(before)
    assert ENGINE.traces(before) == read, "an attempt of before is read as Spark's"
    write_lines(after / TRACES_FILE, own_lines(read))
    for name in ("listener.jsonl", "checkpoint.json", BATCHES_FILE):
        (after / name).unlink()
    (after / "spark-logs").rename(tmp_path / "elsewhere")
    old, new = judge(before), judge(after)
    assert (new.status, new.reasons) == (old.status, old.reasons) == ("valid", [])
    assert new.metrics.recovery == old.metrics.recovery
    for name in ("latency_ms", "throughput_rps", "sustained", "effective_interval_s", "audit", "source_rps"):
        assert getattr(new.metrics, name) == getattr(old.metrics, name), name
    instants: list[dict[str, Any]] = [
        {event.name: event.wall_ns for event in record.timeline if event.name != "snapshot"} for record in (old, new)
    ]
    assert instants[0] == instants[1]
    assert {event.source.partition(":")[0] for event in new.timeline if event.name in ("t3", "t4")} == {TRACES_FILE}
    assert "traces" in new.artifacts and "traces" not in old.artifacts
