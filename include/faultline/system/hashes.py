"""SHA-256 of files and of lists of files."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

# The hash of a file that changed so recently is not cached: the file may change again within the same clock tick.
FRESH_NS = 2_000_000_000


def file_hash(file: Path) -> str:
    """Return SHA-256 of a file, 64 hex digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def cached_hash(file: Path) -> str:
    """Return the SHA-256 of a file; this process reads the file again only after a change."""
    about = file.stat()
    if time.time_ns() - about.st_mtime_ns < FRESH_NS:
        return file_hash(file)
    return _hash_unchanged(file, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_unchanged(file: Path, size: int, changed_ns: int) -> str:
    return file_hash(file)


def list_hash(files: Iterable[Path]) -> str:
    """Return the SHA-256 of a list of files: one line of SHA-256 and name per file."""
    listed = "".join(f"{file_hash(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()


# ---- Loaded code that may have changed on disk ----


# By file: its size and the time of its last change; None if it does not exist.
Stamps = dict[str, tuple[int, int] | None]


@dataclass(frozen=True)
class LoadedCode:
    """Loaded modules of some packages, with the state of their files at load time."""

    packages: frozenset[str]
    stamps: Stamps

    @classmethod
    def of(cls, packages: Collection[str]) -> Self:
        """Return the modules of the packages that this process has loaded."""
        found = [file for name in _modules(packages) if (file := getattr(sys.modules[name], "__file__", None))]
        return cls(frozenset(packages), {file: _stamp(file) for file in found})

    def is_stale(self) -> bool:
        """Return whether a file was changed or removed after it was loaded."""
        return any(_stamp(file) != stamp for file, stamp in self.stamps.items())

    def unload(self) -> None:
        """Unload the modules, so that the next import reads their files."""
        for name in _modules(self.packages):
            del sys.modules[name]


def _modules(packages: Collection[str]) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in packages]


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
