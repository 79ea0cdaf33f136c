"""Small disk for tests: a file system in a file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# Sizes of allocations, largest first.
_ALLOCATED = (64 << 20, 1 << 20)
_PIECES = (65536, 1024, 1)


@dataclass(frozen=True)
class SmallDisk:
    """A small disk. `folder`: its mount point."""

    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self, *, but: int = 0) -> None:
        """Fill the disk up to about `but` free bytes."""
        reserve = self.folder / "reserve"
        reserve.write_bytes(bytes(but))
        opened = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
        try:
            for size in _ALLOCATED:
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(opened, os.lseek(opened, 0, os.SEEK_END), size)
            os.lseek(opened, 0, os.SEEK_END)
            for size in _PIECES:
                try:
                    while True:
                        os.write(opened, bytes(size))
                        os.fsync(opened)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
        finally:
            os.close(opened)
            reserve.unlink()

    def free(self) -> None:
        """Free the space."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[SmallDisk]:
    """Yield an ext4 of `size_mb` below `folder`; skip the test if it cannot be mounted."""
    image, mounted = folder / "image", folder / "disk"
    mounted.mkdir()
    # No blocks reserved for root, because the tests may run as root.
    make = ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image), f"{size_mb}M"]
    for command in (make, ["mount", "-o", "loop", str(image), str(mounted)]):
        path = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        done = path and subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False)
        if not done or done.returncode:
            why = done.stderr.strip() if done else "program missing"
            pytest.skip(f"needs a small file system: {command[0]} failed: {why}")
    try:
        shutil.rmtree(mounted / "lost+found")
        yield SmallDisk(mounted)
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)
