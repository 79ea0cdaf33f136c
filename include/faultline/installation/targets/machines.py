"""Storage and hosts of a target: whether they can be used, and how far their clocks are off.

When a batch was committed is told by the age of a file, which is by the clock of whoever serves it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.errors import AuthenticationRefused, FaultError, HostKeyRefused, HostUnreachable, RemoteError
from faultline.engines.spark.hdfs import SCHEME, HdfsFolder
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.ssh_hosts import remote_hosts
from faultline.system.text import one_line

# Names of what is made to look begin so.
PREFIX = "faultline-"
PROBE = f"{PREFIX}probe-"


@dataclass(frozen=True)
class ClockOffsetBound:
    """Against this machine's, in ms: it is so far ahead, give or take."""

    ahead_ms: float
    uncertain_ms: float

    def __str__(self) -> str:
        return f"its clock is {self.ahead_ms:+.1f} ms off this one's, give or take {self.uncertain_ms:.1f} ms"

    def is_off(self, by_ms: float) -> bool:
        """Whether it is off by more, for certain."""
        return abs(self.ahead_ms) - self.uncertain_ms > by_ms


def clock_bound(samples: Iterable[tuple[float, float, float]], coarse_ms: float) -> ClockOffsetBound:
    """From the look that took the shortest time. `samples`: this machine's time before and after, and the time that was
    given meanwhile, in ms; `coarse_ms`: how coarse that one is, being the last tick before."""
    before, after, given = min(samples, key=lambda one: one[1] - one[0])
    return ClockOffsetBound(given + coarse_ms / 2 - (before + after) / 2, (after - before) / 2 + coarse_ms / 2)


def combined_clock_bound(clocks: Iterable[ClockOffsetBound]) -> ClockOffsetBound:
    """Of servers each of which gives the time for a part: whatever any of their clocks may be is within it."""
    known = list(clocks)
    least = min(one.ahead_ms - one.uncertain_ms for one in known)
    most = max(one.ahead_ms + one.uncertain_ms for one in known)
    return ClockOffsetBound((least + most) / 2, (most - least) / 2)


# ---- Hosts, over SSH ----


def check_host(host: Mapping[str, Any], connection: str) -> str:
    """Has the agent come there, and asks it for the time. `host`: as the endpoints of a target have it.

    Raises ConfigError for a login or a host key that is refused, InfrastructureError for a host that is away, or where
    the agent does not start.
    """
    from fault.injector import clock_offset
    from fault.ssh_connection import SshChannel  # the SSH library takes its time

    (there,) = remote_hosts({connection: host}).values()
    try:
        with closing(SshChannel(there)) as asked:
            found = clock_offset(asked)
    except FaultError as error:
        raise _refused(error, host, connection) from None
    clock = ClockOffsetBound(found.offset_s * 1000, found.round_trip_s * 1000 / 2)
    return f"{there.user}@{there.host}:{there.port} lets the agent in, {clock}"


def _refused(error: FaultError, host: Mapping[str, Any], connection: str) -> FaultlineError:
    detail = one_line(error.stderr if isinstance(error, RemoteError) else error)
    where = f"{host['host']}:{host['port']}"
    kind: type[FaultlineError] = InfrastructureError
    match error:
        case HostKeyRefused():
            kind, why = ConfigError, f"extra: known_hosts: the key that {where} shows is refused ({detail})"
            remedy = "name a file that holds its own"
        case AuthenticationRefused():
            kind, why = ConfigError, f"{where} refuses {host['user']} with this key ({detail})"
            remedy = "let it in there (authorized_keys), or mend login and key"
        case HostUnreachable():
            why, remedy = f"{where} cannot be reached over SSH ({detail})", "start its SSH server, or mend the address"
        case _:
            why, remedy = f"the agent does not start on {where} ({detail})", "give it Python 3.11 (python in the extra)"
    return kind(f"Connection {connection}: {why}; {remedy}")


# ---- Storage ----


# A server's clock that is off by more would be mistaken for a slower engine.
MAX_OFFSET_MS = 5.0
# How coarse the times of files are: the kernel's tick, and HDFS's unit.
TICK_MS, UNIT_MS = 4.0, 1.0
CLOCK_SAMPLES = 5


def check_storage(endpoints: Endpoints, connection: str) -> str:
    """Makes, reads and removes small files there. Raises ConfigError for a storage that is no use, InfrastructureError
    for one that is away."""
    where = endpoints.storage
    in_hdfs = where.startswith(SCHEME)
    if not in_hdfs:
        require_folder(Path(where), connection)
    try:
        clock = _hdfs_clock(HdfsFolder(where, endpoints.storage_web)) if in_hdfs else _folder_clock(Path(where))
    except FaultlineError as error:
        raise type(error)(f"Connection {connection}: {str(error).removeprefix('storage: ')}") from None
    except OSError as error:
        why = error.strerror or one_line(error)
        raise ConfigError(f"Connection {connection}: extra: path: {where}: {why}; mend it there") from None
    if clock.is_off(MAX_OFFSET_MS):
        raise ConfigError(
            f"Connection {connection}: extra: path: the clock of {where} is {clock.ahead_ms:+.0f} ms off this "
            f"machine's, and {MAX_OFFSET_MS:g} at most are taken; have both keep the same time (NTP)"
        )
    return f"{where} can be written, {clock}"


def require_folder(folder: Path, connection: str) -> None:
    """Raises ConfigError for what is no folder that can be written here."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"Connection {connection}: extra: path: {folder} is no folder here that can be written; make or mount it"
        )


def _clock(make: Callable[[], object], changed_ms: Callable[[], float], coarse_ms: float) -> ClockOffsetBound:
    """Of what `make` makes. `changed_ms`: when that was, by the storage's clock."""

    def sample() -> tuple[float, float, float]:
        before = time.time() * 1000
        make()
        return before, time.time() * 1000, changed_ms()

    return clock_bound([sample() for _ in range(CLOCK_SAMPLES)], coarse_ms)


def _folder_clock(folder: Path) -> ClockOffsetBound:
    file = folder / f"{PROBE}{secrets.token_hex(6)}"
    try:
        return _clock(lambda: file.write_bytes(b"?"), lambda: file.stat().st_mtime_ns / 1e6, TICK_MS)
    finally:
        file.unlink(missing_ok=True)


def _hdfs_clock(folder: HdfsFolder) -> ClockOffsetBound:
    """Of folders, which the name node makes by itself: a file would also wait for where it lies."""
    if folder.modified_ms() is None:
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
        return _clock(make, lambda: float(made[-1].modified_ms() or 0), UNIT_MS)
    finally:
        place.remove()
