"""Command lines of started processes; between fork and exec, a child still shows its parent's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import psutil

from faultline.experiment.attempt import Attempt
from faultline.system.process_ledger import LedgerEntry, spawn_detached
from faultline.system.waiting import wait_until

# Timeout of every wait in seconds; at least a minute, because the machine may be busy.
EVENT_S = 120.0
SLEEP = "import time; time.sleep(900)"


def detached(attempt: Attempt, role: str, program: str = SLEEP) -> LedgerEntry:
    """Start a process that sleeps or runs the Python program, and is listed in the attempt's process ledger."""
    attempt.logs.mkdir(parents=True, exist_ok=True)
    return spawn_detached(
        [sys.executable, "-c", program],
        role=role,
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=attempt.logs / f"{role}.out",
        stderr=attempt.logs / f"{role}.err",
        cwd=attempt.folder,
    )


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone or hidden."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def shown(pid: int, mark: str | Callable[[list[str]], bool]) -> list[str]:
    """Wait until the command line of a process contains the text `mark`, or satisfies the function; return it."""

    def found() -> list[str]:
        words = words_of(pid)
        return words if (mark in words if isinstance(mark, str) else mark(words)) else []

    return wait_until(found, timeout_s=EVENT_S, every_s=0.01, what=f"process {pid}: its own command line")
