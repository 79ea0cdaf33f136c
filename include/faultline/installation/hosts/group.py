"""The control group of a host: what all of its processes use is counted by the kernel, as on a machine of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from faultline.system.endpoints import Host, Placement

ROOT = Path("/sys/fs/cgroup")
# Of version 1, which has a tree for each; version 2 has one for all.
COUNTED = ("cpuacct", "memory")


def put_in_group(placement: Placement, host: Host, pid: int) -> None:
    """Moves a process, and all that it will start, into the host's group; nothing where groups cannot be made."""
    for folder in _folders(placement, host):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(pid))


def remove_group(placement: Placement, host: Host) -> None:
    """Removes it, once its processes have ended; harmless where none is."""
    for folder in _folders(placement, host):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _folders(placement: Placement, host: Host) -> Iterator[Path]:
    name = f"{placement.bridge}-{host.name}"
    trees = [ROOT] if (ROOT / "cgroup.controllers").exists() else [ROOT / one for one in COUNTED]
    return (tree / name for tree in trees if tree.is_dir())
