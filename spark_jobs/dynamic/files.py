"""Files that another process reads while they change: nothing or all of a text stands there."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, text: str, instant_ns: int | None = None) -> None:
    """Writes beside and renames. `instant_ns`: the file's time, ns of the wall clock; else now. One writer a path."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    if instant_ns is not None:
        os.utime(part, ns=(instant_ns, instant_ns))
    os.replace(part, path)
