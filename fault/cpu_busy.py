"""Wait for a busy process: killing an idle Python worker has no effect.

The evidence is the kernel's CPU time of a process. It is updated when the process sleeps; for a running process
only at the kernel's ticks (1 to 10 ms apart). So a process is busy if its CPU time has just grown, or if it grew a few
ticks ago and the process is still running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from fault import procfs
from fault.identity import ProcessIdentity
from fault.procfs import stat_of

# Least growth of the CPU time between two polls, in ns; less is housekeeping.
BUSY_NS = 300_000
# A running process stays busy for this long, in ns, after its CPU time grew: longer than the longest tick.
BUSY_AGE_NS = 12_000_000
_POLL_S = 0.001
_REFRESH_NS = 200_000_000


@dataclass(frozen=True)
class Reading:
    """CPU time of a process in ns, and whether it is running or waiting for a core."""

    run_ns: int
    runnable: bool


ReadCpu = Callable[[Sequence[ProcessIdentity]], Mapping[ProcessIdentity, Reading]]


class BusyWatch:
    """Detector of busy processes from successive readings; pure, without access to clock and process table."""

    def __init__(self) -> None:
        self._last: Mapping[ProcessIdentity, Reading] = {}
        self._last_ns = 0
        self._grew_ns: dict[ProcessIdentity, int] = {}

    def update(self, now_ns: int, readings: Mapping[ProcessIdentity, Reading]) -> set[ProcessIdentity]:
        """Return the busy candidates at `now_ns` (monotonic); a new candidate is never busy."""
        busy = set()
        recent = now_ns - self._last_ns <= BUSY_AGE_NS
        for candidate, reading in readings.items():
            before = self._last.get(candidate)
            if before is not None and recent and reading.run_ns - before.run_ns >= BUSY_NS:
                self._grew_ns[candidate] = now_ns
                busy.add(candidate)
            elif reading.runnable and now_ns - self._grew_ns.get(candidate, now_ns - 2 * BUSY_AGE_NS) <= BUSY_AGE_NS:
                busy.add(candidate)
        self._last, self._last_ns = dict(readings), now_ns
        return busy


def await_busy(
    candidates: Sequence[ProcessIdentity],
    count: int,
    until_mono_ns: int,
    *,
    refresh: Callable[[], Sequence[ProcessIdentity]] | None = None,
    find_remote: Callable[[Sequence[ProcessIdentity]], Set[ProcessIdentity]] | None = None,
    read_cpu: ReadCpu | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[ProcessIdentity, ...]:
    """Poll the candidates about every millisecond, and return `count` of them once they are busy.

    At `until_mono_ns` it returns those that were busy in the last poll, perhaps none. If more than `count` are busy,
    the order of the candidates decides. `refresh` returns new candidates every 0.2 s, since workers may be forked.
    `find_remote` returns the busy candidates of other hosts (`Injector.busy`); without it they count as idle. The last
    call of `read_cpu` directly precedes the return.
    """
    read_cpu = read_cpu or read_local_cpu
    watch = BusyWatch()
    refreshed_ns = clock()
    while True:
        remote = [candidate for candidate in candidates if candidate.host]
        remote_busy = find_remote(remote) if find_remote is not None and remote else set()
        busy = watch.update(clock(), read_cpu(candidates)) | remote_busy
        found = tuple(candidate for candidate in candidates if candidate in busy)[:count]
        now_ns = clock()
        if len(found) == count or now_ns >= until_mono_ns:
            return found
        if refresh is not None and now_ns - refreshed_ns >= _REFRESH_NS:
            candidates, refreshed_ns = tuple(refresh()), now_ns
        else:
            sleep(_POLL_S)


def read_local_cpu(candidates: Sequence[ProcessIdentity]) -> dict[ProcessIdentity, Reading]:
    """Return the readings of this host's candidates; those that ended or were replaced are omitted.

    Source: /proc/<pid>/schedstat, or the ticks of /proc/<pid>/stat if the kernel lacks it.
    """
    readings = {}
    for candidate in candidates:
        reading = None if candidate.host else _read(candidate)
        if reading is not None:
            readings[candidate] = reading
    return readings


def _read(candidate: ProcessIdentity) -> Reading | None:
    try:
        stat = stat_of(candidate.pid)
    except OSError:
        return None
    state, ticks, started = stat[0], int(stat[11]) + int(stat[12]), int(stat[19])
    if state in "ZXx" or candidate.start_ticks not in (None, started):
        return None
    try:
        run_ns = int((procfs.PROC / str(candidate.pid) / "schedstat").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        run_ns = 0
    return Reading(run_ns or ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), state == "R")
