"""Logs and checkpoints of Flink: instants, restarts, offsets."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.identity import DRIVER, EXECUTOR
from faultline.engines.flink.checkpoints import PREFIX, completed_in, newest_in, numbers_in
from faultline.engines.flink.job_log import is_job_event, parse_job_log
from faultline.engines.flink.live import LiveTraces
from faultline.engines.flink.progress import CheckpointCommits, JobProgress, LoggedPositions
from faultline.engines.flink.sampler import CheckpointSampler, checkpoint_line
from faultline.engines.flink.traces import commits_of, detect, events_of, positions_of, read_logs
from faultline.engines.protocol import FaultInterval, ProcessRun, Traces, VictimGroup
from faultline.engines.registry import ENGINES
from faultline.engines.supervisor_journal import exit_reason, worker_exits_of
from faultline.engines.work import CheckpointReport, ProcessExit
from faultline.experiment.attempt import Attempt
from faultline.system.journal import Journal, log_instant_ns

NS = 1_000_000_000
SOURCE, COUNT = "Source: lines[1] -> Calc[2]", "GroupAggregate[6] -> Calc[7]"
IDS = {SOURCE: "cbc3", COUNT: "f6dc"}


def line(second: float, source: str, text: str) -> str:
    return f"2026-11-28T02:20:{second:06.3f}Z INFO [main] {source}: {text}\n"


def at_ns(second: float) -> int:
    return log_instant_ns(f"2026-11-28T02:20:{second:06.3f}Z")


def change(second: float, name: str, subtask: int, execution: int, before: str, after: str, on: str) -> str:
    number = f"#{execution}" if on == "Task" else ""
    task = f"{name} ({subtask + 1}/2){number} (7c51_{IDS[name]}_{subtask}_{execution})"
    return line(second, on, f"{task} switched from {before} to {after}.")


def deployment(second: float, execution: int, on: str, *, complete: bool = True) -> list[str]:
    """Return the lines of one deployment; an incomplete one has a task that never runs."""
    found = []
    for offset, (name, subtask) in enumerate([(SOURCE, 0), (SOURCE, 1), (COUNT, 0), (COUNT, 1)]):
        found.append(change(second + offset / 10, name, subtask, execution, "DEPLOYING", "INITIALIZING", on))
        if complete or offset < 3:
            found.append(change(second + 1 + offset / 10, name, subtask, execution, "INITIALIZING", "RUNNING", on))
    return found


LOSS = [
    change(20, COUNT, 1, 0, "RUNNING", "FAILED", "ExecutionGraph"),
    "org.apache.flink.RemoteTransportException: Connection closed by remote task manager 'h:1 [ taskmanager-0-7 ] '.\n",
    "\tat org.apache.flink.Something(Something.java:1)\n",
    line(20.5, "StandaloneResourceManager", "TaskManager with id taskmanager-0-7 is no longer reachable."),
]


# Span of a real run.
SPAN = (
    "Reported span: SimpleSpan{scope=org.apache.flink.runtime.checkpoint.CheckpointStatsTracker, "
    "name=Checkpoint, startTsMillis=1795836295444, endTsMillis=1795836295823, "
    "attributes={maxStateSizeBytes=655144, checkpointId=2, <host>=127.0.0.1, sumProcessedDataBytes=345, "
    "checkpointedSize=73414, maxPersistedDataBytes=0, sumPersistedDataBytes=0, "
    "<job_id>=eb6dd646aa27a717ea5191fc13ee2954, sumSyncCheckpointDurationMs=120, "
    "sumCheckpointStartDelayMs=607, maxCheckpointedSizeBytes=36642, checkpointType=Checkpoint, "
    "maxAlignmentDurationMs=16, maxProcessedDataBytes=345, maxCheckpointStartDelayMs=172, "
    "maxAsyncCheckpointDurationMs=113, isUnaligned=false, fullSize=1261053, metadataSize=36480, "
    "checkpointStatus=COMPLETED, maxSyncCheckpointDurationMs=72, jobId=eb6dd646aa27a717ea5191fc13ee2954, "
    "sumAsyncCheckpointDurationMs=157, sumAlignmentDurationMs=16, <job_name>=word_count "
    "20261128T032427Z-74df92}, children=[]}"
)


@given(st.integers(0, 10**6), st.integers(0, 10**12), st.sampled_from(["COMPLETED", "FAILED"]))
def test_the_span_of_a_completed_checkpoint_is_its_report(alignment_ms: int, persisted: int, status: str) -> None:
    span = SPAN.replace("maxAlignmentDurationMs=16", f"maxAlignmentDurationMs={alignment_ms}")
    span = span.replace("sumPersistedDataBytes=0", f"sumPersistedDataBytes={persisted}").replace("COMPLETED", status)
    text = line(7, "Slf4jTraceReporter", span)
    assert is_job_event(text)
    wanted = {2: CheckpointReport(2, 1795836295823 * 1_000_000, 379, 172, alignment_ms, 73414, persisted)}
    assert parse_job_log([text], "driver-0.log").checkpoints == (wanted if status == "COMPLETED" else {})


def test_other_spans_are_no_evidence() -> None:
    assert not is_job_event(line(7, "Slf4jTraceReporter", SPAN.replace("name=Checkpoint", "name=JobInitialization")))


def test_a_log_gives_checkpoints_registrations_and_losses() -> None:
    log = parse_job_log(
        [
            line(1, "StandaloneResourceManager", "Registering TaskManager with ResourceID taskmanager-0-7 (x) at Y"),
            line(2, "CheckpointCoordinator", "Triggering checkpoint 3 (type=x) @ 1795832402000 for job 00."),
            line(
                3, "CheckpointCoordinator", "Completed checkpoint 3 for job 00 (4711 bytes, checkpointDuration=9 ms)."
            ),
            *LOSS,
            line(21, "ExecutionGraph", "Job wc (00) switched from state RUNNING to RESTARTING."),
            line(22, "NetworkClient", "[Consumer clientId=c] Node 1 disconnected."),
            "not a line of the log\n",
        ],
        "driver-0.log",
    )
    assert log.triggered == {3: 1795832402000 * 1_000_000} and log.completed == {3: at_ns(3)} and log.bytes == {3: 4711}
    assert [one.process for one in log.registered + log.lost + log.failed] == ["taskmanager-0-7"] * 3
    assert log.failed[0].text.startswith("Connection closed by remote task manager")
    assert (log.restarts, [one.wall_ns for one in log.disconnects]) == ([at_ns(21)], [at_ns(22)])


def test_only_an_execution_in_which_all_tasks_ran_restored_state() -> None:
    """Sources are left out, because their state is the offsets."""
    incomplete, complete = deployment(30, 1, "ExecutionGraph", complete=False), deployment(40, 2, "ExecutionGraph")
    manager = parse_job_log([*LOSS, *incomplete, *complete], "driver-0.log")
    worker = parse_job_log(
        [*deployment(30, 1, "Task", complete=False), *deployment(40, 2, "Task")], "taskmanager-1-0.log"
    )
    events = [one for one in events_of([manager], [worker]) if one.kind in ("task_started", "state_loaded")]
    assert [(one.kind, one.store, one.wall_ns) for one in events] == [
        ("task_started", None, at_ns(40.2)),
        ("task_started", None, at_ns(40.3)),
        ("state_loaded", "f6dc_0", at_ns(41.2)),
        ("state_loaded", "f6dc_1", at_ns(41.3)),
    ]
    starts, loads = events[:2], events[2:]
    assert [one.task for one in starts] == [one.task for one in loads]


def test_executions_of_two_job_managers_are_apart() -> None:
    """Each counts from 0; a TaskManager outlives both."""
    managers = [parse_job_log(deployment(at, 0, "ExecutionGraph"), f"driver-{n}.log") for n, at in enumerate((30, 40))]
    worker = parse_job_log([*deployment(30, 0, "Task"), *deployment(40, 0, "Task")], "taskmanager-0-0.log")
    starts = [one.task for one in events_of(managers, [worker]) if one.kind == "task_started"]
    assert starts and len(set(starts)) == len(starts)


def test_the_first_report_of_a_loss_is_its_detection() -> None:
    log = parse_job_log(LOSS, "driver-0.log")
    traces = Traces("rank", events=tuple(events_of([log], [])))
    hit = VictimGroup(EXECUTOR.name, [], FaultInterval(at_ns(19.9)))
    found = detect(hit, traces)
    assert found is not None and (found.kind, found.wall_ns) == ("task_lost", at_ns(20))
    assert detect(VictimGroup(EXECUTOR.name, [], FaultInterval(at_ns(25))), traces) is None


MANAGER_LOST = line(
    47, "TaskExecutor", "The heartbeat of JobManager with id 9b646db46ad453fe8f3ddc948e13f8c2 timed out."
)


def test_a_paused_process_is_detected_by_its_missed_heartbeat() -> None:
    """A JobManager that exits is detected by its supervisor; before the timeout, nothing reports a pause."""
    missed = line(25, "StandaloneResourceManager", "The heartbeat of TaskManager with id taskmanager-0-7 timed out.")
    events = events_of(
        [parse_job_log([missed], "driver-0.log")], [parse_job_log([MANAGER_LOST], "taskmanager-1-0.log")]
    )
    traces = Traces("rank", events=tuple(events))
    for role, second in ((EXECUTOR.name, 25), (DRIVER.name, 47)):
        found = detect(VictimGroup(role, [], FaultInterval(at_ns(20))), traces)
        assert found is not None and (found.role, found.wall_ns) == (role, at_ns(second))
        assert detect(VictimGroup(role, [], FaultInterval(at_ns(20), at_ns(24))), traces) is None
    exited = replace(traces, process_runs=(ProcessRun(0, at_ns(1), at_ns(42)),))
    found = detect(VictimGroup(DRIVER.name, [], FaultInterval(at_ns(41))), exited)
    assert found is not None and found.wall_ns == at_ns(42)
    ended = replace(traces, process_runs=(ProcessRun(0, at_ns(1), at_ns(55)),))
    found = detect(VictimGroup(DRIVER.name, [], FaultInterval(at_ns(41))), ended)
    assert found is not None and found.wall_ns == at_ns(47), "the exit at the end of the run is not the detection"


def test_the_loss_of_a_task_manager_in_reserve_has_no_effect() -> None:
    """The resource manager reports it, but no task fails."""
    events = events_of([parse_job_log(LOSS[-1:], "driver-0.log")], [])
    hit, flink = VictimGroup(EXECUTOR.name, [], FaultInterval(at_ns(19.9))), ENGINES.by_name["flink"]
    assert flink.without_effect(hit, Traces("rank", events=tuple(events))) == "no task was lost"
    events = events_of([parse_job_log(LOSS, "driver-0.log")], [])
    assert flink.without_effect(hit, Traces("rank", events=tuple(events))) is None
    assert flink.without_effect(replace(hit, role=DRIVER.name), Traces("rank")) is None


def test_every_line_that_is_parsed_is_evidence() -> None:
    lines = [*LOSS, MANAGER_LOST, *deployment(30, 1, "ExecutionGraph"), line(5, "BlobServer", "Started"), "\tat x\n"]
    kept = [one for one in lines if is_job_event(one)]
    assert len(kept) == len(lines) - 3 and parse_job_log(kept, "x") == parse_job_log(lines, "x")


def test_exits_of_workers_have_the_pid_of_their_start() -> None:
    lines = [
        {"wall_ns": 1, "event": "start", "role": "driver", "incarnation": 0, "pid": 7},
        {"wall_ns": 2, "event": "start", "role": "taskmanager-1", "incarnation": 0, "pid": 8},
        {"wall_ns": 3, "event": "exit", "role": "taskmanager-1", "incarnation": 0, "returncode": -9, "signal": 9},
        {"wall_ns": 4, "event": "restart", "role": "taskmanager-1", "delay_s": 2.0},
        {"wall_ns": 5, "event": "start", "role": "taskmanager-1", "incarnation": 1, "pid": 9},
        {"wall_ns": 6, "event": "exit", "role": "taskmanager-1", "incarnation": 1, "returncode": 1, "signal": None},
        {"wall_ns": 7, "event": "exit", "role": "driver", "incarnation": 0, "returncode": 1, "signal": None},
    ]
    wanted = (ProcessExit("taskmanager-1", 8, 3), ProcessExit("taskmanager-1", 9, 6))
    assert worker_exits_of(lines) == wanted


# ---- Exit reasons, from the ends of real logs ----

STARTED = "2026-11-28T05:08:18.247Z ERROR [main] ClusterEntrypoint: Could not start cluster entrypoint Standalone.\n"
INITIALIZED = "org.apache.flink.runtime.entrypoint.ClusterEntrypointException: Failed to initialize the entrypoint.\n"
SUPPRESSED = (
    "org.apache.flink.runtime.JobException: Recovery is suppressed by FixedDelayRestartBackoffTimeStrategy(3)\n"
)
FRAME = "\tat org.apache.flink.Something(Something.java:1)\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [STARTED, INITIALIZED, "Caused by: org.apache.flink.util.FlinkException: Could not create the component.\n",
             "Caused by: java.net.BindException: Could not start rest endpoint on any port in port range 20336\n"],
            "java.net.BindException: Could not start rest endpoint on any port in port range 20336",
        ),
        (
            [STARTED, INITIALIZED, "Caused by: java.io.IOException: Unable to open BLOB Server in port range: 7\n"],
            "java.io.IOException: Unable to open BLOB Server in port range: 7",
        ),
        (
            [SUPPRESSED, FRAME, "Caused by: java.lang.ArithmeticException: / by zero\n", FRAME,
             line(59, "ClusterEntrypoint", "Terminating cluster entrypoint process with exit code 1443.")],
            "java.lang.ArithmeticException: / by zero",
        ),
        (
            ["org.apache.flink.table.api.TableException: Failed to execute sql\n",
             "Caused by: java.lang.RuntimeException: java.io.EOFException\n", "Caused by: java.io.EOFException\n"],
            "java.io.EOFException",
        ),
        (
            ["Caused by: org.apache.flink.table.api.ValidationException: SQL validation failed. From line 3\n",
             "Caused by: org.apache.calcite.runtime.CalciteContextException: From line 3, column 8\n",
             "Caused by: org.apache.calcite.sql.validate.SqlValidatorException: Column 'x' not found\n"],
            "org.apache.flink.table.api.ValidationException: SQL validation failed. From line 3",
        ),
    ],
)  # fmt: skip
def test_the_root_cause_is_the_exit_reason(tmp_path: Path, lines: list[str], reason: str) -> None:
    """An error in SQL has its line; a calcite exception below it does not count."""
    log = tmp_path / "driver-0.log"
    log.write_text("".join([line(1, "ClusterEntrypoint", "Starting."), *lines, FRAME]))
    assert exit_reason(log, ENGINES.by_name["flink"].error_line) == f"Caused by: {reason}"


# ---- Checkpoints ----


def split(topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    return struct.pack(">H", len(name)) + name + struct.pack(">iqq", partition, offset, -(2**63))


def make_checkpoint(folder: Path, number: int, content: bytes) -> None:
    path = folder / f"{PREFIX}{number}"
    path.mkdir(parents=True)
    (path / "_metadata").write_bytes(content)


@given(
    st.dictionaries(st.integers(0, 63), st.integers(0, 2**62), min_size=1, max_size=8),
    st.binary(max_size=40),
)
def test_offsets_are_those_of_the_reader(tmp_path_factory: object, offsets: dict[int, int], noise: bytes) -> None:
    """The enumerator's entry of each split, with its initial offset, does not count; nor do other topics and bytes."""
    folder = tmp_path_factory.mktemp("job")  # type: ignore[attr-defined]
    parts = [split("in", partition, -2) for partition in offsets]
    parts += [split("in", partition, offset) for partition, offset in offsets.items()]
    make_checkpoint(folder, 7, noise + b"|".join([*parts, split("input-2", 99, 5)]))
    newest = newest_in(folder)
    assert newest is not None and newest.offsets("in") == {str(one): offset for one, offset in offsets.items()}


def test_a_checkpoint_counts_once_it_is_complete(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 9, split("in", 0, 5))
    make_checkpoint(tmp_path, 10, split("in", 0, 8))
    (tmp_path / f"{PREFIX}11").mkdir()
    (tmp_path / "shared").mkdir()
    assert sorted(numbers_in(tmp_path)) == [9, 10, 11] and [one.number for one in completed_in(tmp_path)] == [9, 10]
    assert newest_in(tmp_path / "missing") is None


def test_progress_and_samples_remember_removed_checkpoints(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1, split("in", 0, 5))
    progress = JobProgress(tmp_path, CheckpointCommits(tmp_path, "in"))
    sampler = CheckpointSampler("a", tmp_path, "in")
    assert progress.committed() == {"0": 5} and len(list(sampler.sample())) == 1
    (tmp_path / f"{PREFIX}1" / "_metadata").unlink()
    make_checkpoint(tmp_path, 2, split("in", 0, 9))
    assert progress.covering({"0": 5}) == 2 and progress.covering({"0": 9}) == 1 and progress.runs() == 1
    assert [one["number"] for one in sampler.sample()] == [2]
    assert [one.number for one in progress.commits_since(progress.last_commit_ns() - 1)] == [2]


def test_commits_have_the_instants_of_the_log_and_the_offsets_of_the_samples() -> None:
    log = parse_job_log(
        [
            line(2, "CheckpointCoordinator", "Triggering checkpoint 3 (type=x) @ 1795832402000 for job 00."),
            line(
                3, "CheckpointCoordinator", "Completed checkpoint 3 for job 00 (4711 bytes, checkpointDuration=9 ms)."
            ),
        ],
        "driver-0.log",
    )
    samples = [checkpoint_line(4, 99 * NS, {"0": 9}), checkpoint_line(3, 98 * NS, {"0": 5, "1": 2})]
    first, second = commits_of([log], samples)
    assert (first.number, first.planned_ns, first.committed_ns) == (3, 1795832402000 * 1_000_000, at_ns(3))
    # A checkpoint whose completion was not logged counts from its file's time; a partition keeps its last offset.
    assert (second.committed_ns, second.ends) == (99 * NS, {"0": 9, "1": 2})


# ---- Source positions, in commit mode `none` ----


def report(second: float, **emitted: int) -> list[str]:
    """Return a report of metrics; `emitted`: the last offset that each partition emitted, as p0=…"""
    gauge = "h.taskmanager.tm-1.job.Source__lines[1].0.KafkaSourceReader.topic.in.partition"
    lines = [f"{gauge}.{name[1:]}.currentOffset: {offset}\n" for name, offset in emitted.items()]
    head = ["\n", "=========================== Starting metrics report ===========================\n", "\n"]
    end = "=========================== Finished metrics report ===========================\n"
    return [line(second, "Slf4jReporter", ""), *head, "-- Gauges ------\n", *lines, "\n", end]


def test_positions_follow_the_reports_of_one_task_manager(tmp_path: Path) -> None:
    """Positions count one report later, with those of other TaskManagers. Without an emitted record, the offset is -1.

    An incomplete report does not count.
    """
    first = [*report(2, p0=-1), *report(4, p0=9), LOSS[1], *report(6, p0=19), *report(7, p0=21)[:-1]]
    first += [*report(8, p0=29), *report(9, p0=30)]
    second = [*report(1, p1=4), *report(5, p1=6), *report(7, p1=7)]
    logs = {f"taskmanager-{number}-0.log": lines for number, lines in enumerate((first, second))}
    for name, lines in logs.items():
        (tmp_path / name).write_text("".join(lines))
    expected = [(at_ns(6), {"0": 10, "1": 5}), (at_ns(8), {"0": 20, "1": 7}), (at_ns(9), {"0": 30, "1": 8})]
    parsed = [parse_job_log(lines, name) for name, lines in logs.items()]
    for commits in (positions_of(parsed), LoggedPositions(tmp_path)()):
        assert [(one.committed_ns, one.ends) for one in commits] == expected
    progress = JobProgress(tmp_path / "none", LoggedPositions(tmp_path))
    assert progress.covering({"0": 20}) == 2 and progress.last_commit_ns() == at_ns(9)
    assert progress.await_cycle("checkpoint", 0, 0) is None


def test_the_hindmost_of_several_sources_of_a_partition_counts() -> None:
    lines = report(2, p0=9)
    lines[-2:-2] = report(2, p0=4)[5:-2]
    assert parse_job_log(lines, "taskmanager-0-0.log").positions == [(at_ns(2), {"0": 5})]


# ---- Live reading ----


@given(st.lists(st.integers(0, 19), max_size=3))
def test_live_traces_equal_those_of_whole_logs(tmp_path_factory: object, stops: list[int]) -> None:
    """`stops`: messages of the JobManager after which the traces are read."""
    attempt = Attempt(tmp_path_factory.mktemp("attempt"))  # type: ignore[attr-defined]
    attempt.engine_logs.mkdir()
    manager, worker = attempt.engine_logs / "driver-0.log", attempt.engine_logs / "taskmanager-1-0.log"
    with Journal(attempt.recorder_journal) as samples, Journal(attempt.supervisor_journal) as supervised:
        samples.append(checkpoint_line(3, 98 * NS, {"0": 5}))
        supervised.write("start", role="driver", incarnation=0, pid=7)
        reader = LiveTraces(attempt)
        worker.write_text("".join(deployment(30, 1, "Task")))
        # The logger writes a message with its exception.
        messages = ["".join(LOSS[:3]), LOSS[3], *deployment(30, 1, "ExecutionGraph")]
        for number, text in enumerate(messages):
            with manager.open("a") as log:
                log.write(text)
            if number in stops:
                reader.traces()
        samples.append(checkpoint_line(4, 99 * NS, {"0": 9}))
    with manager.open("a") as log:
        log.write(line(50, "StandaloneResourceManager", "Registering TaskManager with ResourceID a (x) at Y")[:-9])
    found = reader.traces()
    logs = read_logs(attempt.engine_logs, "driver-*.log"), read_logs(attempt.engine_logs, "taskmanager-*.log")
    whole = [one for one in events_of(*logs) if one.kind != "registered"]
    assert list(found.events) == whole and {one.kind for one in whole} >= {"lost", "task_lost", "state_loaded"}
    assert [one.number for one in found.commits] == [3, 4] and len(found.process_runs) == 1
