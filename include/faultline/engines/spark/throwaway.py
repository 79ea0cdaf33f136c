"""Where commit mode `none` keeps the checkpoints of an attempt's lineages: on the RAM disk, where there is one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from faultline.experiment.attempt import Attempt
from faultline.system.files import make_apart, remove_apart

RAM = Path("/dev/shm")


def make_throwaway(attempt: Attempt) -> Path:
    """The attempt's own folder there, the same at every call. Raises InfrastructureError."""
    return make_apart(_link(attempt), RAM if RAM.is_dir() else Path(tempfile.gettempdir()))


def remove_throwaway(attempt: Attempt) -> None:
    """Removes it with all that it holds; harmless when there is none. Raises InfrastructureError."""
    remove_apart(_link(attempt))


def _link(attempt: Attempt) -> Path:
    return attempt.folder / "throwaway"
