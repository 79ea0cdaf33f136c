"""Faults of this host: network, disk, CPU and memory.

Each injection has a name, is idempotent, and can be undone by that name from another process, such as a watchdog that
was started before. Standard library only, since the handler runs this module on other hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault import traffic_control
from fault.errors import ActionRefused, FaultError
from fault.procfs import all_pids, command_of, process_handle, read_process, send_signal, stat_of

# A larger disk takes minutes to fill, and is unlikely to be a test disk.
MAX_FREE_BYTES = 16 * 2**30
# Smallest allocation unit of a file.
_BLOCK = 4096
BALLAST = "faultline-ballast-"
NEIGHBOUR = "faultline-neighbour="
START_TIMEOUT_S = 10.0
# Seconds to wait until a process has its memory or was killed.
ALLOCATE_TIMEOUT_S = 2.0
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_MEMINFO = Path("/proc/meminfo")
# Programs of the load processes ("neighbours"); a mark on their command line identifies them.
_BUSY_PROGRAM = "import sys\nwhile True: pass"
# The kernel kills this process first if memory runs out.
_MEMORY_PROGRAM = """
import sys, time
with open("/proc/self/oom_score_adj", "w") as file: file.write("1000")
held = bytearray(int(sys.argv[2]) * 2**20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(1e6)
"""


@dataclass(frozen=True)
class HostFault:
    """Steps of one kind of host fault; all take the injection's name and its parameters.

    `check` raises ActionRefused if the fault is impossible here. `do` and `undo` are idempotent. `is_active` returns
    whether the fault is in effect.
    """

    check: Callable[[str, Mapping[str, Any]], None]
    do: Callable[[str, Mapping[str, Any]], None]
    undo: Callable[[str, Mapping[str, Any]], None]
    is_active: Callable[[str, Mapping[str, Any]], bool]


def find_host_fault(kind: str, name: str) -> HostFault:
    """Return the fault of that kind. Raises ActionRefused for an unknown kind or an unsafe name."""
    if kind not in HOST_FAULTS or not _NAME.fullmatch(name):
        raise ActionRefused(f"{kind}: got {name!r}; expected a host fault and an injection name")
    return HOST_FAULTS[kind]


def injection_name(run: str, index: int) -> str:
    """Return the unique name of injection `index` in attempt `run`."""
    return f"{run.lower().replace('-', '_')}_{index}"


def run_step(step: str, kind: str, name: str, asked: Mapping[str, Any]) -> Any:
    """Run one step: `check`, `do`, `undo` or `is_active`, which returns a bool."""
    fault = find_host_fault(kind, name)
    steps = {"check": fault.check, "do": fault.do, "undo": fault.undo, "is_active": fault.is_active}
    return steps[step](name, asked)


# --- the disk


def _check_disk(name: str, parameters: Mapping[str, Any]) -> None:
    folder = Path(str(parameters["folder"]))
    if not (folder.is_absolute() and folder.is_dir()):
        raise ActionRefused(f"disk_full: got {folder}; expected an existing absolute folder")
    if os.stat(folder).st_dev == os.stat("/").st_dev:
        raise ActionRefused(f"disk_full: got {folder} on the root file system; expected a separate disk")
    if (free := shutil.disk_usage(folder).free) > MAX_FREE_BYTES:
        most = MAX_FREE_BYTES / 2**30
        raise ActionRefused(f"disk_full: got {folder} with {free / 2**30:.0f} GiB free; expected at most {most:.0f}")


def _fill_disk(name: str, parameters: Mapping[str, Any]) -> None:
    """Fill the disk to the last byte. Raises ActionRefused if space is left."""
    _check_disk(name, parameters)
    file = _open_ballast(_ballast_path(name, parameters))
    try:
        for size in (64 * 2**20, 2**20, _BLOCK, 1):
            problem = _allocate(file, size)
    finally:
        os.close(file)
    # Another process may have deleted a file meanwhile; a full disk never has this much left.
    if (left := shutil.disk_usage(parameters["folder"]).free) > 2**20:
        raise ActionRefused(f"disk_full: filling failed: {left:,} bytes left: {problem}")


def _open_ballast(path: Path) -> int:
    """Open the injection's own file, and create it if missing. Raises ActionRefused for a foreign file."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_nlink != 1:
        os.close(file)
        raise ActionRefused(f"disk_full: got foreign file {path}; expected a file of this injection")
    return file


def _allocate(file: int, size: int) -> OSError:
    """Append blocks of `size` bytes until this fails; return the error."""
    while True:
        end = os.lseek(file, 0, os.SEEK_END)
        try:
            if size >= _BLOCK:
                os.posix_fallocate(file, end, size)
            else:
                os.write(file, b"\0" * size)
        except OSError as problem:
            return problem


def _remove_ballast(name: str, parameters: Mapping[str, Any]) -> None:
    _ballast_path(name, parameters).unlink(missing_ok=True)


def _has_ballast(name: str, parameters: Mapping[str, Any]) -> bool:
    return _ballast_path(name, parameters).exists()


def _ballast_path(name: str, parameters: Mapping[str, Any]) -> Path:
    return Path(str(parameters["folder"])) / f"{BALLAST}{name}"


# --- load processes


def _check_memory(name: str, parameters: Mapping[str, Any]) -> None:
    words = _MEMINFO.read_text().split()
    total_mb = int(words[words.index("MemTotal:") + 1]) // 1024
    if int(parameters["memory_mb"]) >= total_mb:
        raise ActionRefused(f"memory_mb: got {parameters['memory_mb']}; expected less than {total_mb}, the host's MiB")


def _start_busy(name: str, parameters: Mapping[str, Any]) -> None:
    """Start busy processes until there is one per requested core."""
    for _ in range(int(parameters["cores"]) - len(_find_neighbours(name))):
        _start_neighbour(name, _BUSY_PROGRAM)


def _start_memory(name: str, parameters: Mapping[str, Any]) -> None:
    """Start a process that holds `memory_mb` MiB."""
    if not _has_neighbours(name, parameters):
        _start_neighbour(name, _MEMORY_PROGRAM, str(int(parameters["memory_mb"])))


def _start_neighbour(name: str, program: str, *words: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", program, neighbour_mark(name), *words]
    null_files = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=null_files, setsid=True)
    # The mark appears on the command line shortly after the start.
    until = time.monotonic() + START_TIMEOUT_S
    while neighbour_mark(name) not in command_of(pid) and time.monotonic() < until:
        time.sleep(0.001)


def _end_neighbours(name: str, parameters: Mapping[str, Any]) -> None:
    for pid in _find_neighbours(name):
        with contextlib.suppress(ProcessLookupError, ChildProcessError), process_handle(pid) as handle:
            # Look again with the handle open: the pid may have been reused before.
            if pid in _find_neighbours(name):
                send_signal(pid, handle, signal.SIGKILL)
                os.waitpid(pid, 0)  # if it is a child of this process


def _has_neighbours(name: str, parameters: Mapping[str, Any]) -> bool:
    return bool(_find_neighbours(name))


def _holds_memory(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the process exists; wait until it has its memory or the kernel killed it."""
    until = time.monotonic() + ALLOCATE_TIMEOUT_S
    while pids := _find_neighbours(name):
        if _resident_mb(pids[0]) >= int(parameters["memory_mb"]) or time.monotonic() > until:
            return True
        time.sleep(0.02)
    return False


def _resident_mb(pid: int) -> float:
    try:
        return int(stat_of(pid)[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def _find_neighbours(name: str) -> list[int]:
    mark, found = neighbour_mark(name), []
    for pid in all_pids():
        try:
            if mark not in command_of(pid):
                continue
            process = read_process(pid)
        except (OSError, FaultError):
            continue  # gone, or not readable
        if process is not None and not process.is_foreign and mark in process.command:
            found.append(pid)
    return found


def neighbour_mark(name: str) -> str:
    """Return the argument that marks the processes of an injection."""
    return f"{NEIGHBOUR}{name}"


HOST_FAULTS: Mapping[str, HostFault] = {
    "partition": HostFault(
        traffic_control.check_partition,
        traffic_control.partition,
        traffic_control.remove_partition,
        traffic_control.is_partitioned,
    ),
    "loss": HostFault(
        traffic_control.check_partition,
        traffic_control.partition,
        traffic_control.remove_partition,
        traffic_control.is_partitioned,
    ),
    "bandwidth": HostFault(
        traffic_control.check_bandwidth,
        traffic_control.limit_rate,
        traffic_control.remove_rate_limit,
        traffic_control.is_rate_limited,
    ),
    "delay": HostFault(
        traffic_control.check_delay, traffic_control.delay, traffic_control.remove_delay, traffic_control.is_delayed
    ),
    "disk_full": HostFault(_check_disk, _fill_disk, _remove_ballast, _has_ballast),
    "cpu_pressure": HostFault(lambda name, parameters: None, _start_busy, _end_neighbours, _has_neighbours),
    "memory_pressure": HostFault(_check_memory, _start_memory, _end_neighbours, _holds_memory),
}
