"""Priority of background processes (Airflow, its tasks, the persistent Spark session), lowered during a measurement.

These processes have the variable BACKGROUND_MARK in their environment, and their own sessions. During a measured window
the recorder lowers their priority in two reversible ways:

- Idle class: `SCHED_IDLE` for each thread. Such a thread runs only if no ordinary thread of the same control group
wants the processor. Root can always revert it; other users need an RLIMIT_NICE that allows niceness 0.

- Autogroup: if `sched_autogroup_enabled` is set and no control group overrides it, Linux weighs whole sessions against
each other. The idle class then has no effect across sessions, so the session gets niceness 19, a 68th of the usual
weight. Any user can revert it.

All functions read the current state from the kernel, never the result of an earlier call, so `restore` also reverts
changes by a recorder that was killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault.process_sampler import MIN_AGE_S, Key
from fault.procfs import all_pids, owner_of, stat_of
from faultline.system.child_environment import is_allowed_in_thread
from faultline.system.locks import is_measured
from faultline.system.process_tags import BACKGROUND_MARK

LOWEST_NICENESS = 19
# The kernel limits unprivileged users to one autogroup change per 0.1 s.
GROUP_PAUSE_S = 0.12
# Upper bound on autogroup changes per call, so that the recorder's samples stay on time.
GROUPS_PER_CALL = 3
_PROC = Path("/proc")
_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_CGROUPS = Path("/sys/fs/cgroup")
# Fixed inode number of the initial cgroup namespace.
_FIRST_NAMESPACE = "cgroup:[4026531835]"
_HERTZ = os.sysconf("SC_CLK_TCK")

Stats = Mapping[Key, Sequence[str]]


@dataclass(frozen=True)
class BackgroundMethods:
    """Methods that lower a process on this machine and that this user can revert."""

    idle: bool
    groups: bool

    @property
    def text(self) -> str:
        """Effect of a measured window on background processes, for `doctor`."""
        if not (self.idle or self.groups):
            return (
                "background processes: priority unchanged during a window (idle class not revertible by this user, "
                "no autogroups); their CPU counts as background load; fix: RLIMIT_NICE 20 (`ulimit -e 20`) or "
                "CAP_SYS_NICE"
            )
        methods = [*(["idle class"] if self.idle else []), *(["autogroup niceness 19"] if self.groups else [])]
        return f"background processes: lowered during a window ({' and '.join(methods)})"


def background_methods() -> BackgroundMethods:
    """Return the methods that this process can use; they are tested on a short-lived thread."""
    return BackgroundMethods(idle=_is_idle_taken_back(), groups=_are_sessions_weighed())


def _is_idle_taken_back() -> bool:
    def set_and_reset() -> None:
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
            _set_policy(threading.get_native_id(), policy)

    return is_allowed_in_thread(set_and_reset)


def _are_sessions_weighed() -> bool:
    """Return whether autogroups apply to this process, which is so only in the root control group."""
    try:
        if _ENABLED.read_text().strip() != "1" or not (_PROC / "self" / "autogroup").exists():
            return False
        lines = [line.split(":", 2) for line in (_PROC / "self" / "cgroup").read_text().splitlines()]
        first = os.readlink(_PROC / "self" / "ns" / "cgroup") == _FIRST_NAMESPACE
    except OSError:
        return False
    for _, controllers, path in lines:
        if "cpu" in controllers.split(",") and (path != "/" or not first):
            return False
        if controllers == "" and _has_weight(_CGROUPS, path):
            return False
    return True


def _has_weight(root: Path, path: str) -> bool:
    """Return whether a version 2 control group, or one above it, has its own weight."""
    group = root / path.strip("/")
    while not (group / "cpu.weight").exists():
        if group == root or root not in group.parents:
            return False
        group = group.parent
    return True


def background_sessions(background: Collection[Key], others: Collection[Key], stats: Stats) -> dict[int, int]:
    """Return the sessions with background processes and no other process, each with one pid.

    A process that is too young to be classified is ignored. `stats`: those of all processes; field 6 of it is
    the session (see /proc/PID/stat).
    """
    mixed = {_session_of(stats[key]) for key in others}
    return {_session_of(stats[key]): key[0] for key in background if _session_of(stats[key]) not in mixed}


class Background:
    """Background processes of one installation; each process is classified once."""

    def __init__(self, instance: str, methods: BackgroundMethods) -> None:
        self._instance, self._methods = instance, methods
        self._known: dict[Key, bool] = {}
        self._groups: dict[Key, str] = {}

    def find(self, stats: Stats) -> set[Key]:
        """Return the background processes among `stats`."""
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _HERTZ
        for key in stats.keys() - self._known.keys():
            if now_ticks - key[1] >= MIN_AGE_S * _HERTZ:
                self._known[key] = is_background(key[0], self._instance)
        self._known = {key: known for key, known in self._known.items() if key in stats}
        return {key for key, known in self._known.items() if known}

    def lower(self, stats: Stats, measured: Collection[Key] = ()) -> set[Key]:
        """Lower the background processes and return those that are lowered now; skip those that ended.

        A process in another control group than the measured ones is left unchanged, because between groups only their
        weights count.
        """
        self._groups = {key: group for key, group in self._groups.items() if key in stats}
        # Drop the empty group of processes that have ended.
        groups = {self._group(key) for key in measured} - {""}
        found = {key for key in self.find(stats) if groups <= {self._group(key)}}
        # A zombie shows no environment and uses no CPU.
        others = {key for key in self._known.keys() - found if stats[key][0] not in "ZXx"}
        sessions = background_sessions(found, others, stats) if self._methods.groups else {}
        _set_niceness(sessions.values(), LOWEST_NICENESS, at_most=GROUPS_PER_CALL)
        grouped = {session for session, pid in sessions.items() if niceness_of(pid) == LOWEST_NICENESS}
        lowered = {key for key in found if _session_of(stats[key]) in grouped}
        if self._methods.idle:
            idle = {key for key in found if _set_thread_policies(key[0], os.SCHED_IDLE)}
            # With autogroups, the class alone has no effect across sessions.
            lowered = idle & lowered if self._methods.groups else idle
        return lowered

    def restore(self, stats: Stats | None = None) -> list[int]:
        """Restore all lowered processes, regardless of who lowered them; return their pids."""
        stats = all_stats() if stats is None else stats
        found = self.find(stats)
        restored = {key[0] for key in found if os.SCHED_IDLE in policies_of(key[0])}
        for pid in restored:
            _set_thread_policies(pid, os.SCHED_OTHER)
        sessions = {_session_of(stats[key]): key[0] for key in found if niceness_of(key[0]) == LOWEST_NICENESS}
        _set_niceness(sessions.values(), 0)
        return sorted({*restored, *sessions.values()})

    def _group(self, key: Key) -> str:
        if key not in self._groups:
            self._groups[key] = control_group(key[0])
        return self._groups[key]


def restore(instance: str | None, window_lock: Path) -> list[int]:
    """Restore processes that a recorder left lowered when it ended, unless a window is measured; return their pids."""
    if instance is None or is_measured(window_lock):
        return []
    return Background(instance, BackgroundMethods(idle=False, groups=False)).restore()


def leave_idle_class() -> None:
    """Move this process out of an inherited idle class; do nothing if that is not allowed."""
    with contextlib.suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_IDLE:
            _set_policy(0, os.SCHED_OTHER)


def is_background(pid: int, instance: str) -> bool:
    """Return whether a process belongs to this user and carries the installation's mark."""
    expected = f"{BACKGROUND_MARK}={instance}".encode()
    with contextlib.suppress(OSError):
        return owner_of(pid) == os.getuid() and expected in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def policies_of(pid: int) -> set[int]:
    """Return the scheduling policies of a process's threads; empty if it ended."""
    return {policy for thread in _threads(pid) if (policy := _query(os.sched_getscheduler, thread)) is not None}


def niceness_of(pid: int) -> int | None:
    """Return the niceness of the session's autogroup; None without autogroups."""
    try:
        return int((_PROC / str(pid) / "autogroup").read_text().rpartition(" ")[2])
    except (OSError, ValueError):
        return None


def all_stats() -> dict[Key, list[str]]:
    """Return the kernel's statistics of every process (`fault.procfs.stat_of`)."""
    found = {}
    for pid in all_pids():
        with contextlib.suppress(OSError):
            stat = stat_of(pid)
            found[pid, int(stat[19])] = stat
    return found


def control_group(pid: int) -> str:
    """Return the control group that determines a process's CPU share; empty if it ended."""
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in (_PROC / str(pid) / "cgroup").read_text().splitlines()]
        paths = {name: path for _, names, path in lines for name in names.split(",")}
        # Version 1 names the controller in a line; version 2 does not.
        return paths.get("cpu", paths.get("", ""))
    return ""


def _set_thread_policies(pid: int, policy: int) -> bool:
    """Set the policy of each thread; return whether all have it now. New threads inherit it."""
    threads = _threads(pid)
    for thread in threads:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.sched_getscheduler(thread) != policy:
                _set_policy(thread, policy)
    return bool(threads) and policies_of(pid) <= {policy}


def _set_policy(thread: int, policy: int) -> None:
    os.sched_setscheduler(thread, policy, os.sched_param(0))


def _set_niceness(pids: Iterable[int], niceness: int, *, at_most: int | None = None) -> None:
    """Set the autogroup niceness of these processes' sessions, with the pauses that unprivileged users need."""
    changed = 0
    for pid in pids:
        if niceness_of(pid) in (niceness, None):
            continue
        for again in range(5):
            if again:
                time.sleep(GROUP_PAUSE_S)
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                try:
                    (_PROC / str(pid) / "autogroup").write_text(str(niceness))
                except BlockingIOError:
                    continue
            break
        changed += 1
        if changed == at_most:
            break


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    return []


def _query(ask: Callable[[int], int], thread: int) -> int | None:
    try:
        return ask(thread)
    except OSError:
        return None


def _session_of(stat: Sequence[str]) -> int:
    return int(stat[3])
