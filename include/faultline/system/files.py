"""Files that last: whole or absent in their place, also after a power cut or on a full disk.

A file's content and its name are two things to a disk. A name that is new, or that another file takes over, is safe
only once its folder was synced, too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faultline.system.errors import ConfigError, InfrastructureError


def write_atomic(path: Path, text: str) -> None:
    """Writes beside, syncs, puts it in its place, and syncs the folder: a reader sees the old file or all of the new.

    Raises InfrastructureError, naming the file, when it cannot be written; then the old one stands, and nothing beside.
    """
    _write(path, _temporary_path(path), text)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON atomically; raises as `write_atomic`."""
    write_atomic(path, json.dumps(value, indent=1))


def write_private(path: Path, text: str) -> None:
    """The same of a file that only its owner can read, whatever the umask."""
    temporary = _temporary_path(path)
    temporary.unlink(missing_ok=True)
    _write(path, temporary, text, _owner_only)


def _owner_only(path: str, flags: int) -> int:
    # A link that lies there is no file of ours.
    return os.open(path, flags | os.O_EXCL, 0o600)


def _temporary_path(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _write(path: Path, temporary: Path, text: str, opener: Callable[[str, int], int] | None = None) -> None:
    try:
        try:
            with open(temporary, "w", encoding="utf-8", opener=opener) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except OSError:
            # What a full disk took of it would keep the room that is lacking.
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from None


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it that are missing, so that they last."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_files(folder: Path) -> None:
    """Returns when the disk has the files of the folder, and their names; one that is not there has none."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_file():
                sync_folder(path)
        sync_folder(folder)


def sync_tree(folder: Path) -> None:
    """The same of the folder and all below it."""
    for inner, _, _ in os.walk(folder):
        sync_files(Path(inner))


def write_error(path: Path, error: OSError) -> InfrastructureError:
    """What to raise for a file that the system would not let be written."""
    return InfrastructureError(
        f"{path}: cannot be written: {error.strerror or error}; free disk space or mend the folder's permissions"
    )


def sync_folder(path: Path) -> None:
    """Returns when the disk has the names in the folder; or what is in the file, if it is one."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            raise
    finally:
        os.close(opened)


# Raw files that hold one JSON object each, and what is said of one that is missing or broken.


def require_file(path: Path) -> None:
    """Raises InfrastructureError, naming the file and a remedy, when it is missing."""
    if not path.exists():
        raise InfrastructureError(f"{path}: missing; clear the task that writes it, or run the experiment again")


def read_document(path: Path) -> dict[str, Any]:
    """The object in a file. Raises InfrastructureError when the file is missing or holds anything else."""
    require_file(path)
    try:
        value = json.loads(path.read_text())
    except ValueError:
        raise InfrastructureError(f"{path}: not JSON; clear the task that writes it") from None
    if not isinstance(value, dict):
        raise InfrastructureError(f"{path}: not a JSON object; clear the task that writes it")
    return value


@contextlib.contextmanager
def reject_damaged(file: Path, remedy: str) -> Iterator[None]:
    """Around what reads a file of the installation: ConfigError naming it, and the remedy, when it holds anything
    else."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file}: is damaged ({error}); {remedy}") from None


# Files that a command is told to write: looked at before it works, so that it need not find out afterwards.


def check_output_path(path: Path, option: str) -> None:
    """Raises ConfigError naming the `option` where no file can be written at `path`. Makes nothing."""

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{option} {path}: {why}; name a file that can be written")

    if path.is_dir() or not path.name:
        raise refuse("is a folder")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise refuse("cannot be written")
        return
    # The folder may be made by whoever writes; then it is the nearest one there is that must take it.
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise refuse(f"{folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refuse(f"{folder} cannot be written to")


# ---- Folders where every user may make some: random names, made for this user alone, kept in a link ----


MODE = 0o700


def make_private_folder(link: Path, above: Path) -> Path:
    """The folder that `link` names; made directly below `above` where there is none, the link before the folder.

    Raises InfrastructureError for one that is not this user's own, or that others may enter.
    """
    found = _link_target(link)
    if found is None:
        found = above / f"faultline-{secrets.token_hex(12)}"
        link.symlink_to(found)
    try:
        found.mkdir(MODE)
    except FileExistsError:
        _require_own(found, link)
    return found


def find_private_folder(link: Path) -> Path | None:
    """The folder that `link` names; None where there is none. Raises InfrastructureError as `make_private_folder`."""
    found = _link_target(link)
    if found is None or not os.path.lexists(found):
        return None
    _require_own(found, link)
    return found


def remove_private_folder(link: Path) -> None:
    """Removes the folder that `link` names, with all that it holds, and the link; harmless where there is none. Raises
    InfrastructureError as `make_private_folder`."""
    folder = find_private_folder(link)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink(missing_ok=True)


def _link_target(link: Path) -> Path | None:
    return Path(os.readlink(link)) if link.is_symlink() else None


def _require_own(folder: Path, link: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfrastructureError(
            f"{folder}: is no folder that this user has for himself; delete {link}, and another is made"
        )
