"""The machine's lock: one experiment at a time on one set of machines, whoever starts it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path

from faultline.base.errors import InfrastructureError

LOCK_TRIES = 20


LOCK_PAUSE_S = 0.05


def hold_lock(path: Path, attempt: str) -> int:
    """Takes the machine's lock for this process's life and writes who holds it. Returns the descriptor.

    Raises InfrastructureError naming the holder when another experiment runs.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(LOCK_TRIES):
        # Whoever asks `lock_holder` has it for a moment, hence more than one try.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(LOCK_PAUSE_S)
    else:
        holder = lock_holder(path) or "another process"
        os.close(descriptor)
        raise InfrastructureError(f"machine: {holder} is being measured; wait for it, or stop it") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"attempt": attempt, "pid": os.getpid()}).encode(), 0)
    return descriptor


def lock_holder(path: Path) -> str | None:
    """The attempt that holds the machine's lock, or None when it is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        with contextlib.suppress(ValueError):
            return str(json.loads(os.pread(descriptor, 1000, 0)).get("attempt"))
        return "an experiment"
    finally:
        os.close(descriptor)
    return None
