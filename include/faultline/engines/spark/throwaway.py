"""Where commit mode `none` keeps the checkpoints of an attempt's lineages: on the RAM disk, where there is one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from faultline.base.attempt import Attempt
from faultline.base.private import find_apart, make_apart

RAM = Path("/dev/shm")


def make_throwaway(attempt: Attempt) -> Path:
    """The attempt's own folder there, the same at every call. Raises InfrastructureError."""
    return make_apart(_link(attempt), RAM if RAM.is_dir() else Path(tempfile.gettempdir()))


def remove_throwaway(attempt: Attempt) -> None:
    """Removes it with all that it holds; harmless when there is none. Raises InfrastructureError."""
    folder = find_apart(_link(attempt))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    _link(attempt).unlink(missing_ok=True)


def _link(attempt: Attempt) -> Path:
    return attempt.folder / "throwaway"
