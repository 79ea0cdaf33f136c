"""Recorder of the CPU and memory of a host's processes, one sample per second, independent of the connection.

The handler starts the recorder, which stops on request or after a maximum time. The folder of the recording remains
until it was fetched or the host restarts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault import watchdog
from fault.errors import VictimRefused
from fault.process_sampler import Key, ProcessTable, RoleRule, Usage, machine_usage, pid_namespace_of

PREFIX = "faultline-record-"
PERIOD_S = 1.0
JOURNAL, STOP = "journal.jsonl", "stop"
# Maximum wait for the stop.
STOP_TIMEOUT_S = 5.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def run_step(step: str, **fields: Any) -> Any:
    """Run one step of a recording: `begin`, `end`, `part` or `drop`, with the fields of its function."""
    steps: dict[str, Callable[..., Any]] = {
        "begin": start_recording,
        "end": stop_recording,
        "part": read_part,
        "drop": remove_recording,
    }
    return steps[step](**fields)


def start_recording(
    rules: Sequence[Mapping[str, str]],
    child_roles: Mapping[str, str],
    reread_s: float,
    max_s: float,
    delay_roles: Sequence[str] = (),
) -> str:
    """Start a recording that survives this process; return its folder.

    `child_roles`, `reread_s`, `delay_roles`: see `ProcessTable`. `max_s`: maximum length in seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    table = ProcessTable([RoleRule(**rule) for rule in rules], child_roles, reread_s=reread_s, delay_roles=delay_roles)
    # A detached process keeps neither the connection open nor the agent's lock.
    input_fd, output_fd = watchdog.run_detached(lambda: _record(folder, table, max_s))
    os.close(input_fd)
    with open(output_fd, "rb") as pipe:
        pipe.read()  # wait for the first sample
    return str(folder)


def stop_recording(folder: str) -> bool:
    """Stop a recording and return whether it stopped within `STOP_TIMEOUT_S` seconds.

    Raises VictimRefused if `folder` is not a recording.
    """
    path = _require_own(folder)
    (path / STOP).touch()
    until = time.monotonic() + STOP_TIMEOUT_S
    while not (is_stopped := _has_stopped(path)) and time.monotonic() < until:
        time.sleep(0.02)
    return is_stopped


def read_part(folder: str, offset: int, size: int) -> str:
    """Return up to `size` bytes of the journal from `offset` on, in base64. Raises VictimRefused."""
    with (_require_own(folder) / JOURNAL).open("rb") as file:
        file.seek(offset)
        return base64.b64encode(file.read(size)).decode()


def remove_recording(folder: str) -> None:
    """Stop and remove a recording; idempotent. Raises VictimRefused if `folder` is not a recording."""
    if os.path.lexists(folder):
        with contextlib.suppress(OSError):
            stop_recording(folder)
        shutil.rmtree(_require_own(folder))


def _require_own(folder: str) -> Path:
    """Return the folder if `start_recording` made it. Raises VictimRefused if not."""
    path = Path(folder)
    status = path.lstat() if os.path.lexists(path) else None
    is_named = path.parent == Path(tempfile.gettempdir()) and path.name.startswith(PREFIX)
    if status is None or not is_named or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise VictimRefused(f"record: got {folder}; expected a recording of this user")
    return path


def _has_stopped(folder: Path) -> bool:
    with (folder / JOURNAL).open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 200))
        lines = file.read().splitlines()
    return bool(lines) and b'"stop"' in lines[-1]


def _record(folder: Path, table: ProcessTable, max_s: float) -> None:
    """Write samples until the stop file appears or `max_s` is over."""
    file = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
    stop = folder / STOP
    began = due = time.monotonic()
    start = {"boot": _BOOT.read_text().strip(), "space": pid_namespace_of("self"), "python": list(sys.version_info[:3])}
    _write(file, {"kind": "start", **start})
    before = _sample(file, table, {})
    watchdog.send_final_reply(b"")
    while True:
        due += PERIOD_S
        while not stop.exists() and time.monotonic() < due:
            time.sleep(min(0.05, max(0.0, due - time.monotonic())))
        # The folder may be removed without waiting for the stop.
        if stop.exists() or not folder.exists() or time.monotonic() - began > max_s:
            break
        before = _sample(file, table, before)
    _sample(file, table, before)
    _write(file, {"kind": "stop"})


def _sample(file: int, table: ProcessTable, before: Mapping[Key, Usage]) -> dict[Key, Usage]:
    present = table.sample({})
    _write(file, {"kind": "machine", **machine_usage()})
    # The recording's own CPU time is written too, since it does not count as workload.
    _write(file, {"kind": "group", **group_usage(), "recording_s": time.process_time()})
    for usage in present.values():
        _write(file, _line(usage, final=False))
    # Write the last counters of a process that ended: its CPU time counts.
    for key in before.keys() - present.keys():
        _write(file, _line(before[key], final=True))
    return present


def _line(usage: Usage, *, final: bool) -> dict[str, Any]:
    return {"kind": "proc", **usage.as_json(), "final": final}


def _write(file: int, line: Mapping[str, Any]) -> None:
    mono_ns = time.monotonic_ns()
    stamped = {"wall_ns": time.time_ns(), "mono_ns": mono_ns, **line}
    os.write(file, json.dumps(stamped, separators=(",", ":")).encode() + b"\n")


# CPU and memory of this process's control group, from the kernel's counters (cgroup v1 and v2).


_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def group_usage(own: Path = _OWN, root: Path = _ROOT) -> dict[str, float | int | str | None]:
    """Return {"path", "cpu_s", "memory_bytes"} of this process's control group; None if not counted.

    `cpu_s` is in core seconds, over all processes of the group. `own`: the kernel's file with this process's groups.
    `root`: mount point of the hierarchies.
    """
    lines = [line.split(":", 2) for line in _read_text(own).splitlines() if line.count(":") >= 2]
    cpu_s: float | None = None
    memory: int | None = None
    path: str | None = None
    for _, controllers, inside in lines:
        names = controllers.split(",")
        if "cpuacct" in names:
            path = inside
            counted = _read_counter(root, (controllers, "cpuacct"), inside, "cpuacct.usage")
            cpu_s = None if counted is None else int(counted) / 1e9
        if "memory" in names:
            counted = _read_counter(root, ("memory",), inside, "memory.usage_in_bytes")
            memory = None if counted is None else int(counted)
        if controllers == "" and cpu_s is None:
            path = path or inside
            used = dict(line.split() for line in _read_text(root / inside.strip("/") / "cpu.stat").splitlines())
            cpu_s = int(used["usage_usec"]) / 1e6 if "usage_usec" in used else None
            counted = _read_text(root / inside.strip("/") / "memory.current").strip()
            memory = int(counted) if counted.isdigit() else memory
    return {"path": path, "cpu_s": cpu_s, "memory_bytes": memory}


def _read_counter(root: Path, mounts: tuple[str, ...], inside: str, name: str) -> str | None:
    """Return the content of the first existing counter file, or None."""
    found = (_read_text(root / mount / inside.strip("/") / name).strip() for mount in mounts)
    return next((text for text in found if text.isdigit()), None)


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
