"""Replacement for the work of external Airflow tasks: logs its start and does what its parameters request."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faultline.orchestration.external import steps
from faultline.orchestration.external.task_execution import Task, main
from faultline.system.waiting import wait_until

ATTEMPT = "20261126T010000Z-abcdef"


def act(task: Task) -> dict[str, Any]:
    """Run a task as its `params` request.

    `lines`: number of lines to print; `until`: file to wait for; `dies`: exit without an answer; `outcome`, `value`: of
    the answer.
    """
    params = task.request["params"]
    with (task.settings.home / "begun").open("a") as file:
        file.write(f"{task.process.name} {','.join(sorted(task.request.get('connections', ())))}\n")
    for number in range(params.get("lines", 1)):
        print(f"{task.process.name} {number}")
    if params.get("until"):
        wait_until(Path(params["until"]).exists, timeout_s=120, what="the end of the work")
    if params.get("dies"):
        os._exit(7)
    attempt = ATTEMPT if task.process.name == "prepare" else None
    return {"outcome": params.get("outcome", "done"), "value": params.get("value", attempt), "why": "as requested"}


def use_work(replace: Callable[[Any, str, Any], None]) -> None:
    """Make `./faultline step` start this work, without services."""
    replace(steps, "PROGRAM", "tests.support.external_work")
    replace(steps, "are_steps_admitted", lambda settings: True)
    replace(steps, "clean_environment", environment)


def environment(extra: Mapping[str, str], *, for_workload: bool) -> dict[str, str]:
    """Return the environment with the import path of the tests."""
    return {**os.environ, **extra}


# Program of a test's `faultline`.
COMMAND = """\
from faultline.cli.main import main
from tests.support import external_work

external_work.use_work(setattr)
main()"""


def make_command(folder: Path) -> None:
    """Write a `faultline` whose `step` starts this work."""
    path, command = os.pathsep.join(filter(None, sys.path)), folder / "faultline"
    command.write_text(f"#!/bin/sh\nexport PYTHONPATH='{path}'\nexec '{sys.executable}' -c '{COMMAND}' \"$@\"\n")
    command.chmod(0o700)


if __name__ == "__main__":
    main(act)
