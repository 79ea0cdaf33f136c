"""The command lines of processes that a test has started: between fork and exec a child shows its parent's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import psutil

from faultline.experiment.attempt import Attempt
from faultline.system.process_ledger import LedgerEntry, spawn_detached
from faultline.system.waiting import wait_until

# Seconds for any event that a test waits for. A busy machine is slow and not wrong, so none is shorter than a minute.
EVENT_S = 120.0


SLEEP = "import time; time.sleep(900)"


def detached(attempt: Attempt, role: str, program: str = SLEEP) -> LedgerEntry:
    """Return a process of an attempt, in its ledger, that sleeps or does what the Python program says."""
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
    """Return the words that a process shows now; none of one that is gone, or of another user's that hides them."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def shown(pid: int, mark: str | Callable[[list[str]], bool]) -> list[str]:
    """Return the words of a process, once it shows the `mark` as one of them, or what `mark` asks for."""

    def found() -> list[str]:
        words = words_of(pid)
        return words if (mark in words if isinstance(mark, str) else mark(words)) else []

    return wait_until(found, timeout_s=EVENT_S, every_s=0.01, what=f"process {pid}: its own command line")
