"""A full disk on this host, and its undo by the watchdog."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fault.errors import ActionRefused
from fault.host_faults import BALLAST
from fault.injector import Injector
from faultline.system.waiting import wait_until
from tests.support.small_disk import small_disk

NAME = "20261126t061500z_3fa9c1_0"


def test_a_full_disk_is_emptied_by_its_undo_or_its_watchdog(tmp_path: Path) -> None:
    with small_disk(tmp_path, 16) as disk:
        asked, here = {"folder": str(disk.folder)}, Injector()
        act = {"kind": "disk_full", "name": NAME, "asked": asked}
        here.run_host_step("", "check", **act)
        for left_alone in (False, True):
            here.start_host_watchdog("", 1.0 if left_alone else 10.0, **act)
            here.run_host_step("", "do", **act)
            assert here.run_host_step("", "is_active", **act) is True
            with pytest.raises(OSError, match="No space left"):
                (disk.folder / "more").write_bytes(bytes(2**20))
            (disk.folder / "more").unlink(missing_ok=True)
            if not left_alone:
                here.run_host_step("", "undo", **act)
            wait_until(
                lambda: not here.run_host_step("", "is_active", **act),
                timeout_s=120,
                every_s=0.1,
                what="that the disk is emptied",
            )
            assert shutil.disk_usage(disk.folder).free > 2**20
        assert not list(disk.folder.glob(f"{BALLAST}*"))


def test_a_folder_without_its_own_disk_is_refused() -> None:
    with pytest.raises(ActionRefused, match="^disk_full: "):
        Injector().run_host_step("", "do", kind="disk_full", name=NAME, asked={"folder": "/etc"})
