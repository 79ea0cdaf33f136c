"""The disk of a host: a file system of bounded size in a file, which can be full while this machine is not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from faultline.installation.hosts.layout import found
from faultline.system.errors import InfrastructureError

SIZE_MB = 4096


def mount(image: Path, folder: Path, *, size_mb: int = SIZE_MB) -> None:
    """Has the disk there; an image that is there keeps what it holds. Raises InfrastructureError."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_mounted(folder):
        return
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        made = image.with_suffix(".new")
        made.unlink(missing_ok=True)
        # No room is kept back for root, as which everything on it runs.
        _run([str(found("mkfs.ext4")), "-q", "-m", "0", str(made), f"{size_mb}M"])
        made.rename(image)
    _run([str(found("mount")), "-o", "loop", str(image), str(folder)])


def unmount(folder: Path) -> None:
    """Takes it away, once nobody uses it any more; harmless where none is."""
    if is_mounted(folder):
        _run([str(found("umount")), "--lazy", str(folder)])


def is_mounted(folder: Path) -> bool:
    """Whether a disk is mounted there."""
    return os.path.ismount(folder)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"hosts: {' '.join(command)}: {done.stderr.strip() or 'failed'}")
