"""Preflight checks of the storage and hosts of a target (an external cluster), and bounds of their clock offsets.

Commit times are file times, which depend on the clock of the storage server.
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

# Prefix of temporary files and topics.
PREFIX = "faultline-"
PROBE = f"{PREFIX}probe-"


@dataclass(frozen=True)
class ClockOffsetBound:
    """Offset to this machine's clock, in ms: `ahead_ms` plus or minus `uncertain_ms`."""

    ahead_ms: float
    uncertain_ms: float

    def __str__(self) -> str:
        return f"clock offset {self.ahead_ms:+.1f} ± {self.uncertain_ms:.1f} ms"

    def is_off(self, by_ms: float) -> bool:
        """Return whether the offset certainly exceeds `by_ms`."""
        return abs(self.ahead_ms) - self.uncertain_ms > by_ms


def clock_bound(samples: Iterable[tuple[float, float, float]], coarse_ms: float) -> ClockOffsetBound:
    """Return the bound of the fastest sample.

    `samples`: this machine's time before and after, and the remote time in between, in ms; `coarse_ms`: the resolution
    of the remote time, which is rounded down.
    """
    before, after, remote = min(samples, key=lambda sample: sample[1] - sample[0])
    return ClockOffsetBound(remote + coarse_ms / 2 - (before + after) / 2, (after - before) / 2 + coarse_ms / 2)


def combined_clock_bound(clocks: Iterable[ClockOffsetBound]) -> ClockOffsetBound:
    """Return a bound that includes the clocks of several servers."""
    bounds = list(clocks)
    lowest = min(bound.ahead_ms - bound.uncertain_ms for bound in bounds)
    highest = max(bound.ahead_ms + bound.uncertain_ms for bound in bounds)
    return ClockOffsetBound((lowest + highest) / 2, (highest - lowest) / 2)


# ---- Hosts, over SSH ----


def check_host(host: Mapping[str, Any], connection: str) -> str:
    """Start Faultline's agent on a host and measure the host's clock; `host`: as in a target's endpoints.

    Raises ConfigError for a refused login or host key, InfrastructureError for an unreachable host or a failed agent.
    """
    from fault.injector import clock_offset
    from fault.ssh_connection import SshChannel  # slow to import

    (remote,) = remote_hosts({connection: host}).values()
    try:
        with closing(SshChannel(remote)) as channel:
            offset = clock_offset(channel)
    except FaultError as error:
        raise _refused(error, host, connection) from None
    clock = ClockOffsetBound(offset.offset_s * 1000, offset.round_trip_s * 1000 / 2)
    return f"{remote.user}@{remote.host}:{remote.port} accepts the agent, {clock}"


def _refused(error: FaultError, host: Mapping[str, Any], connection: str) -> FaultlineError:
    detail = one_line(error.stderr if isinstance(error, RemoteError) else error)
    where = f"{host['host']}:{host['port']}"
    kind: type[FaultlineError] = InfrastructureError
    match error:
        case HostKeyRefused():
            kind, why = ConfigError, f"extra: known_hosts: host key of {where} refused ({detail})"
            remedy = "set a file with the host's key"
        case AuthenticationRefused():
            kind, why = ConfigError, f"{where} refuses {host['user']} with this key ({detail})"
            remedy = "add the key to authorized_keys, or correct login and key"
        case HostUnreachable():
            why, remedy = f"{where} is unreachable over SSH ({detail})", "start its SSH server, or correct the address"
        case _:
            why, remedy = f"agent start failed on {where} ({detail})", "set python in the extra to Python 3.11"
    return kind(f"Connection {connection}: {why}; fix: {remedy}")


# ---- Storage ----


# A larger clock offset would look like a slower engine.
MAX_OFFSET_MS = 5.0
# Resolution of file times: the kernel's tick, and HDFS's unit.
TICK_MS, UNIT_MS = 4.0, 1.0
CLOCK_SAMPLES = 5


def check_storage(endpoints: Endpoints, connection: str) -> str:
    """Check the storage by creating, reading and removing small files; return a description.

    Raises ConfigError for unsuitable storage, InfrastructureError if it is unreachable.
    """
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
        raise ConfigError(f"Connection {connection}: extra: path: {where}: {why}") from None
    if clock.is_off(MAX_OFFSET_MS):
        raise ConfigError(
            f"Connection {connection}: extra: path: clock offset of {where}: got {clock.ahead_ms:+.0f} ms; expected "
            f"at most {MAX_OFFSET_MS:g}; fix: synchronize both clocks (NTP)"
        )
    return f"{where} is writable, {clock}"


def require_folder(folder: Path, connection: str) -> None:
    """Raise ConfigError unless the folder exists and is writable."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"Connection {connection}: extra: path: got {folder}; expected a writable folder; fix: make or mount it"
        )


def _clock(make: Callable[[], object], changed_ms: Callable[[], float], coarse_ms: float) -> ClockOffsetBound:
    """Return the clock bound of files created by `make`; `changed_ms`: their time by the storage's clock."""

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
    """Return the clock bound from new folders, which the name node creates without a data node."""
    if folder.modified_ms() is None:
        raise ConfigError(f"storage: {folder.url}: missing; fix: hdfs dfs -mkdir")
    probe = folder / f"{PROBE}{secrets.token_hex(6)}"
    samples: list[HdfsFolder] = []

    def make() -> None:
        samples.append(probe / str(len(samples)))
        samples[-1].make()

    try:
        probe.make()
        # Read a file back: data nodes may be unreachable although the name node answers.
        (probe / "file").write(b"?")
        if (probe / "file").read() != b"?":
            raise ConfigError(f"storage: {folder.url}: read-back failed; fix: check its data nodes")
        return _clock(make, lambda: float(samples[-1].modified_ms() or 0), UNIT_MS)
    finally:
        probe.remove()
