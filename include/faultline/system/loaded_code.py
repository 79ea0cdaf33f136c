"""Whether the code that a process has loaded still lies on disk as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

# File -> size and time of its last change, None for one that is gone.
Stamps = dict[str, tuple[int, int] | None]


@dataclass(frozen=True)
class LoadedCode:
    """The modules of some packages that were loaded, and what their files were then."""

    packages: frozenset[str]
    stamps: Stamps

    @classmethod
    def of(cls, packages: Collection[str]) -> Self:
        """What this process has loaded of the packages so far."""
        found = [file for name in _modules(packages) if (file := getattr(sys.modules[name], "__file__", None))]
        return cls(frozenset(packages), {file: _stamp(file) for file in found})

    def is_stale(self) -> bool:
        """Whether a file was changed or removed since."""
        return any(_stamp(file) != stamp for file, stamp in self.stamps.items())

    def forget(self) -> None:
        """Has the next import of each of these modules read its file."""
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
