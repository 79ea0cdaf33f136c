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
from faultline.base.text import one_line
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
    """Makes, reads and removes small files there. Raises ConfigError for a storage that is no use, InfrastructureError
    for one that is away."""
    where = endpoints.storage
    try:
        if where.startswith(SCHEME):
            clock = _of_hdfs(HdfsFolder(where, endpoints.storage_web))
        else:
            require_folder(Path(where), connection)
            clock = _of_folder(Path(where))
    except FaultlineError as error:
        raise type(error)(str(error).replace("storage:", f"Connection {connection}:", 1)) from None
    except OSError as error:
        why = error.strerror or one_line(error)
        raise ConfigError(f"Connection {connection}: extra: path: {where}: {why}; mend it there") from None
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


def _clock(make: Callable[[], object], changed_ms: Callable[[], float], coarse_ms: float) -> StorageClock:
    """Of what was made the fastest. `changed_ms`: when that was, by the storage's clock."""
    found = []
    for _ in range(LOOKS):
        before = time.time() * 1000
        make()
        after = time.time() * 1000
        # A coarse time is the last tick before, so the middle lies half a tick later.
        found.append((after - before, changed_ms() + coarse_ms / 2 - (before + after) / 2))
    took, ahead = min(found)
    return StorageClock(ahead, took / 2 + coarse_ms / 2)


def _of_folder(folder: Path) -> StorageClock:
    file = folder / f"{PROBE}{secrets.token_hex(6)}"
    try:
        return _clock(lambda: file.write_bytes(b"?"), lambda: file.stat().st_mtime_ns / 1e6, TICK_MS)
    finally:
        file.unlink(missing_ok=True)


def _of_hdfs(folder: HdfsFolder) -> StorageClock:
    """Of folders, which the name node makes by itself: a file would also wait for where it lies."""
    if folder.changed_ms() is None:
        raise ConfigError(f"storage: {folder.url}: is not there; make it (hdfs dfs -mkdir)")
    place = folder / f"{PROBE}{secrets.token_hex(6)}"
    made: list[HdfsFolder] = []

    def make() -> None:
        made.append(place / str(len(made)))
        made[-1].make()

    try:
        place.make()
        # What is read comes from the data nodes, which may be out of reach where the name node is not.
        (place / "file").write(b"?")
        if (place / "file").read() != b"?":
            raise ConfigError(f"storage: {folder.url}: what was written is not read again; look at its data nodes")
        return _clock(make, lambda: float(made[-1].changed_ms() or 0), UNIT_MS)
    finally:
        place.remove()
