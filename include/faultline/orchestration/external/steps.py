"""Work of one task of an external Airflow: a detached process, and the `./faultline step` that follows it.

The process has a folder with ledger (list of started processes), output and outcome, and survives its task. If the task
is killed, the next try finds the process, running or finished, and prints its whole output. A task that Airflow has
given up may continue to follow it, so several tasks may follow one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.cell import EXPERIMENT
from faultline.installation.service_users import are_steps_admitted, external_owner, load_environment
from faultline.system.child_environment import clean_environment
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.files import write_atomic
from faultline.system.locks import FileLock, LockHold
from faultline.system.process_ledger import end_processes, process_of, read_ledger
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import Settings, instance


class SkipError(FaultlineError):
    """Task to be skipped.

    `refused`: the reason why `prepare` refused, for `require_accepted`.
    """

    def __init__(self, why: str, refused: str | None = None) -> None:
        super().__init__(why)
        self.refused = refused


class FailedError(FaultlineError):
    """Final failure of a task; a retry would fail too."""


PROGRAM = "faultline.orchestration.external.task_execution"
Request = Mapping[str, Any]
# Sends a message to the task: {"log": line}, {"wait": path}, or finally {"outcome": …}.
Report = Callable[[dict[str, Any]], None]
# Timeout for unreachable services: a restart takes half a minute, an upgrade some minutes.
SERVICES_WAIT_S = 300.0
POLL_S = 0.2
# Timeout for the end of a process, including one that is starting.
STOP_TIMEOUT_S = 120.0
# Retention of folders without an attempt after their last change.
RETENTION_S = 24 * 3600.0
# Interval at which the task checks whether its run is cancelled.
CANCEL_CHECK_S = 5.0
# Repeatable steps, copied from the table of steps, whose import is slow.
REPEATABLE = frozenset({"harvest", "judge", "teardown"})
# Tasks that check for cancellation.
CANCELLABLE = frozenset({"prepare", "start_recorder", "await_end"})


@dataclass(frozen=True)
class TaskProcess:
    """Detached process of one task.

    `run_start`: distinguishes the task's run from the same run after clearing; empty for a step that runs once per
    attempt. `is_single`: whether the process is started only once.
    """

    folder: Path
    name: str
    run_start: str
    attempt: Attempt | None = None
    is_single: bool = False

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def output(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def outcome_file(self) -> Path:
        """File of the outcome."""
        return self.folder / f"{self.name}.json"

    @property
    def cancel_file(self) -> Path:
        """File whose presence cancels the experiment."""
        return self.folder / f"{self.name}.cancel"

    def outcome(self) -> dict[str, Any] | None:
        """Return the outcome; None while the process runs, or if it crashed."""
        with contextlib.suppress(OSError, ValueError):
            found = dict(json.loads(self.outcome_file.read_text()))
            return found if found.get("since") == self.run_start else None
        return None

    def write_outcome(self, outcome: Mapping[str, Any]) -> None:
        write_json(self.outcome_file, {"since": self.run_start, **outcome})

    def was_started(self) -> bool:
        return any(entry.role == self.name for entry in read_ledger(self.ledger))

    @property
    def start_file(self) -> Path:
        """File with the `run_start` of the process, until its task has read the outcome."""
        return self.folder / f"{self.name}.since"

    def started_for(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return self.start_file.read_text()
        return None

    def release(self) -> None:
        """Let the next call start a new process, now that the task has read the outcome; other followers keep it."""
        if self.attempt is not None and self.is_single:
            return
        with self.start_lock():
            if not self.is_running():
                self.start_file.unlink(missing_ok=True)

    def start_lock(self) -> contextlib.AbstractContextManager[LockHold]:
        """Return the lock for the decision whether to start the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{self.name}.turn").acquire()

    def lifetime_lock(
        self, *, shared: bool = False, limit_s: float = 0.0
    ) -> contextlib.AbstractContextManager[LockHold]:
        """Return the lock that the process holds, through an inherited descriptor, while it runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{self.name}.lock").acquire(shared=shared, limit_s=limit_s)

    def is_running(self) -> bool:
        # The lock is shared, so concurrent checks do not take each other for the process.
        with self.lifetime_lock(shared=True) as hold:
            return hold.waited_s is None

    @contextlib.contextmanager
    def take_over(self) -> Iterator[int]:
        """End the process and prevent another start; yield the descriptor of its lifetime lock.

        Raises InfrastructureError on timeout.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            # Read repeatedly, because a starting process is written to the ledger a little later.
            for entry in read_ledger(self.ledger):
                if entry.role == self.name and (process := process_of(entry)) is not None:
                    with contextlib.suppress(psutil.Error):
                        end_processes([process, *process.children(recursive=True)])
            with self.lifetime_lock(limit_s=POLL_S) as hold:
                if hold.waited_s is not None:
                    yield hold.descriptor
                    return
        raise InfrastructureError(
            f"{self.name}: its process did not end within {STOP_TIMEOUT_S:g} s; see {self.output}"
        )


def task_process_of(name: str, attempt_id: str | None, request: Request, settings: Settings) -> TaskProcess:
    """Return the process of a task, the same for each of its tries."""
    # Airflow resets the start date when a run is cleared.
    since = str(request["start_date"])
    if attempt_id is not None:
        attempt = Attempt(settings.attempts / attempt_id)
        once = name not in REPEATABLE
        return TaskProcess(attempt.folder / "steps", name, "" if once else since, attempt, once)
    identity = [request[key] for key in ("place", "prefix", "dag", "run_id", "map_index")]
    digest = hashlib.sha256(json.dumps([*identity, name]).encode()).hexdigest()[:24]
    # `prepare` may have created its attempt, so it runs only once per try.
    once = request["dag"] == EXPERIMENT and name == "prepare"
    return TaskProcess(settings.home / "steps" / digest, name, since, None, once)


def run_to_outcome(action: Callable[[], Any]) -> dict[str, Any]:
    """Run an action; return its `outcome`: done with its value, or skip, fail or error with the reason (`why`)."""
    try:
        value = action()
        return {"outcome": "done", "value": getattr(value, "pid", value)}
    except SkipError as skipped:
        return {"outcome": "skip", "why": str(skipped), "refused": skipped.refused}
    except (ConfigError, FailedError) as error:
        return {"outcome": "fail", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "error", "why": f"{type(error).__name__}: {error}"}


def start_and_follow(process: TaskProcess, request: Request, settings: Settings, report: Report) -> dict[str, Any]:
    """Start the process if needed, report its output until it ends, and return its outcome.

    Raises InfrastructureError if no services run here.
    """
    if process.attempt is not None and process.attempt.over and process.is_single:
        # The step itself rejects a closed attempt.
        process.outcome_file.unlink(missing_ok=True)
    deadline = time.monotonic() + SERVICES_WAIT_S
    while not _ensure_started(process, request, settings):
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"{settings.home}: no services run here; fix: `./faultline up --no-airflow --foreground` on this host"
            )
        report({"log": f"services: waiting for their start (at most {SERVICES_WAIT_S:g} s)"})
        time.sleep(CANCEL_CHECK_S)
    return _follow(process, report)


def _ensure_started(process: TaskProcess, request: Request, settings: Settings) -> bool:
    """Return whether the process runs or has run; start it if services run here."""
    with process.start_lock():
        is_current = process.started_for() == process.run_start
        if is_current and (process.is_running() or process.outcome() is not None):
            return True
        if process.is_single and process.attempt and not process.attempt.over and process.was_started():
            return True
        if not are_steps_admitted(settings):
            return False
        # Read the environment again: the services may have started after this process.
        load_environment(settings)
        # The process belongs to the run before it was cleared.
        with process.take_over() as lock:
            for file in (process.outcome_file, process.output, process.cancel_file):
                file.unlink(missing_ok=True)
            if process.attempt is None:
                process.ledger.unlink(missing_ok=True)
                _remove_expired(settings.home / "steps")
            write_atomic(process.start_file, process.run_start)
            _start_process(process, lock, request, settings)
    return True


def _remove_expired(steps: Path) -> None:
    for folder in steps.iterdir():
        processes = [TaskProcess(folder, lock.stem, "") for lock in folder.glob("*.lock")]
        if time.time() - folder.stat().st_mtime > RETENTION_S and not any(one.is_running() for one in processes):
            shutil.rmtree(folder, ignore_errors=True)


def _start_process(process: TaskProcess, lock: int, request: Request, settings: Settings) -> None:
    """Start the detached process, with secrets on its standard input rather than in arguments or environment."""
    mark = {INSTANCE_MARK: instance(settings).get("instance", "")}
    attempt = process.attempt.id if process.attempt else ""
    with process.output.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, str(process.folder), process.name, attempt, str(lock)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
            env=clean_environment(mark, for_workload=True),
            cwd=settings.root,
        )
    threading.Thread(target=child.wait, daemon=True).start()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as stream:
        stream.write(json.dumps(request).encode())


def _follow(process: TaskProcess, report: Report) -> dict[str, Any]:
    """Report the process's output until it ends; return its outcome."""
    task, offset, checked = os.getppid(), 0, time.monotonic()
    while True:
        # If the running process belongs to the run before it was cleared, the wait ends as well.
        running = process.is_running() and process.started_for() in (None, process.run_start)
        offset = _report_lines(process, offset, report, only_complete=running)
        if not running:
            return _final_outcome(process)
        if os.getppid() != task:
            raise InfrastructureError(f"{process.name}: its task process died")
        if process.name in CANCELLABLE and time.monotonic() - checked >= CANCEL_CHECK_S:
            checked = time.monotonic()
            report({"wait": str(process.cancel_file)})
        time.sleep(POLL_S)


def _report_lines(process: TaskProcess, offset: int, report: Report, *, only_complete: bool) -> int:
    """Report the output after `offset` bytes, if `only_complete` without an unfinished line; return the new offset."""
    with contextlib.suppress(FileNotFoundError), process.output.open("rb") as output:
        output.seek(offset)
        for line in output:
            if only_complete and not line.endswith(b"\n"):
                break
            offset += len(line)
            report({"log": line.decode(errors="replace").rstrip("\n")})
    return offset


def _final_outcome(process: TaskProcess) -> dict[str, Any]:
    """Return the outcome of an ended process.

    If the process is started only once, a crash becomes its outcome. One that died before its work may start again.
    """
    with process.start_lock():
        outcome = process.outcome()
        if outcome is not None:
            return {**outcome, "outcome": "fail"} if process.is_single and outcome["outcome"] == "error" else outcome
        why = f"{process.name}: process died without an outcome, such as after a restart of the services or the machine"
        if not process.is_single or not process.was_started():
            return {"outcome": "error", "why": why}
        outcome = {"outcome": "fail", "why": why}
        if process.attempt is not None:
            if process.attempt.over is None:
                from faultline.lifecycle.teardown import note_failure

                note_failure(process.attempt.folder, process.name, InfrastructureError(why))
            process.write_outcome(outcome)
        return outcome


def serve_task(name: str, attempt_id: str | None, request: Request, settings: Settings, report: Report) -> None:
    """Run a task's work and report its outcome.

    Raises OSError if the task has ended; a retry may follow.
    """
    if name in QUERIES:
        report(run_to_outcome(lambda: QUERIES[name](request, settings)))
        return
    process = task_process_of(name, attempt_id, request, settings)
    report(start_and_follow(process, request, settings, report))
    process.release()


def open_run_ids(request: Request, settings: Settings) -> list[str]:
    """Return the runs of open attempts; the task then checks their state in its Airflow.

    Raises FailedError while an experiment of another Airflow is open, because the task cannot check its run.
    """
    from faultline.installation import supervision
    from faultline.lifecycle.ending.orphans import unclosed_attempts

    if supervision.is_airflow_running(settings):
        raise FailedError(
            "airflow: Faultline's own Airflow runs here, and each would close the other's experiments; "
            "fix: run ./faultline down first"
        )
    found = []
    for attempt in unclosed_attempts(settings):
        owner = external_owner(attempt, settings)
        if owner is not None and owner != (request["place"], request["prefix"]):
            place, prefix = owner
            raise FailedError(
                f"{attempt.id}: active for DAGs {prefix}… of {place}; fix: retry after its end, or restart the "
                "services if it is orphaned"
            )
        with contextlib.suppress(FaultlineError):  # the orphan cleanup reports damaged attempts
            found.append(str(attempt.read().get("run_id") or ""))
    return [one for one in found if one]


def decide_cell(request: Request, settings: Settings) -> dict[str, Any]:
    """Return the decision on a cell of a sweep, and the sweep's attempts of it."""
    from faultline.orchestration.cells import RunningCell, decide_after_run, decide_before_run

    query, start_date = request["cell"], request["start_date"]
    since = datetime.fromisoformat(start_date) if start_date else None
    running_cell = RunningCell(settings, query["conf"], request["params"], since, query["max_measurements"])
    if run_id := query.get("ended"):
        decision = decide_after_run(running_cell, query["known"], query["tries"], run_id)
    else:
        decision = decide_before_run(running_cell, lambda: None if query["child"] is None else str(query["child"]))
    if decision.action == "skip":
        raise SkipError(decision.reason)
    if decision.action == "give_up":
        raise FailedError(decision.reason)
    return {"do": decision.action, "known": [record.attempt for record in running_cell.own_records()]}


# Queries that this process answers itself.
QUERIES: dict[str, Callable[[Request, Settings], Any]] = {"runs": open_run_ids, "cell": decide_cell}
