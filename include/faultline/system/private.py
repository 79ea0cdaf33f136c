"""Folders in places where every user of the machine may make some, such as `/tmp` and the RAM disk.

Whoever knows a name there beforehand can take it first, with a link to a folder of ours for example. So names are
random, folders are made where nothing was, for this user alone, and a link in a folder of ours says where they are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from faultline.system.errors import InfrastructureError

MODE = 0o700


def make_apart(link: Path, above: Path) -> Path:
    """The folder that `link` names; made directly below `above` where there is none, the link before the folder.

    Raises InfrastructureError for one that is not this user's own, or that others may enter.
    """
    found = _named_by(link)
    if found is None:
        found = above / f"faultline-{secrets.token_hex(12)}"
        link.symlink_to(found)
    try:
        found.mkdir(MODE)
    except FileExistsError:
        _require_own(found, link)
    return found


def find_apart(link: Path) -> Path | None:
    """The folder that `link` names; None where there is none. Raises InfrastructureError as `make_apart`."""
    found = _named_by(link)
    if found is None or not os.path.lexists(found):
        return None
    _require_own(found, link)
    return found


def remove_apart(link: Path) -> None:
    """Removes the folder that `link` names, with all that it holds, and the link; harmless where there is none. Raises
    InfrastructureError as `make_apart`."""
    folder = find_apart(link)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink(missing_ok=True)


def _named_by(link: Path) -> Path | None:
    return Path(os.readlink(link)) if link.is_symlink() else None


def _require_own(folder: Path, link: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfrastructureError(
            f"{folder}: is no folder that this user has for himself; delete {link}, and another is made"
        )
