"""Detached process that performs a task of an external Airflow, without importing Airflow.

    python -m faultline.orchestration.external.task_execution FOLDER NAME ATTEMPT LOCK < request.json

LOCK is the descriptor of the lock that this process holds while it runs. The request contains the Connections, and what
the task knows about its DAG run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from faultline.experiment.attempt import write_json
from faultline.installation.java import find_java
from faultline.installation.service_users import OWNER
from faultline.installation.supervision import service_environment
from faultline.lifecycle import steps
from faultline.lifecycle.context import RunContext, open_run
from faultline.lifecycle.finish import aggregation
from faultline.lifecycle.teardown import UnfinishedError, processes_ended_if_unreadable
from faultline.orchestration.external.hooks import ExternalHooks
from faultline.orchestration.external.steps import FailedError, SkipError, TaskProcess, run_to_outcome, task_process_of
from faultline.system.child_environment import set_owner_umask
from faultline.system.errors import ConfigError, InvalidMeasurement
from faultline.system.process_ledger import LedgerEntry, append_entry, start_identity
from faultline.system.settings import Settings, instance, load_settings


@dataclass(frozen=True)
class Task:
    """Task of an external Airflow, in its detached process."""

    process: TaskProcess
    request: Mapping[str, Any]
    settings: Settings

    @property
    def hooks(self) -> ExternalHooks:
        return ExternalHooks(self.settings, self.request, self.process.cancel_file)

    def open_run(self) -> RunContext:
        assert self.process.attempt is not None
        return open_run(self.process.attempt.id, self.hooks, self.settings)

    def perform(self, name: str) -> Any:
        return steps.perform(steps.STEPS[name], self.open_run())


def prepare(task: Task) -> str:
    """Validate the configuration, create the attempt and return its id."""
    from faultline.orchestration.planning import order_of_run
    from faultline.reports.notes import experiment_note

    settings = task.settings
    try:
        order = order_of_run(task.request["params"], task.request["run_id"])
        attempt = steps.prepare(order, task.hooks, settings).attempt
    except steps.AlreadyMeasuredError as measured:
        raise SkipError(str(measured)) from None
    except steps.RefusedError as refused:
        print(experiment_note(refused.record))
        raise SkipError(f"refused: {refused.reason}", str(refused.reason)) from None
    except ConfigError as error:
        raise SkipError(f"refused: {error}", str(error)) from None
    owner = attempt.folder / OWNER
    owner.parent.mkdir(exist_ok=True)
    mark = instance(settings).get("instance")
    write_json(owner, {"place": task.request["place"], "prefix": task.request["prefix"], "instance": mark})
    return attempt.id


def judge(task: Task) -> str:
    """Write the record.

    Raises FailedError unless it is valid.
    """
    from faultline.records.judge.rejudge import require_valid
    from faultline.reports.notes import experiment_note

    record = task.perform("judge")
    print(experiment_note(record))
    try:
        require_valid(record)
    except InvalidMeasurement as error:
        raise FailedError(str(error)) from None
    return str(Path("records") / record.config_id / f"{record.attempt}.json")


def teardown(task: Task) -> dict[str, Any]:
    """End the processes of other steps and of the attempt's ledger, and close the attempt.

    No step can start meanwhile; later ones reject the closed attempt.
    """
    assert task.process.attempt is not None
    with ExitStack() as others:
        for name in steps.STEPS.keys() - {task.process.name}:
            others.enter_context(replace(task.process, name=name).take_over())
        with processes_ended_if_unreadable(task.process.attempt):
            run = task.open_run()
        outcome: dict[str, Any] = steps.perform(steps.TEARDOWN, run)
    if why := outcome.get("unhealed"):
        raise FailedError(f"{task.process.attempt.id}: teardown failed: {why} (retried by the next experiment)")
    return outcome


def plan(task: Task) -> list[dict[str, Any]]:
    """Return the cells to measure, as arguments of `run_experiment`."""
    from faultline.orchestration.connections import preflight_available_targets
    from faultline.orchestration.planning import SweepRun

    run = SweepRun(task.request["dag"], task.request["run_id"], task.settings, preflight_available_targets)
    planned, note = run.plan(task.request["params"])
    print(note)
    return planned


def aggregate(task: Task) -> None:
    """Rebuild the summary tables and print the outcome of the sweep."""
    from faultline.orchestration.planning import sweep_outcome

    task.hooks.batch(aggregation(task.settings))
    print(sweep_outcome(task.settings, task.request["run_id"]) or "no plan")


# Handlers by task name; all other names are steps.
HANDLERS: dict[str, Callable[[Task], Any]] = {
    "prepare": prepare, "judge": judge, "teardown": teardown, "plan": plan, "aggregate": aggregate,
}  # fmt: skip


def execute(task: Task) -> dict[str, Any]:
    """Perform a task and return its outcome.

    Child processes get the same environment as in tasks of the embedded Airflow.
    """
    name, settings = task.process.name, task.settings

    def act() -> Any:
        os.environ.update(service_environment(settings, find_java(settings.home / "java.json").home))
        try:
            return HANDLERS[name](task) if name in HANDLERS else task.perform(name)
        except UnfinishedError as error:
            raise FailedError(str(error)) from None

    return run_to_outcome(act)


def register_process(folder: Path, name: str) -> None:
    """Append this process to its ledger."""
    own = psutil.Process()
    ticks, boot = start_identity(own.pid)
    entry = LedgerEntry(own.pid, own.create_time(), name, [], "", "", time.time_ns(), time.monotonic_ns(), ticks, boot)
    append_entry(folder / "ledger.jsonl", entry)


def main(act: Callable[[Task], dict[str, Any]] = execute) -> None:
    """Perform the task of the command line and write its outcome.

    `act`: performs it.
    """
    folder, name, attempt, lock = sys.argv[1:]
    # Child processes must not inherit the lock.
    os.set_inheritable(int(lock), False)
    set_owner_umask()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    request, settings = json.load(sys.stdin), load_settings()
    # Register only now: if the task died before it sent the request, nothing was started.
    register_process(Path(folder), name)
    process = task_process_of(name, attempt or None, request, settings)
    process.write_outcome(json.loads(json.dumps(act(Task(process, request, settings)), default=str)))


if __name__ == "__main__":
    main()
