"""SHA-256 of files and of lists of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_hash(file: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def list_hash(files: Iterable[Path]) -> str:
    """SHA-256 of a list of files: a line each of SHA-256 and name."""
    listed = "".join(f"{file_hash(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()
