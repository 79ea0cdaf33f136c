"""What hastens the start of an attempt's JVMs until the gate, and is taken away then.

Until the gate the optimising compilers stand behind all other threads.

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

from faultline.engines.runtime import Runtime
from faultline.experiment.attempt import Attempt
from faultline.system.child_environment import can_raise_priority
from faultline.system.process_ledger import is_own
from faultline.system.process_tags import run_option

# As Linux shows the names of such threads of HotSpot, which it cuts at 15 characters. A compiler may start others of
# either kind, which then have its priority.
C2_THREAD, C1_THREAD = "C2 CompilerThre", "C1 CompilerThre"
LOWEST_PRIORITY = 19
MIN_AGE_S = 0.5


class JitPriority:
    """The compilers of one attempt, from its start to its gate."""

    def __init__(self, attempt: Attempt) -> None:
        self._mark = run_option(attempt.id)
        # Whether a process is a JVM of the attempt; it has been looked at once.
        self._ours: dict[tuple[int, float], bool] = {}

    def look(self) -> None:
        """Puts the compilers that there are by now behind other threads; JVMs start, and start more of them."""
        if can_raise_priority():
            self._set(LOWEST_PRIORITY, C2_THREAD)

    def let_go(self) -> None:
        """Makes them as everybody's again."""
        if can_raise_priority():
            # A compiler that started another one meanwhile gave it its own priority.
            for _ in range(2):
                self._set(os.getpriority(os.PRIO_PROCESS, 0), C2_THREAD, C1_THREAD)

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
            if time.time() - key[1] < MIN_AGE_S:
                return False
            self._ours[key] = self._mark in process.cmdline() and is_own(process)
        return self._ours[key]


# From which archive of loaded classes the JVMs of an attempt start: all at first from Spark's, later from Java's own.


# Within a Java: what a JVM starts from that was told nothing.
JAVA_ARCHIVE = Path("lib", "server", "classes.jsa")


def archive_link(attempt: Attempt) -> Path:
    """Where the JVMs of the attempt are told that their archive lies."""
    return attempt.scratch / "classes.jsa"


def link_spark_archive(attempt: Attempt, runtime: Runtime) -> Path | None:
    """Makes the link, to the archive of Spark's classes; None without one: then Java does as it always does."""
    if runtime.cds_archive is None:
        return None
    _replace_link(archive_link(attempt), runtime.cds_archive)
    return archive_link(attempt)


def link_java_archive(attempt: Attempt, runtime: Runtime) -> None:
    """Turns the link to Java's own archive; a JVM that runs keeps what it has mapped."""
    if runtime.cds_archive is not None:
        _replace_link(archive_link(attempt), runtime.java_home / JAVA_ARCHIVE)


def _replace_link(link: Path, target: Path) -> None:
    fresh = link.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(link)
