"""Programs that only look like others."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> Path:
    """Return a shell script that is there to be run; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
