"""Whether a target's storage can hold checkpoints: it is there, can be written, and its clock is this machine's.

When a batch was committed is told by the age of a file, which is by the clock of whoever serves it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faultline.base.endpoints import Endpoints
from faultline.base.errors import ConfigError, FaultlineError
from faultline.engines.spark.hdfs import SCHEME, HdfsFolder

PROBE = "faultline-probe-"
# A server's clock that is off by more would be mistaken for a slower engine.
MOST_OFF_MS = 5.0
# How coarse the times of files are: the kernel's tick, and HDFS's unit.
TICK_MS, UNIT_MS = 4.0, 1.0
LOOKS = 5


@dataclass(frozen=True)
class StorageClock:
    """Against this machine's, in ms: the storage is so far ahead, give or take."""

    ahead_ms: float
    uncertain_ms: float

    def __str__(self) -> str:
        return f"{self.ahead_ms:+.1f} ms off this one's, give or take {self.uncertain_ms:.1f} ms"

    @property
    def is_off(self) -> bool:
        """For certain."""
        return abs(self.ahead_ms) - self.uncertain_ms > MOST_OFF_MS


def looked_at(endpoints: Endpoints, connection: str) -> str:
    """Makes and removes small files there. Raises ConfigError for a storage that is no use, InfrastructureError for one
    that is away."""
    where = endpoints.storage
    try:
        if where.startswith(SCHEME):
            clock = _of_hdfs(HdfsFolder(where, endpoints.storage_web))
        else:
            require_folder(Path(where), connection)
            clock = _of_folder(Path(where))
    except FaultlineError as error:
        raise type(error)(str(error).replace("storage:", f"Connection {connection}:", 1)) from None
    if clock.is_off:
        raise ConfigError(
            f"Connection {connection}: extra: path: the clock of {where} is {clock.ahead_ms:+.0f} ms off this "
            f"machine's, and {MOST_OFF_MS:g} at most are taken; have both keep the same time (NTP)"
        )
    return f"{where} can be written, its clock is {clock}"


def require_folder(folder: Path, connection: str) -> None:
    """Raises ConfigError for what is no folder that can be written here."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"Connection {connection}: extra: path: {folder} is no folder here that can be written; make or mount it"
        )


def _clock(make: Callable[[str], object], changed_ms: Callable[[str], float], coarse_ms: float) -> StorageClock:
    """From what was made the fastest. `make` makes something of a name; `changed_ms` tells when, and removes it."""
    found = []
    for _ in range(LOOKS):
        name = f"{PROBE}{secrets.token_hex(6)}"
        before = time.time() * 1000
        make(name)
        after = time.time() * 1000
        # A coarse time is the last tick before, so the middle lies half a tick later.
        found.append((after - before, changed_ms(name) + coarse_ms / 2 - (before + after) / 2))
    took, ahead = min(found)
    return StorageClock(ahead, took / 2 + coarse_ms / 2)


def _of_folder(folder: Path) -> StorageClock:
    def changed_ms(name: str) -> float:
        file = folder / name
        try:
            return file.stat().st_mtime_ns / 1e6
        finally:
            file.unlink()

    return _clock(lambda name: (folder / name).write_bytes(b"?"), changed_ms, TICK_MS)


def _of_hdfs(folder: HdfsFolder) -> StorageClock:
    """From folders, which the name node makes by itself: a file would also wait for where it lies."""

    def changed_ms(name: str) -> float:
        try:
            return float((folder / name).changed_ms())
        finally:
            (folder / name).remove()

    return _clock(lambda name: (folder / name).make(), changed_ms, UNIT_MS)
