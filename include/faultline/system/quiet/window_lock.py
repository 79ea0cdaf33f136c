"""The window's lock: while a window is measured, nothing of ours works beside it, and none opens beside such work.

The conductor holds it alone from before the gate to the end of its schedule. Whatever takes seconds of a core and is no
part of an experiment, such as the tables over all results, shares it with its like. The system frees it when its
holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from faultline.system.errors import InfrastructureError

POLL_S = 0.1
# Tables over a great many results take minutes.
LONGEST_S = 900.0


@contextlib.contextmanager
def window(path: Path, *, limit_s: float = LONGEST_S) -> Iterator[float]:
    """Holds the lock alone; gives the seconds that it took to get it.

    Raises InfrastructureError when others work for longer than `limit_s`.
    """
    with _held(path, fcntl.LOCK_EX, limit_s) as waited_s:
        if waited_s is None:
            raise InfrastructureError(
                f"window: aggregate or another job works here for {limit_s:g} s already; measure again when it is done"
            )
        yield waited_s


@contextlib.contextmanager
def beside_windows(path: Path, *, limit_s: float = LONGEST_S) -> Iterator[float | None]:
    """Waits while a window is measured, and keeps the next one shut for as long as the caller works.

    Gives the seconds waited, or None after `limit_s`: then the work is done all the same.
    """
    with _held(path, fcntl.LOCK_SH, limit_s) as waited_s:
        yield waited_s


def is_measured(path: Path) -> bool:
    """Whether a window is measured now; none is where there is no place for the lock yet."""
    if not path.parent.exists():
        return False
    with _held(path, fcntl.LOCK_SH, 0.0) as waited_s:
        return waited_s is None


@contextlib.contextmanager
def _held(path: Path, how: int, limit_s: float) -> Iterator[float | None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waited_s, began = 0.0, time.monotonic()
        while not (got := taken(descriptor, how)) and waited_s < limit_s:
            time.sleep(POLL_S)
            waited_s = time.monotonic() - began
        yield waited_s if got else None
    finally:
        os.close(descriptor)


def taken(descriptor: int, how: int) -> bool:
    """Takes the lock of an open file, as LOCK_EX or LOCK_SH, if nobody stands in the way; whether it did."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
