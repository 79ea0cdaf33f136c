"""The optimising compilers of an attempt's JVMs: they stand behind all other threads until the gate.

A start of driver and executors costs some 35 s of a core, 15 of them in these compilers, whose code is of use only
later; until then they take cores from what the gate waits for. From the gate on they are as everybody's, and what is
left for them they do in the warm-up, which is not measured. JVMs that a fault starts later are never held back.

It takes the right to raise a priority again; whoever lacks it starts some seconds later.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from faultline.experiment.attempt import Attempt
from faultline.system.environment import may_raise_priority
from faultline.system.marks import run_option
from faultline.system.processes import is_own

# As Linux shows the names of such threads of HotSpot, which it cuts at 15 characters. A compiler may start others of
# either kind, which then have its priority.
COMPILER, QUICK_COMPILER = "C2 CompilerThre", "C1 CompilerThre"
LAST_NICENESS = 19
YOUNG_S = 0.5


class HeldBack:
    """The compilers of one attempt, from its start to its gate."""

    def __init__(self, attempt: Attempt) -> None:
        self._mark = run_option(attempt.id)
        # Whether a process is a JVM of the attempt; it has been looked at once.
        self._ours: dict[tuple[int, float], bool] = {}

    def look(self) -> None:
        """Puts the compilers that there are by now behind other threads; JVMs start, and start more of them."""
        if may_raise_priority():
            self._set(LAST_NICENESS, COMPILER)

    def let_go(self) -> None:
        """Makes them as everybody's again."""
        if may_raise_priority():
            # A compiler that started another one meanwhile gave it its own priority.
            for _ in range(2):
                self._set(os.getpriority(os.PRIO_PROCESS, 0), COMPILER, QUICK_COMPILER)

    def _set(self, niceness: int, *names: str) -> None:
        for thread in self.threads(*names):
            # It may have ended, or belong to a process with rights of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpriority(os.PRIO_PROCESS, thread) != niceness:
                    os.setpriority(os.PRIO_PROCESS, thread, niceness)

    def threads(self, *names: str) -> Iterator[int]:
        """The ids of the threads with one of these names in all JVMs of the attempt."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self._is_ours(process):
                    for task in Path(f"/proc/{process.pid}/task").iterdir():
                        if (task / "comm").read_text().strip() in names:
                            yield int(task.name)

    def _is_ours(self, process: psutil.Process) -> bool:
        key = (process.pid, process.create_time())
        if key not in self._ours:
            # A process that has not become its program yet shows the command line of whoever started it.
            if time.time() - key[1] < YOUNG_S:
                return False
            self._ours[key] = self._mark in process.cmdline() and is_own(process)
        return self._ours[key]
