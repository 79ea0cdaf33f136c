"""Where an attempt's checkpoint lies when checkpoints have a disk of their own: in a folder there.

A link in the attempt's folder says which, and `checkpoint` is a link to it, so whoever reads the checkpoint need not
know.
"""

from __future__ import annotations

from pathlib import Path

from faultline.experiment.attempt import Attempt
from faultline.system.errors import InfrastructureError
from faultline.system.files import make_apart, remove_apart


def make_on_disk(attempt: Attempt, disk: Path) -> Path:
    """The attempt's own folder there, the same at every call. Raises InfrastructureError."""
    if not disk.is_mount():
        raise InfrastructureError(f"{disk}: is not mounted; ./faultline down, then up --hosts 3")
    folder = make_apart(_link(attempt), disk)
    if not attempt.checkpoint.is_symlink():
        attempt.checkpoint.symlink_to(folder, target_is_directory=True)
    return folder


def lies_on_disk(attempt: Attempt) -> bool:
    """Whether the attempt has a folder on such a disk."""
    return _link(attempt).is_symlink()


def remove_from_disk(attempt: Attempt) -> None:
    """Removes it with all that it holds; harmless when there is none. Raises InfrastructureError."""
    remove_apart(_link(attempt))


def _link(attempt: Attempt) -> Path:
    return attempt.folder / "on-disk"
