"""Facts about the machine: processor, kernel, clock source and cgroup limits."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
PROCESS_CGROUPS = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
# cgroup version 1 writes no limit as the largest number of pages.
MAX_LIMIT_BYTES = 2**60


def machine_facts() -> dict[str, object]:
    """Return `processor`, `kernel`, `clock_source` and `cgroup` of the environment; None where unknown."""
    return {
        "processor": processor(CPUINFO),
        "kernel": platform.release() or None,
        "clock_source": _read_text(CLOCK_SOURCE),
        "cgroup": cgroup_limits(PROCESS_CGROUPS, CGROUP_ROOT),
    }


def processor(file: Path) -> str | None:
    """Return the model name of the first processor from `/proc/cpuinfo`; None if unknown."""
    lines = (_read_text(file) or "").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or None


def cgroup_limits(own: Path, root: Path) -> Mapping[str, float | None] | None:
    """Return `cpus` and `memory_mb`, the tightest limits of a process's cgroup and its parents; None without cgroups.

    `own`: its `/proc/<pid>/cgroup`. `root`: mount point of the hierarchies of version 1 or 2.
    """
    lines = [line.split(":", 2) for line in (_read_text(own) or "").splitlines() if line.count(":") >= 2]
    if not lines:
        return None
    cpus: list[float] = []
    memory: list[float] = []
    for _, controllers, path in lines:
        names = controllers.split(",")
        if controllers == "":
            cpus += [
                limit
                for group in _group_and_parents(root, path)
                if (limit := _cpu_quota(_read_text(group / "cpu.max"))) is not None
            ]
            memory += _memory_limits_mb(root, path, "memory.max")
        if "cpu" in names:
            for group in (one for mount in (controllers, "cpu") for one in _group_and_parents(root / mount, path)):
                quota, period = _read_text(group / "cpu.cfs_quota_us"), _read_text(group / "cpu.cfs_period_us")
                limit = _cpu_quota(f"{quota} {period}") if quota and period and not quota.startswith("-") else None
                cpus += [] if limit is None else [limit]
        if "memory" in names:
            memory += _memory_limits_mb(root / "memory", path, "memory.limit_in_bytes")
    return {"cpus": min(cpus, default=None), "memory_mb": min(memory, default=None)}


def _group_and_parents(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group and its parents.

    In a container the path may be the host's, where no file exists.
    """
    group = mount / path.strip("/")
    yield group
    while group != mount and mount in group.parents:
        group = group.parent
        yield group


def _memory_limits_mb(mount: Path, path: str, name: str) -> list[float]:
    found = [_read_text(group / name) for group in _group_and_parents(mount, path)]
    return [int(one) / 2**20 for one in found if one and one.isdigit() and int(one) < MAX_LIMIT_BYTES]


def _cpu_quota(text: str | None) -> float | None:
    """Return cores from `<quota_us> <period_us>`; None for `max`."""
    parts = (text or "").split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not int(parts[1]):
        return None
    return int(parts[0]) / int(parts[1])


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
