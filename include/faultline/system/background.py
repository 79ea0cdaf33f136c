"""Background processes give way to what is measured: Airflow, its tasks, and the persistent Spark session.

They carry BACKGROUND_MARK and have sessions of their own. While a window is measured, the recorder lowers them in two
ways, each of which it can take back:

- Idle class: `SCHED_IDLE` for each thread. A thread of it runs when no ordinary thread of the same control group wants
  the processor. The kernel lets root take it back, and a user whose RLIMIT_NICE allows niceness 0.
- Autogroup: Linux weighs whole sessions against each other where `sched_autogroup_enabled` is set and no control group
  does that instead. There the idle class says nothing to other sessions, but the session itself gets niceness 19, which
  is a 68th of the usual weight. Any user may take that back.

All here looks at what the kernel says of the processes, never at what an earlier call did: whatever a killed recorder
left lowered, the next call of `restore` finds.
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
# The kernel lets an ordinary user change one autogroup in a tenth of a second.
GROUP_PAUSE_S = 0.12
# Autogroups that one look changes at most, so that a recorder's samples stay on time.
GROUPS_PER_CALL = 3
_PROC = Path("/proc")
_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_CGROUPS = Path("/sys/fs/cgroup")
# The number of the initial namespace of control groups, which the kernel never gives to another one.
_FIRST_NAMESPACE = "cgroup:[4026531835]"
_HERTZ = os.sysconf("SC_CLK_TCK")

Stats = Mapping[Key, Sequence[str]]


@dataclass(frozen=True)
class BackgroundMethods:
    """What lowers a process here so that this user can take it back."""

    idle: bool
    groups: bool

    @property
    def text(self) -> str:
        """What becomes of background processes while a window is measured, for `doctor`."""
        if not (self.idle or self.groups):
            return (
                "background processes keep their priority while a window is measured: this user may not take the idle "
                "class back, and sessions are not weighed as groups; a limit of RLIMIT_NICE 20 (`ulimit -e 20`) or "
                "CAP_SYS_NICE would do; what they take counts as others' load"
            )
        methods = [*(["idle class"] if self.idle else []), *(["autogroup niceness 19"] if self.groups else [])]
        return f"background processes give way while a window is measured ({' and '.join(methods)})"


def background_methods() -> BackgroundMethods:
    """What this process can do, found by trying it on a thread of its own."""
    return BackgroundMethods(idle=_is_idle_taken_back(), groups=_are_sessions_weighed())


def _is_idle_taken_back() -> bool:
    def set_and_reset() -> None:
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
            _set_policy(threading.get_native_id(), policy)

    return is_allowed_in_thread(set_and_reset)


def _are_sessions_weighed() -> bool:
    """Whether autogroups decide about this process: they do in no control group but the first."""
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
    """Whether a control group of version 2, or one above it, has a weight of its own."""
    group = root / path.strip("/")
    while not (group / "cpu.weight").exists():
        if group == root or root not in group.parents:
            return False
        group = group.parent
    return True


def background_sessions(background: Collection[Key], others: Collection[Key], stats: Stats) -> dict[int, int]:
    """Sessions that hold a background process and none of the `others`, each with the pid of one of its processes.

    A process that is neither, since it is too young to be looked at, decides nothing. `stats`: of all processes;
    field 6 of /proc/PID/stat is the session.
    """
    mixed = {_session_of(stats[key]) for key in others}
    return {_session_of(stats[key]): key[0] for key in background if _session_of(stats[key]) not in mixed}


class Background:
    """The background processes of one installation; whose a process is, is read once."""

    def __init__(self, instance: str, methods: BackgroundMethods) -> None:
        self._instance, self._methods = instance, methods
        self._known: dict[Key, bool] = {}
        self._groups: dict[Key, str] = {}

    def find(self, stats: Stats) -> set[Key]:
        """Those among all processes of `stats`."""
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _HERTZ
        for key in stats.keys() - self._known.keys():
            if now_ticks - key[1] >= MIN_AGE_S * _HERTZ:
                self._known[key] = is_background(key[0], self._instance)
        self._known = {key: known for key, known in self._known.items() if key in stats}
        return {key for key, known in self._known.items() if known}

    def lower(self, stats: Stats, measured: Collection[Key] = ()) -> set[Key]:
        """Lowers them, and returns those that are lowered now. What ended meanwhile is passed over.

        A process in another control group than those that are measured stays as it is: the groups' weights decide
        between them.
        """
        self._groups = {key: group for key, group in self._groups.items() if key in stats}
        # One that has ended meanwhile is in no group any more, and says nothing.
        groups = {self._group(key) for key in measured} - {""}
        found = {key for key in self.find(stats) if groups <= {self._group(key)}}
        # What has ended and is not buried yet shows no environment, and takes nothing.
        others = {key for key in self._known.keys() - found if stats[key][0] not in "ZXx"}
        sessions = background_sessions(found, others, stats) if self._methods.groups else {}
        _set_niceness(sessions.values(), LOWEST_NICENESS, at_most=GROUPS_PER_CALL)
        grouped = {session for session, pid in sessions.items() if niceness_of(pid) == LOWEST_NICENESS}
        lowered = {key for key in found if _session_of(stats[key]) in grouped}
        if self._methods.idle:
            idle = {key for key in found if _set_thread_policies(key[0], os.SCHED_IDLE)}
            # Where sessions are weighed, the class alone says nothing to others.
            lowered = idle & lowered if self._methods.groups else idle
        return lowered

    def restore(self, stats: Stats | None = None) -> list[int]:
        """Takes back what lowered them, whoever did that; returns the pids that were lowered."""
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
    """Takes back whatever an ended recorder left lowered of an installation, unless a window is measured there; returns
    the pids."""
    if instance is None or is_measured(window_lock):
        return []
    return Background(instance, BackgroundMethods(idle=False, groups=False)).restore()


def leave_idle_class() -> None:
    """Takes this process out of the idle class, which it may have from its starter; where that is not allowed it
    stays."""
    with contextlib.suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_IDLE:
            _set_policy(0, os.SCHED_OTHER)


def is_background(pid: int, instance: str) -> bool:
    """Whether a process is this user's, and carries the mark of the installation."""
    wanted = f"{BACKGROUND_MARK}={instance}".encode()
    with contextlib.suppress(OSError):
        return owner_of(pid) == os.getuid() and wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def policies_of(pid: int) -> set[int]:
    """The scheduling policies of its threads; none when it has ended."""
    return {policy for thread in _threads(pid) if (policy := _query(os.sched_getscheduler, thread)) is not None}


def niceness_of(pid: int) -> int | None:
    """The niceness of the session's autogroup; None where there is none."""
    try:
        return int((_PROC / str(pid) / "autogroup").read_text().rpartition(" ")[2])
    except (OSError, ValueError):
        return None


def all_stats() -> dict[Key, list[str]]:
    """What the kernel says of every process (`fault.procfs.stat_of`)."""
    found = {}
    for pid in all_pids():
        with contextlib.suppress(OSError):
            stat = stat_of(pid)
            found[pid, int(stat[19])] = stat
    return found


def control_group(pid: int) -> str:
    """The control group by which a process gets its share of the processors; empty when it has ended."""
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in (_PROC / str(pid) / "cgroup").read_text().splitlines()]
        paths = {name: path for _, names, path in lines for name in names.split(",")}
        # Version 1 where a line names the controller, else version 2.
        return paths.get("cpu", paths.get("", ""))
    return ""


def _set_thread_policies(pid: int, policy: int) -> bool:
    """Whether each thread has the policy now. One that is started meanwhile inherits its starter's."""
    threads = _threads(pid)
    for thread in threads:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.sched_getscheduler(thread) != policy:
                _set_policy(thread, policy)
    return bool(threads) and policies_of(pid) <= {policy}


def _set_policy(thread: int, policy: int) -> None:
    os.sched_setscheduler(thread, policy, os.sched_param(0))


def _set_niceness(pids: Iterable[int], niceness: int, *, at_most: int | None = None) -> None:
    """Gives the sessions of these processes a niceness; the kernel wants a pause between two of an ordinary user."""
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
