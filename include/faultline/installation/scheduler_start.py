"""Starts Airflow's scheduler, after the task processes of a killed one are ended.

Workers of the LocalExecutor hold both ends of their own queue, so they never learn that their scheduler is gone: an
idle one would wait for ever, a busy one would go on with a task that the new scheduler begins once more.

    python -m faultline.installation.scheduler_start COMMAND...

The command takes this process's place.
"""

from __future__ import annotations

import contextlib
import os
import sys

import psutil

from faultline.installation.supervision import marked_processes
from faultline.system.processes import end_processes
from faultline.system.settings import Settings, load_settings

# What Airflow calls a worker of the LocalExecutor, and the process in it that runs a task.
TITLE = "airflow worker -- "


def stranded(settings: Settings, command: list[str]) -> list[psutil.Process]:
    """Task processes of this installation with all that they started, when no scheduler runs.

    A worker that was just forked still bears the scheduler's own `command`. Detached processes are nobody's children:
    they belong to an attempt, and whoever measures next decides about them.
    """
    found: dict[int, psutil.Process] = {}
    for process in marked_processes(settings):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and (words[0].startswith(TITLE) or words[-len(command) :] == command):
                for one in (process, *process.children(recursive=True)):
                    found.setdefault(one.pid, one)
    return list(found.values())


def main() -> None:
    command = sys.argv[1:]
    ended = end_processes(stranded(load_settings(), command))
    if ended:
        print(f"ended what the last scheduler left: {len(ended)} processes", flush=True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
