"""A disk whose power can be cut: an ext4 in a file, of which only that is left which somebody had it keep; and a
machine that seems to be started anew.

What was written and not synced is lost, as when the power fails. The disk itself keeps at once what it is told to keep:
one whose own memory loses that is not played.
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

# EXT4_IOC_SHUTDOWN of Linux, by which the suite xfstests cuts the power, and EXT4_GOING_FLAGS_NOLOGFLUSH.
_SHUTDOWN = 0x8004587D
_AT_ONCE = struct.pack("I", 2)
# Nothing is kept by the mere passing of time, nor since a file took another one's name.
_OPTIONS = "loop,commit=300,noauto_da_alloc"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CLONE_NEWNS = 0x20000
_BUSY_S = 20.0
_ROOT_HINT = "run it as root of a machine"


@dataclass(frozen=True)
class Disk:
    """`image`: the file that it lies in; `folder`: where it is mounted."""

    image: Path
    folder: Path

    def attach(self) -> None:
        """Mounts it, as it was left; one that is there and answers is left alone. Raises ConfigError where that is not
        allowed."""
        if self.folder.is_mount():
            if self._answers():
                return
            self.detach()
        _run_program("mount", "-o", _OPTIONS, str(self.image), str(self.folder))

    def detach(self) -> None:
        """Unmounts it. Raises InfrastructureError naming who still uses it."""

        def gone() -> bool:
            with contextlib.suppress(ConfigError):
                _run_program("umount", str(self.folder))
            return not self.folder.is_mount()

        wait_until(gone, timeout_s=_BUSY_S, every_s=0.2, what=lambda: f"{self.folder}: used by {self._users()}")

    def cut(self) -> None:
        """Cuts the power: from now on nobody can read or write it, until it is detached and attached.

        Raises InfrastructureError where the kernel cannot do that.
        """
        opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(opened, _SHUTDOWN, _AT_ONCE)
        except OSError as error:
            raise InfrastructureError(
                f"{self.folder}: its power cannot be cut ({error.strerror}); it takes ext4 of Linux 4.11 or newer"
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
        return ", ".join(found) or "nobody that can be seen"


@contextlib.contextmanager
def own_disk(folder: Path, size_mb: int) -> Iterator[Disk]:
    """Such a disk of so many MB at `folder`, made when there is none yet, beside the folder; detached on the way out.

    Raises ConfigError for whoever may not mount one, and while another call has it.
    """
    if os.geteuid() != 0:
        raise ConfigError("power_cut: only root may mount the disk whose power is cut; run it as root")
    _unshare_mounts()
    disk = Disk(folder.with_name(f"{folder.name}.img"), folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Mounted by two at once, each with mounts of its own, it would be no disk any more.
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
    """Gives what makes this start of the machine another one, for all that this process starts; `file` holds its name.

    To be used while there is such a disk, on whose account nobody else sees it.
    """

    def start_anew() -> None:
        file.write_text(f"{uuid.uuid4()}\n")

    start_anew()
    _run_program("mount", "--bind", str(file), str(_BOOT))
    try:
        yield start_anew
    finally:
        _run_program("umount", str(_BOOT))


def _unshare_mounts() -> None:
    """From here on nobody else sees what this process mounts: whatever gets mounts of its own, such as a container or a
    service of systemd, begins with a copy of all that there are, and a disk is let go only by the last who has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise ConfigError(
            f"power_cut: no mounts of its own can be had here ({os.strerror(ctypes.get_errno())}); {_ROOT_HINT}"
        )
    _run_program("mount", "--make-rprivate", "/")


def _run_program(program: str, *arguments: str) -> None:
    """Runs a program of the system. Raises ConfigError with its words."""
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if path is None:
        raise ConfigError(f"power_cut: {program} is missing; install e2fsprogs and mount")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise ConfigError(f"power_cut: no disk of its own can be had here: {program}: {said[0]}; {_ROOT_HINT}")
