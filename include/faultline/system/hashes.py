"""SHA-256 of files and of lists of files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

# A file that was changed so short a time ago may change again within one tick of its clock.
FRESH_NS = 2_000_000_000


def file_hash(file: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def kept_hash(file: Path) -> str:
    """The same of a file that is asked for again and again: read once in this process while nothing changes it."""
    about = file.stat()
    if time.time_ns() - about.st_mtime_ns < FRESH_NS:
        return file_hash(file)
    return _kept(file, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=256)
def _kept(file: Path, size: int, changed_ns: int) -> str:
    return file_hash(file)


def list_hash(files: Iterable[Path]) -> str:
    """SHA-256 of a list of files: a line each of SHA-256 and name."""
    listed = "".join(f"{file_hash(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()
