"""Linux process information from /proc. Standard library only, since remote hosts run this module, too."""

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
    """Return the process `pid`, or None if it is gone or a zombie.

    Raises VictimRefused if it cannot be read.
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
        raise VictimRefused(f"pid: reading process {pid} failed: it belongs to another user") from None


def all_pids() -> Iterator[int]:
    """Return the pids of all visible processes."""
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def command_of(pid: int) -> tuple[str, ...]:
    """Return the command line; empty for a kernel thread and during exec. Raises OSError."""
    text = os.fsdecode((PROC / str(pid) / "cmdline").read_bytes())
    # A process that changed its title has spaces between its words.
    separator = "\0" if text.endswith("\0") else " "
    return tuple(text.removesuffix(separator).split(separator)) if text else ()


def ancestry_of(pid: int) -> frozenset[int]:
    """Return the pids of a process and its ancestors."""
    line = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            pid = int(stat_of(pid)[1])
        except OSError:
            break
    return frozenset(line)


def start_ticks(pid: int) -> int:
    """Return the start time in clock ticks since boot. Raises OSError if the process is gone."""
    return int(stat_of(pid)[19])


def stat_of(pid: int) -> list[str]:
    """Return fields 3 and following of /proc/<pid>/stat. Raises OSError if the process is gone."""
    stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    # The name in parentheses may contain any character; field 3 follows the last parenthesis.
    return stat.rpartition(")")[2].split()


def owner_of(pid: int) -> int:
    """Return the real user id. Raises OSError if the process is gone."""
    status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))


def boot_time() -> float:
    """Return the boot time in seconds since the epoch; it moves with steps of the wall clock."""
    lines = (PROC / "stat").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("btime ")))


@contextmanager
def process_handle(pid: int) -> Iterator[int | None]:
    """Yield a pidfd for `pid`, or None without kernel support. Raises ProcessLookupError if it is gone."""
    handle = open_handle(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def open_handle(pid: int) -> int | None:
    """Return a pidfd as `process_handle`, to be closed by the caller."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def send_signal(pid: int, handle: int | None, signum: int) -> None:
    """Send a signal through a pidfd, or to the pid if `handle` is None."""
    if handle is None:
        os.kill(pid, signum)
    else:
        signal.pidfd_send_signal(handle, signum)
