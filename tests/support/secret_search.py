"""Search for secrets in files and archives."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

# Default folders of temporary files.
SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


def holding(secrets: Collection[str], roots: Collection[Path], *, since: float = 0) -> set[Path]:
    """Return this user's files below `roots` that contain a secret and changed after `since` (s since the epoch)."""
    wanted = [one.encode() for one in secrets]
    found = set()
    for path in _files(roots, since):
        try:
            if any(secret in content for content in contents(path) for secret in wanted):
                found.add(path)
        except FileNotFoundError:  # another process removed it meanwhile
            continue
    return found


def contents(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, or of each file in an archive."""
    if ".tar" not in path.suffixes:
        yield path.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield file.read()


def _files(roots: Collection[Path], since: float) -> Iterator[Path]:
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mtime >= since:
                    yield path
