"""When a gate may open: no other work of ours is going on here, and none begins before the window ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from faultline.experiment.attempt import Attempt
from faultline.system.journal import last, read_journal
from faultline.system.locks import LONGEST_WORK_S, window

# The longest wait for the end of what follows on the recording before.
CLOSE_S = 120.0
# The longest that a gate is held shut.
LONGEST_S = CLOSE_S + LONGEST_WORK_S
POLL_S = 0.1


@contextlib.contextmanager
def quiet_window(attempt: Attempt, lock: Path | None) -> Iterator[float]:
    """Waits for the end of other work, and keeps it away inside; gives the seconds waited.

    `lock`: the window's; None where nothing else works. Raises InfrastructureError when it takes too long.
    """
    waited_s = _await_close(_before(attempt))
    with window(lock) if lock else contextlib.nullcontext(0.0) as more_s:
        yield waited_s + more_s


def _before(attempt: Attempt) -> Attempt | None:
    """The attempt that had the machine before this one, where its files can be read: not those of another user."""
    start = last(read_journal(attempt.recorder_journal), kind="start") or {}
    before = Attempt(attempt.folder.parent / str(start.get("after")))
    return before if os.access(before.folder / "attempt.json", os.R_OK) else None


def _await_close(before: Attempt | None) -> float:
    """Waits until it is harvested, judged and closed; gives the seconds that it took.

    This may go on while the next one starts, and not while that one is measured. One whose run died is left, after a
    while, to whoever cleans up.
    """
    began = time.monotonic()
    while before is not None and not before.over and time.monotonic() - began < CLOSE_S:
        time.sleep(POLL_S)
    return time.monotonic() - began
