"""Faults of this host's disk, CPU and memory, and their undo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from fault import host_faults
from fault.errors import ActionRefused
from fault.host_faults import BALLAST, HOST_FAULTS, injection_name, neighbour_mark
from faultline.system.waiting import wait_until
from tests.support.processes import shown

FULL = host_faults._MEMORY_PROGRAM

NAME = f"of_{uuid.uuid4().hex[:8]}_0"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that acts as a separate disk, full after three blocks."""
    monkeypatch.setattr(host_faults, "_check_disk", lambda name, asked: None)
    left = [3 * 4096]

    def allocate(file: int, offset: int, size: int) -> None:
        if size > left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= size
        os.truncate(file, offset + size)

    def write(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_faults, "os", SimpleNamespace(**{**vars(os), "posix_fallocate": allocate, "write": write}))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30, 0, left[0]))
    return tmp_path


def test_undo_of_a_full_disk_removes_only_its_file(disk: Path) -> None:
    act, asked = HOST_FAULTS["disk_full"], {"folder": str(disk)}
    (disk / "data").write_text("theirs")
    for _ in range(2):
        act.do(NAME, asked)
    assert (disk / f"{BALLAST}{NAME}").stat().st_size == 3 * 4096 and act.is_active(NAME, asked)
    act.undo("of_another_0", asked)
    assert act.is_active(NAME, asked)
    for _ in range(2):
        act.undo(NAME, asked)
    assert [one.name for one in disk.iterdir()] == ["data"] and not act.is_active(NAME, asked)


def test_disk_that_stays_free_raises(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30, 0, 2**30))
    with pytest.raises(ActionRefused, match=r"^disk_full: .*No space left"):
        HOST_FAULTS["disk_full"].do(NAME, {"folder": str(disk)})


@pytest.mark.parametrize("how", ["link", "symlink"])
def test_foreign_ballast_file_is_not_touched(disk: Path, how: str) -> None:
    victim = disk / "victim"
    victim.write_text("theirs")
    getattr(os, how)(victim, disk / f"{BALLAST}{NAME}")
    with pytest.raises((ActionRefused, OSError)):
        HOST_FAULTS["disk_full"].do(NAME, {"folder": str(disk)})
    assert victim.read_text() == "theirs"


def test_more_memory_than_installed_is_refused() -> None:
    with pytest.raises(ActionRefused, match="^memory_mb: got 999999999"):
        HOST_FAULTS["memory_pressure"].check(NAME, {"memory_mb": 999_999_999})
    HOST_FAULTS["memory_pressure"].check(NAME, {"memory_mb": 1})


def test_memory_process_is_the_first_oom_victim() -> None:
    act, asked = HOST_FAULTS["memory_pressure"], {"memory_mb": 1}
    act.do(NAME, asked)
    try:
        (pid,) = host_faults._find_neighbours(NAME)
        score = Path(f"/proc/{pid}/oom_score_adj")
        wait_until(lambda: score.read_text().strip() == "1000", timeout_s=120, what="it to say so")
    finally:
        act.undo(NAME, asked)
    wait_until(lambda: not act.is_active(NAME, asked), timeout_s=120, what="its end")


def test_memory_process_killed_early_is_not_active(monkeypatch: pytest.MonkeyPatch) -> None:
    act, asked = HOST_FAULTS["memory_pressure"], {"memory_mb": 64}
    monkeypatch.setattr(host_faults, "ALLOCATE_TIMEOUT_S", 30.0)
    monkeypatch.setattr(host_faults, "_MEMORY_PROGRAM", "import sys; sys.stdin.read(); sys.exit(1)")
    act.do(NAME, asked)
    assert not act.is_active(NAME, asked), "as of one that the kernel ended"
    monkeypatch.setattr(host_faults, "_MEMORY_PROGRAM", FULL)
    act.do(NAME, asked)
    try:
        assert act.is_active(NAME, asked)
        assert host_faults._resident_mb(host_faults._find_neighbours(NAME)[0]) >= 64, "not before it has it"
    finally:
        act.undo(NAME, asked)


@pytest.mark.parametrize("folder", ["", "home", "./x"])
def test_relative_folder_is_refused(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ActionRefused, match="^disk_full: "):
        HOST_FAULTS["disk_full"].check(NAME, {"folder": folder})


def test_missing_busy_processes_are_added() -> None:
    act, asked = HOST_FAULTS["cpu_pressure"], {"cores": 2}
    try:
        act.do(NAME, {"cores": 1})
        act.do(NAME, asked)
        act.do(NAME, asked)
        assert len(host_faults._find_neighbours(NAME)) == 2
    finally:
        act.undo(NAME, asked)
    wait_until(lambda: not act.is_active(NAME, asked), timeout_s=120, what="their end")


@pytest.mark.parametrize("kernel", ["without the call", "ENOSYS"])
def test_busy_processes_end_without_pidfds(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    act, asked = HOST_FAULTS["cpu_pressure"], {"cores": 1}
    act.do(NAME, asked)
    with monkeypatch.context() as patch:
        if kernel == "ENOSYS":
            patch.setattr(os, "pidfd_open", refuse)
        else:
            patch.delattr(os, "pidfd_open")
        try:
            act.undo(NAME, asked)
            assert not act.is_active(NAME, asked)
        finally:
            patch.undo()
            act.undo(NAME, asked)


def test_unreadable_processes_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)", neighbour_mark(NAME)]) as process:
        shown(process.pid, neighbour_mark(NAME))
        theirs, real = os.getpid(), host_faults.command_of

        def command(pid: int) -> tuple[str, ...]:
            if pid == theirs:
                raise PermissionError(13, "Permission denied")
            return real(pid)

        monkeypatch.setattr(host_faults, "command_of", command)
        assert host_faults._find_neighbours(NAME) == [process.pid]
        process.kill()


def test_injection_names_are_unique() -> None:
    names = {injection_name(f"20261121T061500Z-3fa9c{run}", index) for run in range(2) for index in range(3)}
    assert len(names) == 6
    for name in names:
        host_faults.find_host_fault("partition", name)
