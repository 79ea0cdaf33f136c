"""Finding the processes of a run, and choosing among them by seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from fault.errors import TooFewVictims, VictimRefused
from fault.identity import LiveProcess, ProcessIdentity, Role, carries_token, order_of, require_token

_PROC = Path("/proc")


def read_process(pid: int) -> LiveProcess | None:
    """What the kernel says about `pid` now; None when it is gone or only a zombie is left.

    Source: psutil, and field 22 of /proc/<pid>/stat. Raises VictimRefused when it may not be read.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            return LiveProcess(
                pid=pid,
                parent_pid=process.ppid(),
                create_time=process.create_time(),
                start_ticks=_start_ticks(pid),
                command=tuple(process.cmdline()),
                stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
            )
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None  # ZombieProcess is a NoSuchProcess, too
    except (psutil.AccessDenied, PermissionError):
        raise VictimRefused(f"pid: process {pid} belongs to another user and cannot be read") from None


def own_line() -> frozenset[int]:
    """The pids of this process and of its ancestors, which are never victims."""
    me = psutil.Process()
    return frozenset([me.pid, *(parent.pid for parent in me.parents())])


def find_victims(role: Role, token: str) -> tuple[ProcessIdentity, ...]:
    """All live processes of `role` whose command line carries the run's `token`, in the order of `sort_key`.

    This process and its ancestors never appear, nor does the child of a candidate: between fork
    and exec a child still shows its parent's command line.
    """
    require_token(token)
    protected = own_line()
    found: dict[int, LiveProcess] = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or ()
        if process.pid <= 1 or process.pid in protected or role.main not in command:
            continue
        if not carries_token(command, token):
            continue
        live = read_process(process.pid)
        if live is not None and role.main in live.command and carries_token(live.command, token):
            found[live.pid] = live
    return sort_candidates(
        ProcessIdentity(live.pid, live.create_time, role, token, live.command, live.start_ticks)
        for live in found.values()
        if live.parent_pid not in found
    )


def sort_key(candidate: ProcessIdentity) -> tuple[bool, int, float, int]:
    """By number within the role (numbered ones first), then creation time, then pid."""
    number = order_of(candidate.role, candidate.command)
    return number is None, number or 0, candidate.create_time, candidate.pid


def sort_candidates(candidates: Iterable[ProcessIdentity]) -> tuple[ProcessIdentity, ...]:
    """The candidates in an order that does not hang on how they were found."""
    return tuple(sorted(candidates, key=sort_key))


def choose(
    candidates: Sequence[ProcessIdentity], count: int, *, seed: int, repetition: int, fault: int = 0
) -> tuple[ProcessIdentity, ...]:
    """`count` distinct victims, a function of seed, repetition, number of the fault and the sorted candidates.

    Raises TooFewVictims when there are fewer candidates than `count`.
    """
    ordered = sort_candidates(candidates)
    if len(ordered) < count:
        raise TooFewVictims(f"count: {count} victims are asked for, but only {len(ordered)} of that role are alive")
    # A text seed goes through SHA-512, the same on every machine and Python version.
    source = random.Random(f"victims:{seed}:{repetition}:{fault}")
    return tuple(source.sample(ordered, count))


def _start_ticks(pid: int) -> int:
    stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    # The name in parentheses may hold anything; field 3 is the first after the last parenthesis.
    return int(stat.rpartition(")")[2].split()[19])
