"""The work of one task of an external Airflow: a detached process, and the task's `./faultline step` that waits for it.

The process has a folder with its ledger, output and outcome, so that it survives its task: the next try of a task that
was killed finds the process, running or done, and prints its whole output. A task that Airflow gave up may still wait
beside that try, so several may follow one process.
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
    """The task is to be skipped. `refused`: why `prepare` refused, for `require_accepted`."""

    def __init__(self, why: str, refused: str | None = None) -> None:
        super().__init__(why)
        self.refused = refused


class FailedError(FaultlineError):
    """The task has failed, and another try would fail the same way."""


PROGRAM = "faultline.orchestration.external.task_execution"
Request = Mapping[str, Any]
# Takes a word for the task: {"log": line}, {"wait": path}, or at last {"outcome": …}.
Report = Callable[[dict[str, Any]], None]
# How long a task waits for services that are away: a restart takes half a minute, an upgrade some minutes.
SERVICES_WAIT_S = 300.0
POLL_S = 0.2
# How long a process that nobody wants may take to end, also one that is only starting.
STOP_TIMEOUT_S = 120.0
# How long a folder of work without an attempt is kept once nothing happens in it.
RETENTION_S = 24 * 3600.0
# How often the task is asked to look whether its run is still wanted.
CANCEL_CHECK_S = 5.0
# The steps that may be done again on their attempt, as their table says, which takes long to load.
REPEATABLE = frozenset({"harvest", "judge", "teardown"})
# The tasks that ask whether anybody still wants their experiment.
CANCELLABLE = frozenset({"prepare", "start_recorder", "await_end"})


@dataclass(frozen=True)
class TaskProcess:
    """What one task is to have done once. `since`: tells the run of the task from the same run cleared; empty for a
    step that is never repeated on its attempt."""

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
        """The outcome."""
        return self.folder / f"{self.name}.json"

    @property
    def cancel_file(self) -> Path:
        """Its presence says that nobody wants the experiment any more."""
        return self.folder / f"{self.name}.cancel"

    def outcome(self) -> dict[str, Any] | None:
        """How the work ended; None while it goes on, or when it died."""
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
        """Holds the `since` that the process was begun for, until its task has heard how it ended."""
        return self.folder / f"{self.name}.since"

    def started_for(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return self.start_file.read_text()
        return None

    def release(self) -> None:
        """Lets the next call begin anew, once the task has heard how the work ended. The outcome stays for others who
        still wait."""
        if self.attempt is not None and self.is_single:
            return
        with self.start_lock():
            if not self.is_running():
                self.start_file.unlink(missing_ok=True)

    def start_lock(self) -> contextlib.AbstractContextManager[LockHold]:
        """Whoever decides whether to begin the work does so alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{self.name}.turn").acquire()

    def lifetime_lock(
        self, *, shared: bool = False, limit_s: float = 0.0
    ) -> contextlib.AbstractContextManager[LockHold]:
        """The work's lock, which a process that inherits its descriptor holds as long as it lives."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{self.name}.lock").acquire(shared=shared, limit_s=limit_s)

    def is_running(self) -> bool:
        # Shared, so that one who looks is not taken for the process by another.
        with self.lifetime_lock(shared=True) as hold:
            return hold.waited_s is None

    @contextlib.contextmanager
    def take_over(self) -> Iterator[int]:
        """Ends the process, and keeps another one from beginning; gives the descriptor of the work's lock.

        Raises InfrastructureError when it does not end.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            # Again and again: one that is only starting writes itself down later.
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
    """The work of a task, the same for each of its tries."""
    # Airflow renews it as it clears a run.
    since = str(request["start_date"])
    if attempt_id is not None:
        attempt = Attempt(settings.attempts / attempt_id)
        once = name not in REPEATABLE
        return TaskProcess(attempt.folder / "steps", name, "" if once else since, attempt, once)
    identity = [request[key] for key in ("place", "prefix", "dag", "run_id", "map_index")]
    digest = hashlib.sha256(json.dumps([*identity, name]).encode()).hexdigest()[:24]
    # What `prepare` has made may be there, so it is not made twice for one try.
    once = request["dag"] == EXPERIMENT and name == "prepare"
    return TaskProcess(settings.home / "steps" / digest, name, since, None, once)


def run_to_outcome(act: Callable[[], Any]) -> dict[str, Any]:
    """How an action ended: done with its value; skip, fail or error with the reason."""
    try:
        value = act()
        return {"outcome": "done", "value": getattr(value, "pid", value)}
    except SkipError as skipped:
        return {"outcome": "skip", "why": str(skipped), "refused": skipped.refused}
    except (ConfigError, FailedError) as error:
        return {"outcome": "fail", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "error", "why": f"{type(error).__name__}: {error}"}


def start_and_follow(process: TaskProcess, request: Request, settings: Settings, report: Report) -> dict[str, Any]:
    """Begins the work unless it was begun, and tells what it prints until it has ended; returns how it ended.

    Raises InfrastructureError when no services run here.
    """
    if process.attempt is not None and process.attempt.over and process.is_single:
        # The step itself refuses a closed attempt.
        process.outcome_file.unlink(missing_ok=True)
    deadline = time.monotonic() + SERVICES_WAIT_S
    while not _ensure_started(process, request, settings):
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"{settings.home}: no services run here; start `./faultline up --no-airflow --foreground` on this host"
            )
        report({"log": f"the services are away; this task waits for them, {SERVICES_WAIT_S:g} s at most"})
        time.sleep(CANCEL_CHECK_S)
    return _follow(process, report)


def _ensure_started(process: TaskProcess, request: Request, settings: Settings) -> bool:
    """Whether somebody works at it, or has; begins the work where the services run."""
    with process.start_lock():
        ours = process.started_for() == process.run_start
        if ours and (process.is_running() or process.outcome() is not None):
            return True
        if process.is_single and process.attempt and not process.attempt.over and process.was_started():
            return True
        if not are_steps_admitted(settings):
            return False
        # They may have come up since this process began.
        load_environment(settings)
        # Of a run that was cleared since.
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
    """Starts the detached process. It has secrets from its standard input: command lines and environments show them."""
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
    """Tells what the work prints until it has ended; returns how."""
    task, told, asked = os.getppid(), 0, time.monotonic()
    while True:
        # Also over where the task's run was cleared, and another process took the place.
        running = process.is_running() and process.started_for() in (None, process.run_start)
        told = _report_lines(process, told, report, whole=running)
        if not running:
            return _final_outcome(process)
        if os.getppid() != task:
            raise InfrastructureError(f"{process.name}: the task that waited for it is gone")
        if process.name in CANCELLABLE and time.monotonic() - asked >= CANCEL_CHECK_S:
            asked = time.monotonic()
            report({"wait": str(process.cancel_file)})
        time.sleep(POLL_S)


def _report_lines(process: TaskProcess, told: int, report: Report, *, whole: bool) -> int:
    """Tells the lines of the output after its first `told` bytes, only `whole` ones; returns the bytes told by then."""
    with contextlib.suppress(FileNotFoundError), process.output.open("rb") as output:
        output.seek(told)
        for line in output:
            if whole and not line.endswith(b"\n"):
                break
            told += len(line)
            report({"log": line.decode(errors="replace").rstrip("\n")})
    return told


def _final_outcome(process: TaskProcess) -> dict[str, Any]:
    """How work ended whose process is gone. A step that may be done once has no other try, however it failed; one
    whose process died keeps that as its outcome. What died before it began may be begun again."""
    with process.start_lock():
        outcome = process.outcome()
        if outcome is not None:
            return {**outcome, "outcome": "fail"} if process.is_single and outcome["outcome"] == "error" else outcome
        why = (
            f"{process.name}: its process ended without an outcome, as when the services were ended or the machine "
            "went down"
        )
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
    """Has the work of a task done, and tells how it ended. Raises OSError when the task is gone, which may come again
    for it."""
    if name in QUERIES:
        report(run_to_outcome(lambda: QUERIES[name](request, settings)))
        return
    process = task_process_of(name, attempt_id, request, settings)
    report(start_and_follow(process, request, settings, report))
    process.release()


def open_run_ids(request: Request, settings: Settings) -> list[str]:
    """Ids of the runs whose attempts are open: the task asks its Airflow which of them are over.

    Raises FailedError where another Airflow's experiment goes on, of whose runs the task's cannot tell.
    """
    from faultline.installation import supervision
    from faultline.lifecycle.orphans import unclosed_attempts

    if supervision.is_airflow_running(settings):
        raise FailedError(
            "airflow: Faultline's own Airflow runs here, and either would close the other's experiments; "
            "./faultline down first"
        )
    found = []
    for attempt in unclosed_attempts(settings):
        owner = external_owner(attempt, settings)
        if owner is not None and owner != (request["place"], request["prefix"]):
            place, prefix = owner
            raise FailedError(
                f"{attempt.id}: goes on here for DAGs {prefix}… of {place}; begin again when it is over, or, when "
                "nobody ends it, restart the services"
            )
        with contextlib.suppress(FaultlineError):  # damaged: whoever cleans up says so
            found.append(str(attempt.read().get("run_id") or ""))
    return [one for one in found if one]


def decide_cell(request: Request, settings: Settings) -> dict[str, Any]:
    """What to do about a cell of a sweep, and the attempts that the sweep has measured of it."""
    from faultline.orchestration.cells import RunningCell, decide_after_run, decide_before_run

    asked, begun = request["cell"], request["start_date"]
    since = datetime.fromisoformat(begun) if begun else None
    swept = RunningCell(settings, asked["conf"], request["params"], since, asked["max_measurements"])
    if run_id := asked.get("ended"):
        decision = decide_after_run(swept, asked["known"], asked["tries"], run_id)
    else:
        decision = decide_before_run(swept, lambda: None if asked["child"] is None else str(asked["child"]))
    if decision.action == "skip":
        raise SkipError(decision.reason)
    if decision.action == "give_up":
        raise FailedError(decision.reason)
    return {"do": decision.action, "known": [record.attempt for record in swept.own_records()]}


# What is answered at once, by this process.
QUERIES: dict[str, Callable[[Request, Settings], Any]] = {"runs": open_run_ids, "cell": decide_cell}
