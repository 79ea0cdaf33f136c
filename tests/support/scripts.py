"""Shell scripts that replace programs."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> Path:
    """Write an executable shell script and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
