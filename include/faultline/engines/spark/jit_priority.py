"""Startup optimisations for an attempt's JVMs until T0: JIT priority and CDS archives.

Before T0 (start of the warm-up) the optimising compilers run at the lowest priority. Starting driver and executors
takes about 35 s of CPU, of which these compilers use 15 s for code that is needed only later. From T0 on they have
normal priority, and finish during the unmeasured warm-up. JVMs that a fault restarts later are not affected.

Restoring a priority requires a privilege; without it, startup takes some seconds longer.
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

# HotSpot thread names, which Linux truncates to 15 characters. A compiler thread may start others of either kind, which
# inherit its priority.
C2_THREAD, C1_THREAD = "C2 CompilerThre", "C1 CompilerThre"
LOWEST_PRIORITY = 19
MIN_AGE_S = 0.5


class JitPriority:
    """Priority of the JIT compiler threads of one attempt, from its start to T0."""

    def __init__(self, attempt: Attempt) -> None:
        self._mark = run_option(attempt.id)
        # Whether a known process is a JVM of the attempt.
        self._is_attempt: dict[tuple[int, float], bool] = {}

    def lower(self) -> None:
        """Lower the priority of all current compiler threads; JVMs start more of them over time."""
        if can_raise_priority():
            self._set(LOWEST_PRIORITY, C2_THREAD)

    def restore(self) -> None:
        """Restore normal priority."""
        if can_raise_priority():
            # The second pass catches threads that inherited the low priority during the first.
            for _ in range(2):
                self._set(os.getpriority(os.PRIO_PROCESS, 0), C2_THREAD, C1_THREAD)

    def _set(self, niceness: int, *names: str) -> None:
        for thread in self.threads(*names):
            # The thread may have ended, or its process may have other privileges.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpriority(os.PRIO_PROCESS, thread) != niceness:
                    os.setpriority(os.PRIO_PROCESS, thread, niceness)

    def threads(self, *names: str) -> Iterator[int]:
        """Yield the ids of threads with one of these names in all JVMs of the attempt."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self._is_attempt_jvm(process):
                    for task in Path(f"/proc/{process.pid}/task").iterdir():
                        if (task / "comm").read_text().strip() in names:
                            yield int(task.name)

    def _is_attempt_jvm(self, process: psutil.Process) -> bool:
        key = (process.pid, process.create_time())
        if key not in self._is_attempt:
            # Do not decide too early: between fork and exec, a new process shows the command line of its parent.
            if time.time() - key[1] < MIN_AGE_S:
                return False
            self._is_attempt[key] = self._mark in process.cmdline() and is_own(process)
        return self._is_attempt[key]


# Default CDS archive within a Java installation.
JAVA_ARCHIVE = Path("lib", "server", "classes.jsa")


def archive_link(attempt: Attempt) -> Path:
    """Return the archive path that the JVMs of the attempt are configured with."""
    return attempt.scratch / "classes.jsa"


def link_spark_archive(attempt: Attempt, runtime: Runtime) -> Path | None:
    """Link the CDS archive of Spark's classes; return None if there is none."""
    if runtime.cds_archive is None:
        return None
    _replace_link(archive_link(attempt), runtime.cds_archive)
    return archive_link(attempt)


def link_java_archive(attempt: Attempt, runtime: Runtime) -> None:
    """Switch the link to Java's default archive; running JVMs keep their mapping."""
    if runtime.cds_archive is not None:
        _replace_link(archive_link(attempt), runtime.java_home / JAVA_ARCHIVE)


def _replace_link(link: Path, target: Path) -> None:
    new_link = link.with_suffix(".new")
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(target)
    new_link.rename(link)
