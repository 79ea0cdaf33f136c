"""CPU and memory of an engine's processes during a run, sampled every PERIOD_S."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import psutil

PERIOD_S = 0.5


@dataclass
class Usage:
    """Samples of one run: wall-clock seconds, used CPU seconds by role, and resident MB of all engine processes."""

    at: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)

    def cpu_s(self, roles: Iterable[str], begin: float, end: float) -> float:
        """Return the CPU seconds that these roles used between two instants, interpolated between samples."""
        used = [sum(sample.get(role, 0.0) for role in roles) for sample in self.cpu]
        first, last = np.interp([begin, end], self.at, used)
        return float(last - first)

    def peak_mb(self, begin: float, end: float) -> float:
        """Return the greatest memory between two instants."""
        return max((one for at, one in zip(self.at, self.resident_mb, strict=True) if begin <= at <= end), default=0.0)


class UsageSampler(threading.Thread):
    """Sampler of processes by role; `find` returns them, and is asked at every sample.

    An engine's processes count with the children that they have waited for: Spark starts chmod for each file of a
    checkpoint. A role's sum never falls, although processes end. `outside`: roles that are not the engine's, whose
    memory and children do not count. The role `machine` is the busy time of all processors.
    """

    def __init__(self, find: Callable[[], Mapping[str, Iterable[psutil.Process]]], outside: Iterable[str]) -> None:
        super().__init__(name="usage", daemon=True)
        self.usage = Usage()
        self._find, self._outside = find, frozenset(outside)
        self._used: dict[str, float] = {}
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self._sample()

    def __enter__(self) -> UsageSampler:
        self._sample()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()
        self._sample()  # CPU since the last sample counts

    def _sample(self) -> None:
        resident = 0.0
        for role, processes in self._find().items():
            used = 0.0
            for process in processes:
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    used += times.user + times.system
                    if role not in self._outside:
                        used += times.children_user + times.children_system
                        resident += process.memory_info().rss / 1e6
            self._used[role] = max(used, self._used.get(role, 0.0))
        sums = dict(self._used)
        whole = psutil.cpu_times()
        sums["machine"] = sum(whole[:3]) + sum(getattr(whole, name, 0.0) for name in ("irq", "softirq", "steal"))
        self.usage.at.append(time.time())
        self.usage.cpu.append(sums)
        self.usage.resident_mb.append(resident)
