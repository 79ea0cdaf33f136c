"""CPU time and memory of this host's processes by role, from the kernel's counters.

Standard library only: the recorder samples its own host with it, and the agent samples other hosts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.procfs import all_pids, boot_time, command_of, owner_of, stat_of

# Between fork and exec a process shows its parent's command line and memory, so younger processes wait for the next
# sample.
MIN_AGE_S = 0.5
_HERTZ, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_STAT = Path("/proc/stat")
# Columns of the first line of /proc/stat: user, nice, system, irq, softirq; user includes guest time.
_BUSY, _STOLEN = (0, 1, 2, 5, 6), 7

# Pid and start time in ticks since boot.
Key = tuple[int, int]


@dataclass(frozen=True)
class RoleRule:
    """Rule for a role: both `main` and `mark` must be whole arguments of the command line."""

    role: str
    main: str
    mark: str

    def matches(self, command: Sequence[str]) -> bool:
        """Return whether a command line belongs to the role."""
        return self.main in command and self.mark in command


@dataclass(frozen=True)
class Usage:
    """Usage of one process.

    `cpu_s`: core seconds since its start at `create_time` (seconds since the epoch), including its short-lived
    children. `waited_s`: seconds its threads were ready to run without a processor, summed over threads; None if not
    requested or not counted by the kernel.
    """

    pid: int
    role: str
    create_time: float
    cpu_s: float
    rss_bytes: int
    waited_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the journal line."""
        return {name: value for name, value in vars(self).items() if name != "waited_s" or value is not None}


class ShortLivedChildren:
    """CPU time of children that ended between two samples.

    The kernel adds the time of a dead child to the process that waited for it. Children that were sampled alive are
    reported by themselves, so their time is subtracted.
    """

    def __init__(self) -> None:
        # Parent and total CPU time of each process at the last sample.
        self._last: dict[Key, tuple[Key | None, float]] = {}
        # CPU time of dead children that must not be reported: older than the first sample, or reported already.
        self._known_s: dict[Key, float] | None = None
        self._counted_s: dict[Key, float] = {}

    def update(self, stats: Mapping[Key, Sequence[str]], found: Collection[Key]) -> dict[Key, float]:
        """Return the seconds by process since the first sample; they never decrease.

        `stats`: of all processes, each parent read before its children. `found`: processes to report.
        """
        known = {key: _children_cpu_s(stat) for key, stat in stats.items()} if self._known_s is None else self._known_s
        gone = {key: self._last.pop(key) for key in self._last.keys() - stats.keys()}
        for parent, all_s in gone.values():
            # The nearest living ancestor waited for the child; without a living ancestor the time is not counted.
            while parent is not None and parent in gone:
                parent = gone[parent][0]
            if parent is not None:
                known[parent] = known.get(parent, 0.0) + all_s
        keys = {key[0]: key for key in stats}
        for key in self._last.keys() | found:
            self._last[key] = keys.get(int(stats[key][1])), _process_cpu_s(stats[key]) + _children_cpu_s(stats[key])
        for key in found:
            # A child may end after its parent was read and before it is read itself: the parent's counter then lags by
            # one sample.
            unseen_s = _children_cpu_s(stats[key]) - known.get(key, 0.0)
            self._counted_s[key] = max(self._counted_s.get(key, 0.0), unseen_s)
        self._known_s = {key: seconds for key, seconds in known.items() if key in stats}
        self._counted_s = {key: seconds for key, seconds in self._counted_s.items() if key in stats}
        return {key: self._counted_s[key] for key in found}


class RunDelays:
    """Run delay of processes: time their threads were ready while another thread had the processor.

    The kernel counts the delay per thread and drops it when the thread ends; what was sampled stays counted. A thread
    that starts and ends between two samples is not counted.
    """

    def __init__(self) -> None:
        # Nanoseconds of ended threads, and of each live thread at the last sample.
        self._ended: dict[Key, int] = {}
        self._last: dict[Key, dict[str, int]] = {}

    def update(self, found: Collection[Key]) -> dict[Key, float]:
        """Return the seconds by process since its first thread started, for `found`; they never decrease."""
        for key in found:
            before = self._last.get(key, {})
            present = _thread_delays(key[0])
            if present:
                # A smaller value means that another thread reuses the number.
                gone = sum(counted for thread, counted in before.items() if present.get(thread, -1) < counted)
                self._ended[key] = self._ended.get(key, 0) + gone
                self._last[key] = present
        self._last = {key: known for key, known in self._last.items() if key in found}
        self._ended = {key: known for key, known in self._ended.items() if key in found}
        return {key: (self._ended[key] + sum(known.values())) / 1e9 for key, known in self._last.items()}


class ProcessTable:
    """Processes by role; command lines are read once per process.

    `child_roles`: role of a process's children, by the role of the process, if the two differ. A command line without a
    role is read again while its process is younger than `reread_s`: a service that a fault keeps down shows its own
    command line only after the restart delay. `own_namespace_only`: skip processes in other PID namespaces, such as
    those of emulated hosts. `delay_roles`: roles whose run delay is read. `stats`: `/proc/<pid>/stat` of all processes
    at the last sample.
    """

    def __init__(
        self,
        rules: Sequence[RoleRule],
        child_roles: Mapping[str, str],
        *,
        reread_s: float = 0.0,
        own_namespace_only: bool = False,
        delay_roles: Collection[str] = (),
    ) -> None:
        self._rules, self._child_roles, self._reread_s, self._own_namespace_only = (
            tuple(rules),
            dict(child_roles),
            reread_s,
            own_namespace_only,
        )
        self._known: dict[Key, str | None] = {}
        self._born: dict[Key, float] = {}
        self._here: dict[Key, bool] = {}
        self._space = pid_namespace_of("self")
        self._began: dict[int, int] = {}
        self._short_lived = ShortLivedChildren()
        self._delay_roles = frozenset(delay_roles) if has_run_delay() else frozenset()
        self._delays = RunDelays()
        self.stats: dict[Key, list[str]] = {}

    def sample(self, extra_roles: Mapping[Key, str], fallback: tuple[int, str] | None = None) -> dict[Key, Usage]:
        """Return the processes that play a role.

        `extra_roles`: roles of further processes. `fallback`: (pid, role) for a process and its descendants that have
        no other role.
        """
        stats, now, boot = self._stats(), time.time(), boot_time()
        self.stats = stats
        children: dict[int, list[Key]] = {}
        for key, stat in stats.items():
            children.setdefault(int(stat[1]), []).append(key)
        own: dict[Key, str] = {}
        for key in stats:
            role = self._role(key, now - (boot + key[1] / _HERTZ)) or extra_roles.get(key)
            if role is not None:
                own[key] = role
        found = dict(own)
        for key, role in own.items():
            _assign_descendants(key, self._child_roles.get(role, role), children, found)
        if fallback is not None:
            for key in stats:
                if key[0] == fallback[0]:
                    found.setdefault(key, fallback[1])
                    _assign_descendants(key, fallback[1], children, found)
        self._known = {key: role for key, role in self._known.items() if key in stats}
        # Keep the first value: a step of the wall clock must not change a process's creation time.
        self._born = {key: self._born.get(key, boot + key[1] / _HERTZ) for key in found}
        short = self._short_lived.update(stats, found.keys())
        waited = self._delays.update({key for key, role in found.items() if role in self._delay_roles})
        return {
            key: _usage(key, role, self._born[key], stats[key], short[key], waited.get(key))
            for key, role in found.items()
        }

    def _stats(self) -> dict[Key, list[str]]:
        found = {}
        # `ShortLivedChildren.update` needs parents before children; pids wrap around, so order by start.
        for pid in sorted(all_pids(), key=lambda pid: self._began.get(pid, sys.maxsize)):
            try:
                stat = stat_of(pid)
            except OSError:
                continue
            found[pid, int(stat[19])] = stat
        self._began = dict(found.keys())
        if self._own_namespace_only:
            self._here = {key: self._here.get(key) or pid_namespace_of(key[0]) == self._space for key in found}
            found = {key: stat for key, stat in found.items() if self._here[key]}
        return found

    def _role(self, key: Key, age_s: float) -> str | None:
        if key in self._known:
            return self._known[key]
        if age_s < MIN_AGE_S:
            return None
        role = self._read_role(key[0])
        if role is not None or age_s > self._reread_s:
            self._known[key] = role
        return role

    def _read_role(self, pid: int) -> str | None:
        try:
            command = command_of(pid)
            role = next((one.role for one in self._rules if one.matches(command)), None)
            # A look-alike of another user counts as background load.
            return None if role is None or owner_of(pid) != os.getuid() else role
        except OSError:
            return None


def machine_usage() -> dict[str, Any]:
    """Return the core seconds since boot that all processes used and that the hypervisor took.

    `stolen_s` is None if the system does not count it.
    """
    counted = [int(ticks) / _HERTZ for ticks in _STAT.read_text().splitlines()[0].split()[1:]]
    return {
        "busy_s": round(sum(counted[column] for column in _BUSY), 2),
        "stolen_s": counted[_STOLEN] if len(counted) > _STOLEN else None,
    }


def _assign_descendants(parent: Key, role: str, children: Mapping[int, Sequence[Key]], found: dict[Key, str]) -> None:
    for child in children.get(parent[0], ()):
        if child not in found and child[1] >= parent[1]:
            found[child] = role
            _assign_descendants(child, role, children, found)


def _usage(key: Key, role: str, born: float, stat: Sequence[str], short_s: float, waited_s: float | None) -> Usage:
    used_s, waited_s = round(_process_cpu_s(stat) + short_s, 6), None if waited_s is None else round(waited_s, 6)
    return Usage(key[0], role, born, used_s, int(stat[21]) * _PAGE, waited_s)


def has_run_delay() -> bool:
    """Return whether the kernel counts the run delay of threads."""
    try:
        # If the kernel does not count, all three values are 0; this thread has run at least once.
        return Path("/proc/thread-self/schedstat").read_bytes().split()[2] != b"0"
    except (OSError, IndexError):
        return False


def _thread_delays(pid: int) -> dict[str, int]:
    """Return each thread's run delay in nanoseconds; empty if the process has ended."""
    found: dict[str, int] = {}
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return found
    try:
        for thread in os.listdir(folder):
            try:
                file = os.open(f"{thread}/schedstat", os.O_RDONLY, dir_fd=folder)
            except OSError:
                continue  # the thread ended
            try:
                found[thread] = int(os.read(file, 100).split()[1])
            except (OSError, IndexError):
                continue
            finally:
                os.close(file)
    except OSError:
        pass
    finally:
        os.close(folder)
    return found


def _process_cpu_s(stat: Sequence[str]) -> float:
    return (int(stat[11]) + int(stat[12])) / _HERTZ


def _children_cpu_s(stat: Sequence[str]) -> float:
    """Return the CPU time of waited-for descendants, in seconds."""
    return (int(stat[13]) + int(stat[14])) / _HERTZ


def pid_namespace_of(process: int | str) -> str | None:
    """Return the PID namespace of a process (`self`: this one), or None if it cannot be read."""
    try:
        return os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return None
