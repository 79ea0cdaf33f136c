"""Disk with simulated power failures: an ext4 in a file that keeps only synced data; and simulated reboots.

Data that was written and not synced is lost, as in a power failure. The disk itself persists synced data at once; disks
with a volatile cache are not simulated.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.installation import exclusive
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.waiting import wait_until

# EXT4_IOC_SHUTDOWN of Linux, which xfstests uses as well; with the flag EXT4_GOING_FLAGS_NOLOGFLUSH.
_SHUTDOWN = 0x8004587D
_AT_ONCE = struct.pack("I", 2)
# Mount options with which neither the passing of time nor a rename syncs data.
_OPTIONS = "loop,commit=300,noauto_da_alloc"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CLONE_NEWNS = 0x20000
_BUSY_S = 20.0
_ROOT_HINT = "fix: run it as root of a machine"


@dataclass(frozen=True)
class Disk:
    """`image`: file of the file system; `folder`: mount point."""

    image: Path
    folder: Path

    def attach(self) -> None:
        """Mount the disk in its last state; keep a mount that responds. Raises ConfigError if not permitted."""
        if self.folder.is_mount():
            if self._answers():
                return
            self.detach()
        _run_program("mount", "-o", _OPTIONS, str(self.image), str(self.folder))

    def detach(self) -> None:
        """Unmount the disk. Raises InfrastructureError naming the processes that use it."""

        def gone() -> bool:
            with contextlib.suppress(ConfigError):
                _run_program("umount", str(self.folder))
            return not self.folder.is_mount()

        wait_until(gone, timeout_s=_BUSY_S, every_s=0.2, what=lambda: f"{self.folder}: used by {self._users()}")

    def cut(self) -> None:
        """Cut the power: no process can read or write the disk until it is detached and attached.

        Raises InfrastructureError if the kernel does not support it.
        """
        opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(opened, _SHUTDOWN, _AT_ONCE)
        except OSError as error:
            raise InfrastructureError(
                f"{self.folder}: power cut failed ({error.strerror}); expected ext4 of Linux 4.11 or newer"
            ) from None
        finally:
            os.close(opened)

    def _answers(self) -> bool:
        try:
            return bool(os.listdir(self.folder)) and (self.folder / "lost+found").exists() and self._writes()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _writes(self) -> bool:
        probe = self.folder / ".answers"
        probe.touch()
        probe.unlink()
        return True

    def _users(self) -> str:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                used = [process.cwd(), *(file.path for file in process.open_files())]
                if any(Path(path).is_relative_to(self.folder) for path in used):
                    found.append(f"{process.pid} ({' '.join(process.cmdline())[:80]})")
        return ", ".join(found) or "no visible process"


@contextlib.contextmanager
def own_disk(folder: Path, size_mb: int) -> Iterator[Disk]:
    """Mount a disk of `size_mb` at `folder` for the block; create its image next to the folder if missing.

    Raises ConfigError without permission to mount, and while another call uses it.
    """
    if os.geteuid() != 0:
        raise ConfigError("power_cut: root required to mount a disk; fix: run it as root")
    _unshare_mounts()
    disk = Disk(folder.with_name(f"{folder.name}.img"), folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Two private mounts of one image would corrupt it.
    with exclusive(disk.image):
        if not disk.image.exists():
            part = disk.image.with_suffix(".part")
            part.unlink(missing_ok=True)
            _run_program("mkfs.ext4", "-q", "-m", "0", str(part), f"{size_mb}M")
            part.rename(disk.image)
        disk.attach()
        try:
            yield disk
        finally:
            disk.detach()


@contextlib.contextmanager
def own_boots(file: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that simulates a reboot for this process and its children; `file`: stores the boot id.

    Requires private mounts, such as those of `own_disk`.
    """

    def new_boot() -> None:
        file.write_text(f"{uuid.uuid4()}\n")

    new_boot()
    _run_program("mount", "--bind", str(file), str(_BOOT))
    try:
        yield new_boot
    finally:
        _run_program("umount", str(_BOOT))


def _unshare_mounts() -> None:
    """Make the mounts of this process private.

    Otherwise a container or systemd service that starts meanwhile gets a copy of the mount, and the disk is released
    only when its last user ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise ConfigError(f"power_cut: private mounts unavailable ({os.strerror(ctypes.get_errno())}); {_ROOT_HINT}")
    _run_program("mount", "--make-rprivate", "/")


def _run_program(program: str, *arguments: str) -> None:
    """Run a system program. Raises ConfigError with its error."""
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if path is None:
        raise ConfigError(f"power_cut: {program} missing; fix: install e2fsprogs and mount")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no message"]
        raise ConfigError(f"power_cut: disk creation failed: {program}: {errors[0]}; {_ROOT_HINT}")
