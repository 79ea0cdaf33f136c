"""Traces from Spark's raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.batches import batches_document, read_batches, write_batches
from faultline.engines.protocol import FaultInterval, ProcessRun, StateEpoch, Traces, VictimGroup
from faultline.engines.spark.engine import ENGINE
from faultline.engines.spark.traces import batches_of, detect, events_of_samples, identity_of, state_rows, totals_of
from faultline.engines.supervisor_journal import driver_exited, epochs_of, process_runs_of
from faultline.engines.work import Batch
from faultline.system.measured_window import NS
from tests.unit.scenario import T0_NS, Scenario, spark_time
from tests.unit.synthetic import Synthetic

T0 = T0_NS // 10**6 * 10**6


def sample(at_s: float, application: str, *executors: dict[str, Any]) -> dict[str, Any]:
    wall_ns = T0 + round(at_s * NS)
    return {"kind": "executors", "wall_ns": wall_ns, "app_id": application, "executors": list(executors)}


def test_traces_match_the_raw_files(tmp_path: Path) -> None:
    made = Synthetic(Scenario(victims=("executor", "driver", "kafka")))
    traces = ENGINE.traces(made.write(tmp_path))
    assert (traces.commits, traces.reached) == (tuple(made.commits), made.commits[-1].ends)
    assert [one.wall_ns for one in traces.events_of("lost")] == [made.t2]
    assert [one.name for one in traces.events_of("registered")] == ["0", "1", "2", "0", "1"]
    assert [one.process for one in traces.events_of("answered")] == ["app-1", "app-2"]
    assert [one.wall_ns for one in traces.events_of("disconnected")] == [made.hits[2].t2]
    assert [one.kind for one in made.logged() if one not in traces.events] == []
    assert {one.store for one in traces.events_of("state_loaded")} == {"0/0/default", "0/1/default"}
    driver = made.hits[1]
    assert [life.incarnation for life in traces.process_runs] == [0, 1]
    assert (traces.process_runs[0].ended_ns, traces.process_runs[1].began_ns) == (driver.t2, driver.start)
    assert (traces.state_rows, traces.state_bytes, traces.late_rows) == (3, 1024, 0)
    assert traces.batches == ()


def test_the_last_sample_of_an_executor_applies() -> None:
    gone = {"id": "0", "addTime": spark_time(T0), "removeTime": spark_time(T0 + NS), "totalGCTime": 5}
    lines = [
        sample(3, "b", {"id": "0", "addTime": spark_time(T0 + 2 * NS)}, {"id": "driver", "addTime": spark_time(T0)}),
        sample(1, "a", {"id": "0", "addTime": spark_time(T0)}, {"id": "driver", "totalGCTime": 9}),
        sample(2, "a", gone),
        {"kind": "proc", "wall_ns": 1},
    ]
    seen = events_of_samples(lines)
    came = [("registered", "a/0", 0), ("registered", "b/0", 2 * NS), ("lost", "a/0", NS)]
    answered = [("answered", "a", NS), ("answered", "b", 3 * NS)]
    assert [(one.kind, one.process, one.wall_ns - T0) for one in seen] == answered + came
    assert [one.source for one in seen][-1] == "recorder.jsonl: removeTime of executor 0 (REST)"
    assert [(one.process, one.gc_ms) for one in totals_of(lines)] == [("a/0", 0.0), ("a/0", 5.0), ("b/0", 0.0)]


def test_batch_times_and_state_come_from_the_listener() -> None:
    lines: list[dict[str, Any]] = [
        {"event": "progress", "batch": 1, "wall_ns": 7, "duration_ms": {"triggerExecution": 30, "addBatch": 20}},
        {"event": "progress", "batch": 2, "wall_ns": 8, "duration_ms": {"latestOffset": 3}, "state": {"rows": 4}},
        {"event": "progress", "batch": 3, "wall_ns": 9, "state": {"rows": None}},
        {"event": "terminated", "wall_ns": 9},
    ]
    assert batches_of(lines) == (Batch(1, 7, 30.0, 20), Batch(2, 8, 0.0, None))
    assert (state_rows(lines), state_rows(lines[:1])) == (4, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6))
def test_each_process_run_has_its_start_and_end(lived: list[tuple[int, bool]]) -> None:
    lines, wanted, now = [], [], 0
    for number, ended in lived:
        now += 10
        lines.append({"event": "start", "incarnation": number, "wall_ns": now})
        if ended:
            lines.append({"event": "exit", "incarnation": number, "wall_ns": now + 5})
        wanted.append(ProcessRun(number, now, now + 5 if ended else None))
    assert list(process_runs_of(lines)) == wanted
    traces = Traces("batch", process_runs=tuple(wanted))
    first = next((life for life in wanted if life.ended_ns is not None), None)
    noticed = driver_exited(VictimGroup("driver", [], FaultInterval(0)), traces)
    assert (noticed and noticed.wall_ns) == (first and first.ended_ns)


def test_lineage_events_are_epochs() -> None:
    line = {"event": "lineage", "lineage": 1, "reason": "lost", "wall_ns": 5}
    assert epochs_of([{"event": "start", "incarnation": 0, "wall_ns": 1}, line]) == (StateEpoch(1, 5, "lost"),)


def test_executors_are_identified_by_command_line() -> None:
    for command in (["java", "--executor-id", "7", "--app-id", "a-1"], "java --executor-id=7 --app-id=a-1 x"):
        assert identity_of({"command": command}) == ("a-1", "7")
    assert identity_of({"command": ["java", "--executor-id", "7"]}) == (None, "7")
    assert identity_of({"command": None}) is None


def test_executors_belong_to_the_application_at_t0() -> None:
    gone = {"id": "0", "removeTime": spark_time(T0 + 9 * NS)}
    traces = Traces("batch", events=tuple(events_of_samples([sample(0, "a", gone), sample(5, "b", gone)])))
    victim = [{"command": ["java", "--executor-id", "0"]}]
    for at_s, process in ((-1, "a/0"), (0, "a/0"), (4.9, "a/0"), (5, "b/0"), (8, "b/0")):
        noticed = detect(VictimGroup("executor", victim, FaultInterval(T0 + round(at_s * NS))), traces)
        assert noticed is not None and noticed.process == process, at_s


@given(st.integers(0, 6), st.sampled_from(["batch", "rank", "id"]))
def test_commits_round_trip_through_batches_json(tmp_path_factory: Any, left_out: int, method: str) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    commits = Synthetic(Scenario(commit_mode="none")).commits[left_out:]
    write_batches(folder, commits[::-1], method=method, reached={"0": 7})
    assert read_batches(folder) == (method, tuple(commits), {"0": 7})
    assert set(batches_document(commits, method=method, reached={})["batches"][0]) == {
        "lineage", "batch", "planned_wall_ns", "committed_wall_ns", "end_offsets", "start_offsets",
    }  # fmt: skip
