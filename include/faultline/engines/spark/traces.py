"""Traces of a run on Spark, read from the raw files of its attempt.

`batches.json` and `checkpoint.json` describe the checkpoint and `listener.jsonl` the query. `recorder.jsonl` has REST
samples, `spark-logs/` the logs of executors and drivers, and `supervisor.jsonl` the process runs of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from faultline.engines.batches import read_batches
from faultline.engines.gc_log import read_gc_logs
from faultline.engines.protocol import EngineEvent, Traces, VictimGroup
from faultline.engines.spark import driver_log, executor_log
from faultline.engines.spark.collect import application_settings
from faultline.engines.spark.driver_log import DriverEvents, LogLine, read_driver_logs
from faultline.engines.spark.executor_log import ExecutorEvents, read_executor_logs
from faultline.engines.supervisor_journal import SUPERVISOR_JOURNAL, driver_exited, epochs_of, process_runs_of
from faultline.engines.work import Batch, Totals
from faultline.system.files import read_document
from faultline.system.journal import Line, events, log_instant_ns, read_finished
from faultline.system.measured_window import CLOCK_RESOLUTION_NS
from faultline.system.process_ledger import option_of

# Name of the driver in the REST API's list of executors.
DRIVER = "driver"
_SAMPLES_FILE = "recorder.jsonl"


def read_traces(folder: Path) -> Traces:
    """Read the attempt in `folder`.

    Raises InfrastructureError that names the first missing or broken file.
    """
    method, commits, reached = read_batches(folder)
    samples = read_finished(folder / _SAMPLES_FILE)
    listener = read_finished(folder / "listener.jsonl")
    supervisor = read_finished(folder / "supervisor.jsonl")
    logs = folder / "spark-logs"
    drivers = read_driver_logs(logs)
    # A user program has no Faultline listener, so its logs are read.
    late = [state.get("rows_dropped") or 0 for state in _states(listener)] if listener else [drivers.late_rows]
    return Traces(
        method=method,
        commits=commits,
        reached=reached,
        events=(
            *events_of_samples(samples),
            *events_of_executor_logs(read_executor_logs(logs)),
            *events_of_driver_logs(drivers),
        ),
        process_runs=process_runs_of(supervisor),
        epochs=epochs_of(supervisor),
        batches=batches_of(listener),
        totals=totals_of(samples),
        collections=read_gc_logs(logs),
        state_rows=state_rows(listener),
        state_bytes=_state_bytes(folder / "checkpoint.json"),
        late_rows=sum(late),
        settings=application_settings(folder),
        per_record=method == "rank",
    )


def is_evidence(log: str, line: str) -> bool:
    """Return whether traces need this line of a log; GC logs are kept completely."""
    if log == "stderr":
        return executor_log.is_event(line)
    return driver_log.is_driver_event(line) if log.startswith("driver-") else True


def events_of_samples(lines: Iterable[Line]) -> list[EngineEvent]:
    """Return first answers, registrations and losses of applications and executors from REST samples.

    If `addTime` or `removeTime` of an executor changes between samples, the value of the last sample counts.
    """
    applications: list[EngineEvent] = []
    added: dict[str, EngineEvent] = {}
    removed: dict[str, EngineEvent] = {}
    for line, executor in _executors(lines):
        application, name = str(line.get("app_id")), str(executor["id"])
        if not applications or applications[-1].process != application:
            at = int(line["wall_ns"])
            applications.append(
                EngineEvent("answered", DRIVER, application, at, _SAMPLES_FILE, f"application {application} (REST)")
            )
        if name == DRIVER:
            continue
        for kind, known, field in (("registered", added, "addTime"), ("lost", removed, "removeTime")):
            if instant := executor.get(field):
                text = f"{field} of executor {name} (REST)"
                process = f"{application}/{name}"
                known[process] = EngineEvent(kind, "executor", process, log_instant_ns(instant), _SAMPLES_FILE, text)
    return [*applications, *sorted(added.values(), key=_BY_TIME), *sorted(removed.values(), key=_BY_TIME)]


def totals_of(lines: Iterable[Line]) -> tuple[Totals, ...]:
    """Return the counters of each executor at each sample; the driver, which runs no tasks, is excluded."""
    return tuple(
        Totals(
            f"{line.get('app_id')}/{executor['id']}",
            int(line["wall_ns"]),
            float(executor.get("totalGCTime") or 0),
            float(executor.get("completedTasks") or 0),
            float(executor.get("totalDuration") or 0),
        )
        for line, executor in _executors(lines)
        if str(executor["id"]) != DRIVER
    )


def events_of_executor_logs(log: ExecutorEvents) -> list[EngineEvent]:
    """Return task starts, state loads and snapshots from the executors' logs."""
    launches = [
        EngineEvent(
            "task_started",
            "executor",
            task.executor,
            task.wall_ns,
            _log(task.executor),
            f"Running task {task.index} in stage {task.stage}, TID {task.tid}",
            task=_task(task.tid),
        )
        for task in log.launches
    ]
    loads = [
        EngineEvent(
            "state_loaded",
            "executor",
            load.executor,
            load.wall_ns,
            _log(load.executor),
            f"Loaded {load.version}, partition {load.partition}, TID {load.tid}",
            task=_task(load.tid),
            store=load.store,
        )
        for load in log.loads
        if load.real
    ]
    snapshots = [
        EngineEvent(
            "snapshot",
            "executor",
            one.executor,
            one.wall_ns,
            _log(one.executor),
            f"snapshot {one.version} of partition {one.partition}",
        )
        for one in log.snapshots
    ]
    return [*launches, *loads, *snapshots]


def events_of_driver_logs(log: DriverEvents) -> list[EngineEvent]:
    """Return lost tasks and lost connections from the drivers' logs."""
    kinds: tuple[tuple[str, Sequence[LogLine]], ...] = (
        ("task_lost", log.lost_tasks),
        ("disconnected", log.disconnects),
    )
    return [
        EngineEvent(kind, DRIVER, line.file.removesuffix(".log"), line.wall_ns, line.file, line.text)
        for kind, lines in kinds
        for line in lines
    ]


def batches_of(listener: Iterable[Line]) -> tuple[Batch, ...]:
    """Return the batches that were reported with their times."""
    return tuple(
        Batch(
            int(line["batch"]),
            int(line["wall_ns"]),
            float(line["duration_ms"].get("triggerExecution", 0)),
            line["duration_ms"].get("addBatch"),
        )
        for line in events(listener, "progress")
        if line.get("duration_ms")
    )


def state_rows(listener: Iterable[Line]) -> int | None:
    """Return the live state rows after the last batch that reported them."""
    reported = [state["rows"] for state in _states(listener) if state.get("rows") is not None]
    return int(reported[-1]) if reported else None


def _states(listener: Iterable[Line]) -> list[Line]:
    return [line["state"] for line in events(listener, "progress") if line.get("state")]


def _state_bytes(path: Path) -> int | None:
    """Return the size of the last snapshot and changelog; None if it was not measured."""
    if not path.exists():
        return None
    content = read_document(path)
    return int(content["snapshot_bytes"]) + int(content["changelog_bytes"])


def _executors(lines: Iterable[Line]) -> list[tuple[Line, Line]]:
    """Return (sample, executor) pairs, sorted by time."""
    samples = sorted((line for line in lines if line.get("kind") == "executors"), key=lambda line: int(line["wall_ns"]))
    return [(line, executor) for line in samples for executor in line.get("executors") or ()]


def _log(executor: str) -> str:
    return f"log of executor {executor}"


def _task(tid: int | None) -> str | None:
    return None if tid is None else f"TID {tid}"


_BY_TIME = attrgetter("wall_ns")


# Detection of faults, by the role of the victims.


Detector = Callable[[VictimGroup, Traces], EngineEvent | None]
# Application (None if unknown) and executor.
Identity = tuple[str | None, str]


def executor_removed(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the `removeTime` of the victims in Spark's REST API; the last one counts.

    A victim is identified by `--executor-id` and `--app-id` in its command line, because executor ids restart from 0
    after a driver restart. Without an id, the first removal after t0 counts.
    """
    identities = [identity for victim in hit.victims if (identity := identity_of(victim)) is not None]
    return _last_removal(hit, traces, identities) or _epoch_ended(hit, traces)


def executors_of_worker_removed(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the `removeTime` of the executors that the worker hosted; the last one counts."""
    hosted: list[Identity] = [(None, str(name)) for victim in hit.victims for name in victim.get("executors") or ()]
    return _last_removal(hit, traces, hosted) or _epoch_ended(hit, traces)


def task_lost(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the first lost task in the driver's log."""
    return _first_event(hit, traces, "task_lost")


def broker_disconnected(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the first lost connection to the broker in the driver's log."""
    return _first_event(hit, traces, "disconnected")


DETECTORS: dict[str, Detector] = {
    "executor": executor_removed,
    "worker": executors_of_worker_removed,
    "driver": driver_exited,
    "python_worker": task_lost,
    "kafka": broker_disconnected,
    "kafka_connection": broker_disconnected,
}


def detect(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the detection of the loss; None if none is recorded within the fault's interval."""
    detector = DETECTORS.get(hit.role)
    return None if detector is None else detector(hit, traces)


def without_effect(hit: VictimGroup, traces: Traces) -> str | None:
    """Return why a loss had no effect: no task was lost, or the worker hosted no executor of the run."""
    if hit.role == "python_worker" and task_lost(hit, traces) is None:
        return "no task was lost"
    if hit.role == "worker" and not any(victim.get("executors", True) for victim in hit.victims):
        return "the worker hosted no executor of the run"
    return None


def identity_of(victim: Mapping[str, Any]) -> Identity | None:
    """Return application and id from an executor's command line; None without an id."""
    command = victim.get("command") or []
    name = option_of(command, "--executor-id")
    return None if name is None else (option_of(command, "--app-id"), name)


def _last_removal(hit: VictimGroup, traces: Traces, identities: Sequence[Identity]) -> EngineEvent | None:
    """Return the last removal of these executors; without identities, the first removal after t0."""
    removed = {one.process: one for one in traces.events_of("lost") if hit.span.contains(one.wall_ns)}
    if not removed:
        return None
    if not identities:
        first = min(removed.values(), key=lambda one: one.wall_ns)
        return replace(first, text="first executor removed after t0 (REST)")
    present = _application_at(hit, traces)
    found = [removed.get(f"{application or present}/{name}") for application, name in identities]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    names = ", ".join(name for _, name in identities)
    return replace(max(known, key=lambda one: one.wall_ns), text=f"removeTime of executor {names} (REST)")


def _application_at(hit: VictimGroup, traces: Traces) -> str | None:
    """Return the application at t0: the last one that had answered by then, else the first."""
    answered = traces.events_of("answered")
    before = [one for one in answered if one.wall_ns <= hit.span.t0_ns + CLOCK_RESOLUTION_NS]
    return next((one.process for one in [*before[::-1], *answered]), None)


def _epoch_ended(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the end of an epoch, which may precede the recorder's next sample (commit mode `none`)."""
    for epoch in traces.epochs:
        if hit.span.contains(epoch.began_ns):
            return EngineEvent(
                "lost", "executor", "", epoch.began_ns, SUPERVISOR_JOURNAL, f"lineage {epoch.number}: {epoch.reason}"
            )
    return None


def _first_event(hit: VictimGroup, traces: Traces, kind: str) -> EngineEvent | None:
    return next((one for one in traces.events_of(kind) if hit.span.contains(one.wall_ns)), None)
