"""The machine's lock: one experiment at a time on one set of machines, whoever starts it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from faultline.base.errors import InfrastructureError
from faultline.base.window_lock import taken

# Whoever asks `lock_holder` has the lock for a moment, so one try would not do.
LEAST_WAIT_S = 1.0
LOCK_PAUSE_S = 0.05


def hold_lock(path: Path, attempt: str, *, wait_s: float = LEAST_WAIT_S, over: Callable[[], bool] = bool) -> str | None:
    """Takes the machine's lock for this process's life and writes who holds it. Returns the attempt that had it before.

    Waits `wait_s` seconds for its turn, or until `over` says that nobody wants it any more. Raises InfrastructureError
    naming the holder when another experiment runs for longer.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + wait_s
    while not taken(descriptor, fcntl.LOCK_EX):
        if over() or time.monotonic() >= deadline:
            holder = lock_holder(path) or "another process"
            os.close(descriptor)
            raise InfrastructureError(f"machine: {holder} is being measured; wait for it, or stop it")
        time.sleep(LOCK_PAUSE_S)
    before = _named(descriptor)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"attempt": attempt, "pid": os.getpid()}).encode(), 0)
    return before


def lock_holder(path: Path) -> str | None:
    """The attempt that holds the machine's lock, or None when it is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if taken(descriptor, fcntl.LOCK_SH) else _named(descriptor) or "an experiment"
    finally:
        os.close(descriptor)


def _named(descriptor: int) -> str | None:
    """The attempt that the lock's file names; it stands there also when its holder is gone."""
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(os.pread(descriptor, 1000, 0)).get("attempt"))
    return None
