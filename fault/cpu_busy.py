"""Waiting for a process that works: a Python worker killed while it idles changes nothing.

The evidence is the kernel's count of the CPU time that a process has used. It grows at once when a
process goes to sleep, but for one that keeps computing only at the kernel's ticks (1 to 10 ms apart).
So a process is busy when its count has just grown, or grew a few ticks ago and it is running still.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from fault import procfs
from fault.identity import ProcessIdentity
from fault.procfs import stat_of

# Less than this between two looks is housekeeping, not work on a batch.
BUSY_NS = 300_000
# Longer than the longest tick; what was seen before that says nothing about now.
BUSY_AGE_NS = 12_000_000
_POLL_S = 0.001
_REFRESH_NS = 200_000_000


@dataclass(frozen=True)
class Reading:
    """CPU time used so far by a process, in ns, and whether it runs or waits for a core right now."""

    run_ns: int
    runnable: bool


ReadCpu = Callable[[Sequence[ProcessIdentity]], Mapping[ProcessIdentity, Reading]]


class BusyWatch:
    """Tells from successive readings who is busy; it reads neither clock nor processes itself."""

    def __init__(self) -> None:
        self._last: Mapping[ProcessIdentity, Reading] = {}
        self._last_ns = 0
        self._grew_ns: dict[ProcessIdentity, int] = {}

    def update(self, now_ns: int, readings: Mapping[ProcessIdentity, Reading]) -> set[ProcessIdentity]:
        """Who is busy at `now_ns` (monotonic); one that is seen for the first time never is."""
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
    """Looks at the candidates about every millisecond, and gives `count` of them as soon as so many are busy.

    At `until_mono_ns` it gives those (perhaps none) that were busy in the last look. Among more than
    `count`, the order of the candidates decides. `refresh` gives the candidates anew every 0.2 s,
    since new workers may have been forked. `find_remote` says which of the candidates on other hosts are
    busy (`Injector.busy`); without it none of them ever is. The last
    call of `look` lies right before the return.
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
    """The readings of this host's processes; one that is gone, or not the same any more, is left out.

    Source: /proc/<pid>/schedstat, or the ticks of /proc/<pid>/stat where the kernel does not keep it.
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
