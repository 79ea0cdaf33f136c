"""What Linux says of its processes. Standard library only, since other hosts read theirs by this, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault.errors import VictimRefused
from fault.identity import LiveProcess

PROC = Path("/proc")
_HERTZ = os.sysconf("SC_CLK_TCK")


def read_process(pid: int) -> LiveProcess | None:
    """What the kernel says about `pid` now; None when it is gone or only a zombie is left.

    Raises VictimRefused when it may not be read.
    """
    try:
        fields = stat_of(pid)
        if fields[0] in "ZXx":
            return None
        ticks = int(fields[19])
        return LiveProcess(
            pid=pid,
            parent_pid=int(fields[1]),
            create_time=boot_time() + ticks / _HERTZ,
            start_ticks=ticks,
            command=command_of(pid),
            is_stopped=fields[0] in "Tt",
            is_foreign=owner_of(pid) != os.getuid(),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        raise VictimRefused(f"pid: process {pid} belongs to another user and cannot be read") from None


def all_pids() -> Iterator[int]:
    """The pids of all processes that can be seen here."""
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def command_of(pid: int) -> tuple[str, ...]:
    """Its command line; empty for a kernel thread, and while another program takes its place. Raises OSError."""
    text = os.fsdecode((PROC / str(pid) / "cmdline").read_bytes())
    # A process that gave itself another title has spaces between its words.
    between = "\0" if text.endswith("\0") else " "
    return tuple(text.removesuffix(between).split(between)) if text else ()


def ancestry_of(pid: int) -> frozenset[int]:
    """The pids of a process and its ancestors."""
    line = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            pid = int(stat_of(pid)[1])
        except OSError:
            break
    return frozenset(line)


def start_ticks(pid: int) -> int:
    """When the process began, in the kernel's clock ticks since the machine started. Raises OSError for none."""
    return int(stat_of(pid)[19])


def stat_of(pid: int) -> list[str]:
    """Fields 3 and further of /proc/<pid>/stat. Raises OSError for none."""
    stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    # The name in parentheses may hold anything; field 3 is the first after the last parenthesis.
    return stat.rpartition(")")[2].split()


def owner_of(pid: int) -> int:
    """Whose it is: the real user id. Raises OSError for none."""
    status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))


def boot_time() -> float:
    """When the machine started, in seconds since the epoch; it moves with each step of the wall clock."""
    lines = (PROC / "stat").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("btime ")))


@contextmanager
def process_handle(pid: int) -> Iterator[int | None]:
    """A pidfd for `pid`, or None on a kernel without. Raises ProcessLookupError when it is gone."""
    handle = open_handle(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def open_handle(pid: int) -> int | None:
    """As `process_handle`, to be closed by whoever asked."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def send_signal(pid: int, handle: int | None, signum: int) -> None:
    """Sends a signal through the handle of `process_handle`; to the pid where there is none."""
    if handle is None:
        os.kill(pid, signum)
    else:
        signal.pidfd_send_signal(handle, signum)
