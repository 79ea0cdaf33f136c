"""Work for a task of an external Airflow in place of an experiment's: it writes down that it was begun, and obeys."""

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
    """`params`: `lines`, how many it prints; `until`, a file that it waits for; `dies`; `outcome` and `value`."""
    told = task.request["params"]
    with (task.settings.home / "begun").open("a") as file:
        file.write(f"{task.process.name} {','.join(sorted(task.request.get('connections', ())))}\n")
    for number in range(told.get("lines", 1)):
        print(f"{task.process.name} {number}")
    if told.get("until"):
        wait_until(Path(told["until"]).exists, timeout_s=120, what="the end of the work")
    if told.get("dies"):
        os._exit(7)
    attempt = ATTEMPT if task.process.name == "prepare" else None
    return {"outcome": told.get("outcome", "done"), "value": told.get("value", attempt), "why": "as it was told"}


def use_work(replace: Callable[[Any, str, Any], None]) -> None:
    """Have `./faultline step` begin this work, without services."""
    replace(steps, "PROGRAM", "tests.support.external_work")
    replace(steps, "are_steps_admitted", lambda settings: True)
    replace(steps, "clean_environment", environment)


def environment(extra: Mapping[str, str], *, for_workload: bool) -> dict[str, str]:
    """With where the tests import from."""
    return {**os.environ, **extra}


# What a test's `faultline` runs with `-c`.
COMMAND = """\
from faultline.cli.main import main
from tests.support import external_work

external_work.use_work(setattr)
main()"""


def make_command(folder: Path) -> None:
    """A `faultline` in a folder whose `step` begins this work."""
    path, command = os.pathsep.join(filter(None, sys.path)), folder / "faultline"
    command.write_text(f"#!/bin/sh\nexport PYTHONPATH='{path}'\nexec '{sys.executable}' -c '{COMMAND}' \"$@\"\n")
    command.chmod(0o700)


if __name__ == "__main__":
    main(act)
