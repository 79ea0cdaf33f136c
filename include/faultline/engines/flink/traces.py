"""Traces of a run on Flink, read from the raw files of its attempt.

`batches.json` holds the commits, `spark-logs/` the logs of JobManager (`driver-<k>.log`) and TaskManagers
(`taskmanager-<n>-<k>.log`), `recorder.jsonl` the offsets of each checkpoint, and `supervisor.jsonl` the process runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path

from faultline.engines.batches import read_batches
from faultline.engines.flink.job_log import JobLog, LogLine, Transition, is_job_event, read_job_log
from faultline.engines.flink.sampler import CHECKPOINT
from faultline.engines.gc_log import read_gc_logs
from faultline.engines.protocol import Commit, EngineEvent, Offsets, Traces, VictimGroup, offsets_by_partition
from faultline.engines.supervisor_journal import SUPERVISOR_JOURNAL, driver_exited, process_runs_of, worker_exits_of
from faultline.engines.work import CheckpointReport
from faultline.system.journal import Line, read_finished

# Tuples are found by their rank: outputs do not come in batches.
METHOD = "rank"
DRIVER, EXECUTOR = "driver", "executor"
JOB_MANAGER_LOGS, TASK_MANAGER_LOGS = "driver-*.log", "taskmanager-*.log"
_BY_TIME = attrgetter("wall_ns")


def read_traces(folder: Path) -> Traces:
    """Read the attempt in `folder`.

    Raises InfrastructureError that names the first missing or broken file.
    """
    method, commits, reached = read_batches(folder)
    logs = folder / "spark-logs"
    managers, workers = read_logs(logs, JOB_MANAGER_LOGS), read_logs(logs, TASK_MANAGER_LOGS)
    supervised = read_finished(folder / SUPERVISOR_JOURNAL)
    return Traces(
        method=method,
        per_record=True,
        commits=commits,
        reached=reached,
        events=tuple(events_of(managers, workers)),
        process_runs=process_runs_of(supervised),
        collections=read_gc_logs(logs),
        checkpoints=tuple(checkpoints_of(managers)),
        job_restarts=tuple(sorted(at_ns for log in managers for at_ns in log.restarts)),
        worker_exits=worker_exits_of(supervised),
        state_bytes=_state_bytes(managers),
    )


def read_logs(folder: Path, pattern: str) -> list[JobLog]:
    """Return the logs whose names match, by name."""
    return [read_job_log(path) for path in sorted(folder.glob(pattern))]


def is_evidence(log: str, line: str) -> bool:
    """Return whether traces need this line of a log; GC logs are kept completely."""
    return log.startswith("gc-") or is_job_event(line)


def commits_of(managers: Sequence[JobLog], samples: Iterable[Line]) -> list[Commit]:
    """Return the completed checkpoints in order: instants from the JobManager's log, offsets from the samples.

    A checkpoint without logged completion, such as one during the JobManager's death, counts from its file's time.
    """
    triggered = {number: at_ns for log in managers for number, at_ns in log.triggered.items()}
    completed = {number: at_ns for log in managers for number, at_ns in log.completed.items()}
    found: dict[int, Commit] = {}
    ends: dict[str, int] = {}
    for line in sorted((one for one in samples if one.get("kind") == CHECKPOINT), key=lambda one: int(one["number"])):
        number = int(line["number"])
        ends = ends | offsets_by_partition(line["offsets"])
        at_ns = completed.get(number, int(line["completed_ns"]))
        found[number] = Commit(0, number, triggered.get(number), at_ns, dict(ends))
    return [found[number] for number in sorted(found)]


def positions_of(workers: Sequence[JobLog]) -> list[Commit]:
    """Return the source positions that the TaskManagers report in commit mode `none`, in place of commits.

    Each report of the first TaskManager that reads counts, with the newest reported positions of the others. Positions
    count one report later: until then, records that were read may not have been processed.
    """
    leader = next((log for log in workers if log.positions), None)
    ends: dict[str, int] = {}
    read_before: dict[str, int] | None = None
    found: list[Commit] = []
    reports = ((at_ns, read, log is leader) for log in workers for at_ns, read in log.positions)
    for at_ns, read, counts in sorted(reports, key=itemgetter(0)):
        ends = ends | read
        if counts:
            if read_before is not None:
                found.append(Commit(0, len(found), None, at_ns, read_before))
            read_before = ends
    return found


def checkpoints_of(managers: Iterable[JobLog]) -> list[CheckpointReport]:
    """Return the reports of completed checkpoints, by number."""
    found = {number: one for log in managers for number, one in log.checkpoints.items()}
    return [found[number] for number in sorted(found)]


def _state_bytes(managers: Sequence[JobLog]) -> int | None:
    """Return the size of the last completed checkpoint."""
    sizes = {number: size for log in managers for number, size in log.bytes.items()}
    return sizes[max(sizes)] if sizes else None


def events_of(managers: Sequence[JobLog], workers: Sequence[JobLog]) -> list[EngineEvent]:
    """Return registrations, losses, task starts, restored states and lost connections, in order of time."""
    found: list[EngineEvent] = []
    for log in managers:
        found += [_of_line("registered", EXECUTOR, one) for one in log.registered]
        found += [_of_line("lost", EXECUTOR, one) for one in log.lost]
        found += [_of_line("task_lost", EXECUTOR, one) for one in log.failed]
    for log in workers:
        found += [_of_line("disconnected", EXECUTOR, one) for one in log.disconnects]
        found += [_of_line("lost", DRIVER, one) for one in log.managers_lost]
    for manager in managers:
        found += _restored(manager, workers)
    return sorted(found, key=_BY_TIME)


def _of_line(kind: str, role: str, line: LogLine) -> EngineEvent:
    return EngineEvent(kind, role, line.process, line.wall_ns, line.file, line.text)


def _restored(manager: JobLog, workers: Sequence[JobLog]) -> list[EngineEvent]:
    """Return starts and restored states of the executions in which every task reached RUNNING.

    Executions that failed before, such as deployments to a dead TaskManager, restored nothing that lasted.
    """
    found: list[EngineEvent] = []
    for execution, changes in _by_execution(manager.transitions).items():
        tasks = {one.task for one in changes}
        running = {one.task for one in changes if one.after == "RUNNING"}
        if tasks != running:
            continue
        stateful = {one.task for one in changes if not one.is_source} or tasks
        begin, end = changes[0].wall_ns, changes[-1].wall_ns
        # Each JobManager counts executions from 0.
        run = f"{changes[0].file.removesuffix('.log')}.{execution}"
        for log in workers:
            for one in log.transitions:
                if one.execution == execution and begin <= one.wall_ns <= end and one.task in stateful:
                    found += _of_transition(one, run)
    return found


def _by_execution(transitions: Iterable[Transition]) -> Mapping[int, list[Transition]]:
    """Return the changes up to RUNNING of each restart of the job, in order."""
    found: dict[int, list[Transition]] = {}
    for one in transitions:
        if one.before != "RUNNING":
            found.setdefault(one.execution, []).append(one)
    return found


def _of_transition(one: Transition, run: str) -> list[EngineEvent]:
    process = one.file.removesuffix(".log")
    kind = {("DEPLOYING", "INITIALIZING"): "task_started", ("INITIALIZING", "RUNNING"): "state_loaded"}.get(
        (one.before, one.after)
    )
    if kind is None:
        return []
    task = f"{one.task}#{run}"
    store = one.task if kind == "state_loaded" else None
    return [EngineEvent(kind, EXECUTOR, process, one.wall_ns, one.file, one.text, task=task, store=store)]


# Detection of faults, by the role of the victims.


# Kinds and roles of the events that report a loss.
_REPORTS = {
    EXECUTOR: {("task_lost", EXECUTOR), ("lost", EXECUTOR)},
    DRIVER: {("lost", DRIVER)},
    "kafka": {("disconnected", EXECUTOR)},
    "kafka_connection": {("disconnected", EXECUTOR)},
}


def detect(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the first report of the loss after t0: an exit of the JobManager, or what the others logged.

    TaskManagers report a paused JobManager; a failed task, a closed connection or a missed heartbeat a TaskManager.
    """
    reports = _REPORTS.get(hit.role, set())
    found = [one for one in traces.events if (one.kind, one.role) in reports and hit.span.contains(one.wall_ns)]
    if hit.role == DRIVER and (exited := driver_exited(hit, traces)):
        found.append(exited)  # a paused JobManager exits at the end of the run
    return min(found, key=_BY_TIME, default=None)


def without_effect(hit: VictimGroup, traces: Traces) -> str | None:
    """Return why a loss had no effect: a TaskManager in reserve ran no task, so none was lost or started again."""
    kinds = ("task_lost", "task_started")
    seen = [one for one in traces.events if one.kind in kinds and hit.span.contains(one.wall_ns)]
    return "no task was lost" if hit.role == EXECUTOR and not seen else None


def reached(commits: Sequence[Commit]) -> Offsets:
    """Return the offsets of the last commit."""
    return commits[-1].ends if commits else {}
