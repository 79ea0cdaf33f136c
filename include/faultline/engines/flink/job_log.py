"""Logs of JobManagers and TaskManagers: what happened to a job, with instants of 1 ms.

The JobManager's log reports lost TaskManagers, restarts and checkpoints; a TaskManager's log reports its tasks, and in
commit mode `none` its source positions. A task is named by vertex, subtask and attempt:
`<execution graph>_<vertex>_<subtask>_<attempt>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faultline.engines.work import CheckpointReport
from faultline.system.journal import log_instant_ns

NS_PER_MS = 1_000_000
_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) [A-Z]+ \[.*?\] (\w+): (.*)$")
_TRIGGERED = re.compile(r"^Triggering checkpoint (\d+) .* @ (\d+) for job")
_COMPLETED = re.compile(r"^Completed checkpoint (\d+) for job \w+ \((\d+) bytes")
# Span that the trace reporter logs for each checkpoint, with sums and maxima over subtasks.
_SPAN = re.compile(
    r"^Reported span: \w+\{scope=\S+, name=Checkpoint, startTsMillis=(\d+), endTsMillis=(\d+), attributes=\{([^}]*)\}"
)
_ATTRIBUTE = re.compile(r"(\w+)=(\w+)")
_TASK = re.compile(r"^(.*) \(\d+/\d+\)(?:#\d+)? \(\w+_(\w+)_(\d+)_(\d+)\) switched from (\w+) to (\w+)")
_JOB = re.compile(r"^Job .* switched from state (\w+) to (\w+)")
_REGISTERED = re.compile(r"^Registering TaskManager with ResourceID (\S+) ")
_LOST = re.compile(
    r"^(?:TaskManager with id (\S+) is no longer reachable|The heartbeat of TaskManager with id (\S+) timed out)"
)
# Loss of the JobManager, as a TaskManager reports it.
_MANAGER_LOST = re.compile(
    r"^(?:JobManager with id \w+ is no longer reachable|The heartbeat of JobManager with id \w+ )"
)
# Broken connection to the broker, as Kafka's client reports it.
_DISCONNECTED = re.compile(r"Node -?\d+ disconnected|Connection to node .* could not be established")
# Exception that names the TaskManager whose connection closed; a line without a time, which follows a failed task.
_CLOSED = re.compile(r"remote task manager '\S*\s*\[ (\S+) \]")
# Offset of the last record that a source emitted; a line without a time in a report of metrics, whose text is empty.
_EMITTED = re.compile(r"\.KafkaSourceReader\.topic\..*\.partition\.(\d+)\.currentOffset: (\d+)$", re.MULTILINE)
_REPORTED = "Finished metrics report"


@dataclass(frozen=True)
class Transition:
    """Change of a task's state. `execution`: number of the job's restart by which it was deployed."""

    wall_ns: int
    file: str
    name: str
    vertex: str
    subtask: int
    execution: int
    before: str
    after: str

    @property
    def task(self) -> str:
        """Vertex and subtask, equal in each execution."""
        return f"{self.vertex}_{self.subtask}"

    @property
    def is_source(self) -> bool:
        """Whether the task only reads: its state is the offsets."""
        return self.name.startswith("Source:") and "Aggregate" not in self.name and "Join" not in self.name

    @property
    def text(self) -> str:
        return f"{self.name[:60]} ({self.subtask}) {self.before} -> {self.after}"


@dataclass(frozen=True)
class LogLine:
    """Line of a log that reports a TaskManager. `text`: as logged, shortened."""

    wall_ns: int
    file: str
    process: str
    text: str


@dataclass
class JobLog:
    """Content of one log. `triggered`, `completed`: instants of checkpoints by number; `bytes`: their sizes.

    `checkpoints`: spans of completed checkpoints by number. `failed`: tasks that failed while they ran. `restarts`:
    instants at which the job switched to RESTARTING. `managers_lost`: reports by a TaskManager. `positions`: instants
    with the next offset of each partition that the sources of this process read.
    """

    triggered: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointReport] = field(default_factory=dict)
    transitions: list[Transition] = field(default_factory=list)
    registered: list[LogLine] = field(default_factory=list)
    lost: list[LogLine] = field(default_factory=list)
    failed: list[LogLine] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    managers_lost: list[LogLine] = field(default_factory=list)
    disconnects: list[LogLine] = field(default_factory=list)
    positions: list[tuple[int, dict[str, int]]] = field(default_factory=list)


def read_job_log(path: Path) -> JobLog:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse_job_log(lines, path.name)


def parse_job_log(lines: Iterable[str], file: str, before: JobLog | None = None) -> JobLog:
    """Return the content of a log; lines of other classes are skipped.

    `before`: content of its earlier lines, which this call extends.
    """
    found = JobLog() if before is None else before
    for wall_ns, source, text in _messages(lines):
        if source == "CheckpointCoordinator":
            _read_checkpoint(found, wall_ns, text)
        elif source == "Slf4jTraceReporter":
            _read_span(found, text)
        elif source in ("ExecutionGraph", "Task"):
            _read_transition(found, wall_ns, text, file)
        elif source in ("StandaloneResourceManager", "JobMaster"):
            _read_task_manager(found, wall_ns, text, file)
        elif source == "Slf4jReporter" and _REPORTED in text:
            _read_positions(found, wall_ns, text)
        elif source == "TaskExecutor" and _MANAGER_LOST.match(text):
            found.managers_lost.append(LogLine(wall_ns, file, "", _shortened(text)))
        elif source == "NetworkClient" and _DISCONNECTED.search(text):
            found.disconnects.append(LogLine(wall_ns, file, "", _shortened(text)))
    return found


def is_job_event(line: str) -> bool:
    """Return whether the traces need this line of a log; exceptions that name a TaskManager count."""
    match = _LINE.match(line)
    if match is None:
        return _CLOSED.search(line) is not None
    source, text = match[2], match[3]
    patterns = (_TRIGGERED, _COMPLETED, _TASK, _JOB, _REGISTERED, _LOST)
    known = source in ("CheckpointCoordinator", "ExecutionGraph", "Task", "StandaloneResourceManager", "JobMaster")
    others = {"NetworkClient": _DISCONNECTED, "Slf4jTraceReporter": _SPAN, "TaskExecutor": _MANAGER_LOST}
    return (known and any(one.match(text) for one in patterns)) or bool(
        source in others and others[source].search(text)
    )


def _messages(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield time, class and text of each message, with the first line of its exception and the lines of a report."""
    held: tuple[int, str, str] | None = None
    for line in lines:
        match = _LINE.match(line)
        if match:
            if held is not None:
                yield held
            instant, source, text = match.groups()
            held = log_instant_ns(instant), source, text
        elif held is not None and (_is_of_report(line) or ("\n" not in held[2] and not line.startswith("\t"))):
            held = *held[:2], f"{held[2]}\n{line.rstrip()}"
    if held is not None:
        yield held


def _is_of_report(line: str) -> bool:
    return _REPORTED in line or _EMITTED.search(line) is not None


def _read_positions(found: JobLog, wall_ns: int, text: str) -> None:
    """Add the positions of a complete report; of several sources of a partition, the hindmost counts."""
    ends: dict[str, int] = {}
    for partition, offset in _EMITTED.findall(text):
        ends[partition] = min(int(offset) + 1, ends.get(partition, int(offset) + 1))
    if ends:
        found.positions.append((wall_ns, ends))


def _read_checkpoint(found: JobLog, wall_ns: int, text: str) -> None:
    if match := _TRIGGERED.match(text):
        found.triggered[int(match[1])] = int(match[2]) * NS_PER_MS
    elif match := _COMPLETED.match(text):
        found.completed[int(match[1])] = wall_ns
        found.bytes[int(match[1])] = int(match[2])


def _read_span(found: JobLog, text: str) -> None:
    match = _SPAN.match(text)
    attributes = dict(_ATTRIBUTE.findall(match[3])) if match else {}
    if match is None or attributes.get("checkpointStatus") != "COMPLETED":
        return
    number, begin_ms, end_ms = int(attributes["checkpointId"]), int(match[1]), int(match[2])
    found.checkpoints[number] = CheckpointReport(
        number,
        end_ms * NS_PER_MS,
        duration_ms=end_ms - begin_ms,
        start_delay_ms=int(attributes["maxCheckpointStartDelayMs"]),
        alignment_ms=int(attributes["maxAlignmentDurationMs"]),
        written_bytes=int(attributes["checkpointedSize"]),
        persisted_bytes=int(attributes["sumPersistedDataBytes"]),
    )


def _read_transition(found: JobLog, wall_ns: int, text: str, file: str) -> None:
    if match := _TASK.match(text):
        name, vertex, subtask, execution, before, after = match.groups()
        found.transitions.append(Transition(wall_ns, file, name, vertex, int(subtask), int(execution), before, after))
        if (before, after) == ("RUNNING", "FAILED"):
            closed = _CLOSED.search(text)
            found.failed.append(LogLine(wall_ns, file, closed[1] if closed else "", _cause(text)))
    elif (match := _JOB.match(text)) and match[2] == "RESTARTING":
        found.restarts.append(wall_ns)


def _read_task_manager(found: JobLog, wall_ns: int, text: str, file: str) -> None:
    if match := _REGISTERED.match(text):
        found.registered.append(LogLine(wall_ns, file, match[1], _shortened(text)))
    elif match := _LOST.match(text):
        found.lost.append(LogLine(wall_ns, file, match[1] or match[2], _shortened(text)))


def _shortened(text: str) -> str:
    return text.split("\n")[0][:160]


def _cause(text: str) -> str:
    """Return the exception of a failed task without its class, or the message if there is none."""
    message, _, exception = text.partition("\n")
    return (exception.partition(": ")[2] or exception or message)[:160]
