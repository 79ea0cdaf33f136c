"""Whether a target's storage can hold checkpoints: it is there, can be written, and its clock is this machine's.

When a batch was committed is told by the age of a file, which is by the clock of whoever serves it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from faultline.engines.spark.hdfs import SCHEME, HdfsFolder
from faultline.installation.targets.clock import Clock, clock_of
from faultline.installation.targets.kafka import PROBE
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.text import one_line

# A server's clock that is off by more would be mistaken for a slower engine.
MOST_OFF_MS = 5.0
# How coarse the times of files are: the kernel's tick, and HDFS's unit.
TICK_MS, UNIT_MS = 4.0, 1.0
LOOKS = 5


def looked_at(endpoints: Endpoints, connection: str) -> str:
    """Makes, reads and removes small files there. Raises ConfigError for a storage that is no use, InfrastructureError
    for one that is away."""
    where = endpoints.storage
    in_hdfs = where.startswith(SCHEME)
    if not in_hdfs:
        require_folder(Path(where), connection)
    try:
        clock = _of_hdfs(HdfsFolder(where, endpoints.storage_web)) if in_hdfs else _of_folder(Path(where))
    except FaultlineError as error:
        raise type(error)(f"Connection {connection}: {str(error).removeprefix('storage: ')}") from None
    except OSError as error:
        why = error.strerror or one_line(error)
        raise ConfigError(f"Connection {connection}: extra: path: {where}: {why}; mend it there") from None
    if clock.is_off(MOST_OFF_MS):
        raise ConfigError(
            f"Connection {connection}: extra: path: the clock of {where} is {clock.ahead_ms:+.0f} ms off this "
            f"machine's, and {MOST_OFF_MS:g} at most are taken; have both keep the same time (NTP)"
        )
    return f"{where} can be written, {clock}"


def require_folder(folder: Path, connection: str) -> None:
    """Raises ConfigError for what is no folder that can be written here."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"Connection {connection}: extra: path: {folder} is no folder here that can be written; make or mount it"
        )


def _clock(make: Callable[[], object], changed_ms: Callable[[], float], coarse_ms: float) -> Clock:
    """Of what `make` makes. `changed_ms`: when that was, by the storage's clock."""

    def look() -> tuple[float, float, float]:
        before = time.time() * 1000
        make()
        return before, time.time() * 1000, changed_ms()

    return clock_of([look() for _ in range(LOOKS)], coarse_ms)


def _of_folder(folder: Path) -> Clock:
    file = folder / f"{PROBE}{secrets.token_hex(6)}"
    try:
        return _clock(lambda: file.write_bytes(b"?"), lambda: file.stat().st_mtime_ns / 1e6, TICK_MS)
    finally:
        file.unlink(missing_ok=True)


def _of_hdfs(folder: HdfsFolder) -> Clock:
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
