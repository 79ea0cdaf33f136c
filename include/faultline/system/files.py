"""Durable files, which are complete or absent even after a power failure or on a full disk.

A disk stores a file's content and its name separately. A new or replaced name is safe only once its folder is synced.
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
    """Write a file so that readers see either the old or the new content.

    A temporary file is written, synced and renamed, and the folder synced. Raises InfrastructureError naming the file
    if it cannot be written; the old file then stays, and the temporary one is removed.
    """
    _write(path, _temporary_path(path), text)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON atomically; raises as `write_atomic`."""
    write_atomic(path, json.dumps(value, indent=1))


def write_private(path: Path, text: str) -> None:
    """Write a file as `write_atomic` does, readable only by its owner regardless of the umask."""
    temporary = _temporary_path(path)
    temporary.unlink(missing_ok=True)
    _write(path, temporary, text, _owner_only)


def _owner_only(path: str, flags: int) -> int:
    # O_EXCL refuses a link placed there by another user.
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
            # On a full disk, a partial file would use up space.
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from None


def make_folder(folder: Path) -> None:
    """Make the folder and its missing parents durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_files(folder: Path) -> None:
    """Sync the files of a folder and their names; do nothing if it is missing."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_file():
                sync_folder(path)
        sync_folder(folder)


def sync_tree(folder: Path) -> None:
    """Sync a folder and everything below it."""
    for inner, _, _ in os.walk(folder):
        sync_files(Path(inner))


def write_error(path: Path, error: OSError) -> InfrastructureError:
    """Return the error for a file that cannot be written."""
    return InfrastructureError(
        f"{path}: write failed: {error.strerror or error}; fix: free disk space, or correct the folder's permissions"
    )


def sync_folder(path: Path) -> None:
    """Sync the names in a folder, or the content of a file."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            raise
    finally:
        os.close(opened)


# ---- Raw files with one JSON object each ----


def require_file(path: Path) -> None:
    """Raise InfrastructureError, naming the file and a fix, if it is missing."""
    if not path.exists():
        raise InfrastructureError(f"{path}: missing; fix: clear the task that writes it, or rerun the experiment")


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises InfrastructureError if it is missing or not an object."""
    require_file(path)
    try:
        value = json.loads(path.read_text())
    except ValueError:
        raise InfrastructureError(f"{path}: not JSON; fix: clear the task that writes it") from None
    if not isinstance(value, dict):
        raise InfrastructureError(f"{path}: not a JSON object; fix: clear the task that writes it")
    return value


@contextlib.contextmanager
def reject_damaged(file: Path, remedy: str) -> Iterator[None]:
    """Raise ConfigError naming the file and the fix if the block cannot read it."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file}: damaged ({error}); fix: {remedy}") from None


# ---- Output files of commands: checked before the work starts ----


def check_output_path(path: Path, option: str) -> None:
    """Raise ConfigError naming the `option` if `path` cannot be written. Creates nothing."""

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{option} {path}: {why}; expected a writable file")

    if path.is_dir() or not path.name:
        raise refuse("is a folder")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise refuse("cannot be written")
        return
    # The writer may create missing folders, so the nearest existing folder must be writable.
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise refuse(f"is below {folder}, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refuse(f"is below the read-only folder {folder}")


# ---- Private folders in shared places such as /tmp: random names, recorded in a link ----


MODE = 0o700


def make_private_folder(link: Path, above: Path) -> Path:
    """Return the folder to which `link` points; if missing, create the link and then the folder, directly in `above`.

    Raises InfrastructureError for a folder of another user, or one that others may enter.
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
    """Return the folder behind `link`, or None if missing. Raises as `make_private_folder`."""
    found = _link_target(link)
    if found is None or not os.path.lexists(found):
        return None
    _require_own(found, link)
    return found


def remove_private_folder(link: Path) -> None:
    """Remove the folder behind `link` and the link, if present. Raises as `make_private_folder`."""
    folder = find_private_folder(link)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    link.unlink(missing_ok=True)


def _link_target(link: Path) -> Path | None:
    return Path(os.readlink(link)) if link.is_symlink() else None


def _require_own(folder: Path, link: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfrastructureError(f"{folder}: not a private folder of this user; fix: delete {link}, and rerun")
