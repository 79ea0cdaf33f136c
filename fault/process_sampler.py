"""Who uses this host's processors and memory: processes by the role that they play, as the kernel counts them.

Standard library only: the recorder looks at its own host by this, and the agent at others.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.procfs import all_pids, booted_at, command_of, owner_of, stat_of

# Between fork and exec a process shows its parent's command line and memory; a younger one is left for the next look.
SETTLED_S = 0.5
_HERTZ, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_STAT = Path("/proc/stat")
# Of the kinds of time in the first line of /proc/stat: user, nice, system, interrupts; guests are counted in user.
_BUSY, _STOLEN = (0, 1, 2, 5, 6), 7

# Pid, and when it began, in ticks since the machine's start.
Key = tuple[int, int]


@dataclass(frozen=True)
class RoleRule:
    """A process plays `role` when both `main` and `mark` are whole arguments of its command line."""

    role: str
    main: str
    mark: str

    def fits(self, command: Sequence[str]) -> bool:
        """Whether a command line is of the role."""
        return self.main in command and self.mark in command


@dataclass(frozen=True)
class Usage:
    """One process: `cpu_s` seconds of a core since it began, at `create_time` (seconds since the epoch), with those of
    the short-lived that it started and waited for. `waited_s`: seconds that its threads, taken together, were ready to
    run and had no processor; None where that is not asked for, or the kernel does not count it."""

    pid: int
    role: str
    create_time: float
    cpu_s: float
    rss_bytes: int
    waited_s: float | None = None

    def line(self) -> dict[str, Any]:
        """What a journal says of it."""
        return {name: value for name, value in vars(self).items() if name != "waited_s" or value is not None}


class ShortLivedChildren:
    """What a process started and waited for within less than a look, such as the programs by which an executor looks
    after its files: the kernel counts the dead to whoever waited for them. What was looked at while it lived is on an
    account of its own, and taken off.
    """

    def __init__(self) -> None:
        # Each one's parent, and all that the kernel counted to it, as of the last look.
        self._last: dict[Key, tuple[Key | None, float]] = {}
        # Of each one's dead, what is not to be counted: from before the first look at all, or counted already.
        self._known_s: dict[Key, float] | None = None
        self._told_s: dict[Key, float] = {}

    def look(self, stats: Mapping[Key, Sequence[str]], found: Collection[Key]) -> dict[Key, float]:
        """Seconds by process since the first look, which never grow less. `stats`: of all processes, those of parents
        read before their children's; `found`: of whom it is asked."""
        known = {key: _dead_s(stat) for key, stat in stats.items()} if self._known_s is None else self._known_s
        gone = {key: self._last.pop(key) for key in self._last.keys() - stats.keys()}
        for parent, all_s in gone.values():
            # Whoever waited for the one that waited for it. Did nobody, less is counted, and nothing twice.
            while parent is not None and parent in gone:
                parent = gone[parent][0]
            if parent is not None:
                known[parent] = known.get(parent, 0.0) + all_s
        keys = {key[0]: key for key in stats}
        for key in self._last.keys() | found:
            self._last[key] = keys.get(int(stats[key][1])), _own_s(stats[key]) + _dead_s(stats[key])
        for key in found:
            # A child may end between the look at its parent and the one at itself: the parent's is a look late.
            unseen_s = _dead_s(stats[key]) - known.get(key, 0.0)
            self._told_s[key] = max(self._told_s.get(key, 0.0), unseen_s)
        self._known_s = {key: seconds for key, seconds in known.items() if key in stats}
        self._told_s = {key: seconds for key, seconds in self._told_s.items() if key in stats}
        return {key: self._told_s[key] for key in found}


class Delays:
    """Run delay of processes: how long their threads were ready to run, and another one had the processor.

    The kernel counts it for each thread, and forgets it when the thread ends: what was seen of it stays counted. A
    thread that comes and goes between two looks is not counted.
    """

    def __init__(self) -> None:
        # By process: nanoseconds of threads that ended, and those of each live one as of the last look.
        self._ended: dict[Key, int] = {}
        self._last: dict[Key, dict[str, int]] = {}

    def look(self, found: Collection[Key]) -> dict[Key, float]:
        """Seconds by process since its first thread began; they never grow less. `found`: of whom it is asked."""
        for key in found:
            before = self._last.get(key, {})
            present = _thread_delays(key[0])
            if present:
                # Less than before: another thread has its number.
                gone = sum(counted for one, counted in before.items() if present.get(one, -1) < counted)
                self._ended[key] = self._ended.get(key, 0) + gone
                self._last[key] = present
        self._last = {key: known for key, known in self._last.items() if key in found}
        self._ended = {key: known for key, known in self._ended.items() if key in found}
        return {key: (self._ended[key] + sum(known.values())) / 1e9 for key, known in self._last.items()}


class ProcessTable:
    """Which processes play which role; command lines are read once per process.

    `heirs`: the role of what a process starts, by the role of that process, where the two differ. A command line that
    plays no role is read again while its process is younger than `again_s`: a service that a fault holds down shows its
    own only when the hold is over. `apart`: leave out what lives in another space of process ids, as hosts on this
    machine do. `waiting`: the roles whose run delay is read.

    `stats` are those of all processes at the last look.
    """

    def __init__(
        self,
        rules: Sequence[RoleRule],
        heirs: Mapping[str, str],
        *,
        again_s: float = 0.0,
        apart: bool = False,
        waiting: Collection[str] = (),
    ) -> None:
        self._rules, self._heirs, self._again_s, self._apart = tuple(rules), dict(heirs), again_s, apart
        self._known: dict[Key, str | None] = {}
        self._born: dict[Key, float] = {}
        self._here: dict[Key, bool] = {}
        self._space = space_of("self")
        self._began: dict[int, int] = {}
        self._short = ShortLivedChildren()
        self._waiting = frozenset(waiting) if counts_delay() else frozenset()
        self._delays = Delays()
        self.stats: dict[Key, list[str]] = {}

    def look(self, more: Mapping[Key, str], keeper: tuple[int, str] | None = None) -> dict[Key, Usage]:
        """The processes that matter. `more`: roles of further ones, by who they are; `keeper`: pid of one whose
        descendants, and itself, play this role unless they play another."""
        stats, now, boot = self._stats(), time.time(), booted_at()
        self.stats = stats
        children: dict[int, list[Key]] = {}
        for key, stat in stats.items():
            children.setdefault(int(stat[1]), []).append(key)
        own: dict[Key, str] = {}
        for key in stats:
            role = self._role(key, now - (boot + key[1] / _HERTZ)) or more.get(key)
            if role is not None:
                own[key] = role
        found = dict(own)
        for key, role in own.items():
            _descend(key, self._heirs.get(role, role), children, found)
        if keeper is not None:
            for key in stats:
                if key[0] == keeper[0]:
                    found.setdefault(key, keeper[1])
                    _descend(key, keeper[1], children, found)
        self._known = {key: role for key, role in self._known.items() if key in stats}
        # A step of the wall clock makes no other process of it.
        self._born = {key: self._born.get(key, boot + key[1] / _HERTZ) for key in found}
        short = self._short.look(stats, found.keys())
        waited = self._delays.look({key for key, role in found.items() if role in self._waiting})
        return {
            key: _usage(key, role, self._born[key], stats[key], short[key], waited.get(key))
            for key, role in found.items()
        }

    def _stats(self) -> dict[Key, list[str]]:
        found = {}
        # The older first, as `ShortLivedChildren.look` wants it; numbers begin anew one day.
        for pid in sorted(all_pids(), key=lambda pid: self._began.get(pid, sys.maxsize)):
            try:
                stat = stat_of(pid)
            except OSError:
                continue
            found[pid, int(stat[19])] = stat
        self._began = dict(found.keys())
        if self._apart:
            self._here = {key: self._here.get(key) or space_of(key[0]) == self._space for key in found}
            found = {key: stat for key, stat in found.items() if self._here[key]}
        return found

    def _role(self, key: Key, age_s: float) -> str | None:
        if key in self._known:
            return self._known[key]
        if age_s < SETTLED_S:
            return None
        role = self._read_role(key[0])
        if role is not None or age_s > self._again_s:
            self._known[key] = role
        return role

    def _read_role(self, pid: int) -> str | None:
        try:
            command = command_of(pid)
            role = next((one.role for one in self._rules if one.fits(command)), None)
            # Another user's that looks like one of ours is others' load.
            return None if role is None or owner_of(pid) != os.getuid() else role
        except OSError:
            return None


def machine() -> dict[str, Any]:
    """Seconds of a core that all processes of this machine have used since it started, and that its own host kept from
    it; None where the system does not count those."""
    counted = [int(one) / _HERTZ for one in _STAT.read_text().splitlines()[0].split()[1:]]
    return {
        "busy_s": sum(counted[place] for place in _BUSY),
        "stolen_s": counted[_STOLEN] if len(counted) > _STOLEN else None,
    }


def _descend(parent: Key, role: str, children: Mapping[int, Sequence[Key]], found: dict[Key, str]) -> None:
    for child in children.get(parent[0], ()):
        if child not in found and child[1] >= parent[1]:
            found[child] = role
            _descend(child, role, children, found)


def _usage(key: Key, role: str, born: float, stat: Sequence[str], short_s: float, waited_s: float | None) -> Usage:
    used_s, waited_s = round(_own_s(stat) + short_s, 6), None if waited_s is None else round(waited_s, 6)
    return Usage(key[0], role, born, used_s, int(stat[21]) * _PAGE, waited_s)


def counts_delay() -> bool:
    """Whether the kernel counts how long a thread that is ready waits for a processor."""
    try:
        # Of a kernel that does not, all three are 0; this thread has run at least once.
        return Path("/proc/thread-self/schedstat").read_bytes().split()[2] != b"0"
    except (OSError, IndexError):
        return False


def _thread_delays(pid: int) -> dict[str, int]:
    """Nanoseconds that each thread of a process has waited for a processor; none when the process has ended."""
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
                continue  # it has ended
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


def _own_s(stat: Sequence[str]) -> float:
    return (int(stat[11]) + int(stat[12])) / _HERTZ


def _dead_s(stat: Sequence[str]) -> float:
    """Of its descendants that were waited for."""
    return (int(stat[13]) + int(stat[14])) / _HERTZ


def space_of(process: int | str) -> str | None:
    """Which space of process ids it lives in, `self` this process; None where that may not be known."""
    try:
        return os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return None
