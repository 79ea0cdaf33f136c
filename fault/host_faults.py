"""What can be done to the host that this runs on: to its network, its disk, its processors and its memory.

Each act is named, does nothing twice, and is undone by its name, also by somebody who did not do it: by a watchdog that
is started before. Standard library only, since the handler brings it to other hosts.
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

# A disk of more is nobody's to fill: it would take minutes, and hit all that lives on it.
MAX_FREE_BYTES = 16 * 2**30
# Less than this is no room: a file has at least one block.
_BLOCK = 4096
BALLAST = "faultline-ballast-"
NEIGHBOUR = "faultline-neighbour="
START_TIMEOUT_S = 10.0
# How long one that takes memory is watched until it has it, or had to go.
ALLOCATE_TIMEOUT_S = 2.0
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_MEMINFO = Path("/proc/meminfo")
# One that is busy, or full, until it is told to end; its name stands on its command line.
_BUSY_PROGRAM = "import sys\nwhile True: pass"
# Where memory runs out it is the first to go, not whoever else lives there.
_MEMORY_PROGRAM = """
import sys, time
with open("/proc/self/oom_score_adj", "w") as file: file.write("1000")
held = bytearray(int(sys.argv[2]) * 2**20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(1e6)
"""


@dataclass(frozen=True)
class HostFault:
    """`check` refuses what cannot be done here; `do` and `undo` are harmless when repeated; `holds` tells whether it is
    done. All take the name of the act, and what it was asked for."""

    check: Callable[[str, Mapping[str, Any]], None]
    do: Callable[[str, Mapping[str, Any]], None]
    undo: Callable[[str, Mapping[str, Any]], None]
    is_active: Callable[[str, Mapping[str, Any]], bool]


def find_host_fault(kind: str, name: str) -> HostFault:
    """The act of that kind. Raises ActRefused for an unknown one, and for a name that a program could misread."""
    if kind not in HOST_FAULTS or not _NAME.fullmatch(name):
        raise ActionRefused(f"{kind}: {name!r} is no act on a host")
    return HOST_FAULTS[kind]


def injection_name(run: str, index: int) -> str:
    """What the act of that number is called in the attempt `run`; nobody else's act is called so."""
    return f"{run.lower().replace('-', '_')}_{index}"


def run_step(step: str, kind: str, name: str, asked: Mapping[str, Any]) -> Any:
    """Takes a step of an act: `check`, `do`, `undo`, or `holds`, whose answer tells whether it does."""
    act = find_host_fault(kind, name)
    return {"check": act.check, "do": act.do, "undo": act.undo, "is_active": act.is_active}[step](name, asked)


# --- the disk


def _check_disk(name: str, parameters: Mapping[str, Any]) -> None:
    folder = Path(str(parameters["folder"]))
    if not (folder.is_absolute() and folder.is_dir()):
        raise ActionRefused(f"disk_full: {folder} is no folder here")
    if os.stat(folder).st_dev == os.stat("/").st_dev:
        raise ActionRefused(
            f"disk_full: {folder} lies on the disk of the whole host, which is not filled; give it its own"
        )
    if (free := shutil.disk_usage(folder).free) > MAX_FREE_BYTES:
        most = MAX_FREE_BYTES / 2**30
        raise ActionRefused(f"disk_full: {folder} has {free / 2**30:.0f} GiB free, and {most:.0f} at most are filled")


def _fill_disk(name: str, parameters: Mapping[str, Any]) -> None:
    """Takes all the room there is, to the last byte. Raises ActRefused where some is left all the same."""
    _check_disk(name, parameters)
    file = _open_ballast(_ballast_path(name, parameters))
    try:
        for size in (64 * 2**20, 2**20, _BLOCK, 1):
            problem = _allocate(file, size)
    finally:
        os.close(file)
    # Whoever writes there may have deleted something meanwhile; that much is left by no disk of the sizes above.
    if (left := shutil.disk_usage(parameters["folder"]).free) > 2**20:
        raise ActionRefused(f"disk_full: {left:,} bytes are left: {problem}")


def _open_ballast(path: Path) -> int:
    """The act's own file, made by it and by nobody else. Raises ActRefused."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink != 1:
        os.close(file)
        raise ActionRefused(f"disk_full: {path} is not ours")
    return file


def _allocate(file: int, size: int) -> OSError:
    """Pieces of this size until none is left; what was said then."""
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


# --- neighbours


def _check_memory(name: str, parameters: Mapping[str, Any]) -> None:
    words = _MEMINFO.read_text().split()
    total_mb = int(words[words.index("MemTotal:") + 1]) // 1024
    if int(parameters["memory_mb"]) >= total_mb:
        raise ActionRefused(f"memory_mb: {parameters['memory_mb']} is refused, the host has {total_mb} MiB; give less")


def _start_busy(name: str, parameters: Mapping[str, Any]) -> None:
    """So many processes that compute, without an end."""
    for _ in range(int(parameters["cores"]) - len(_find_neighbours(name))):
        _start_neighbour(name, _BUSY_PROGRAM)


def _start_memory(name: str, parameters: Mapping[str, Any]) -> None:
    """A process that holds so much memory."""
    if not _has_neighbours(name, parameters):
        _start_neighbour(name, _MEMORY_PROGRAM, str(int(parameters["memory_mb"])))


def _start_neighbour(name: str, program: str, *words: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", program, neighbour_mark(name), *words]
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=nothing, setsid=True)
    # By its words it is found, which it shows a moment later.
    until = time.monotonic() + START_TIMEOUT_S
    while neighbour_mark(name) not in command_of(pid) and time.monotonic() < until:
        time.sleep(0.001)


def _end_neighbours(name: str, parameters: Mapping[str, Any]) -> None:
    for pid in _find_neighbours(name):
        with contextlib.suppress(ProcessLookupError, ChildProcessError), process_handle(pid) as handle:
            # It may have ended meanwhile, and another have its number.
            if pid in _find_neighbours(name):
                send_signal(pid, handle, signal.SIGKILL)
                os.waitpid(pid, 0)  # where it is this very process's


def _has_neighbours(name: str, parameters: Mapping[str, Any]) -> bool:
    return bool(_find_neighbours(name))


def _holds_memory(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether its neighbour is there. Where memory runs out it goes while it takes it, and so is given the time."""
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
            continue  # gone, or somebody's that may not be looked at
        if process is not None and not process.is_foreign and mark in process.command:
            found.append(pid)
    return found


def neighbour_mark(name: str) -> str:
    """The argument that tells whose neighbour a process is."""
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
